"""`handrail demo`: plays the five failures and prints what was paid; `--explain N` shows the two programs of one."""

import argparse
import inspect
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from handrail.cli.demo.failures import CALL, CONTEXT, FAILURES, Bank, Demonstration
from handrail.core.log import silence_log
from handrail.core.values import ToolResult
from handrail.errors import ConfigError

T = TypeVar("T", str, ToolResult)

_AMOUNT: Final = 90
"""What the invoice costs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--explain",
        type=int,
        choices=range(1, len(FAILURES) + 1),
        metavar="N",
        help=f"show the two programs of one failure, 1 to {len(FAILURES)}",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if Handrail did not do what it promises."""
    if options.explain is not None:
        _explain(options.explain)
        return 0
    if not hasattr(os, "fork"):
        raise ConfigError("the demo kills processes that it forks, and this system cannot fork: use Linux or macOS.")
    with silence_log():  # That a bank is killed is what is wanted here.
        return _play_failures()


def _play_failures() -> int:
    print(f"An agent has to pay invoice R-7, {_AMOUNT} EUR, once. Every process is real, and so is every kill -9.")
    wrong, wrong_with, is_expected = 0, 0, True
    for number, failure in enumerate(FAILURES, 1):
        print(f"\n{number}. {failure.title}")
        _, amounts = _play(failure.without)
        _show("without", amounts, failure.why)
        wrong += _count_wrong(amounts, failure)
        told, amounts = _play(failure.guarded)
        shows = told.error.code if told.error is not None else told.origin
        _show("with", amounts, f"{shows}: {failure.means}" if shows == failure.shows else shows)
        wrong_with += _count_wrong(amounts, failure)
        is_expected = is_expected and shows == failure.shows
    print(f"\nWrong payments: {wrong} without Handrail, {wrong_with} with it. The code: handrail demo --explain 1")
    return 0 if is_expected and not wrong_with else 1


def _play(program: Callable[[Path], T]) -> tuple[T, list[int]]:
    """Run one program; what the model is told in the end, and the amounts that were paid."""
    with tempfile.TemporaryDirectory(prefix="handrail-demo-") as directory:
        told = program(Path(directory))
        return told, Bank(Path(directory)).list_amounts()


def _show(name: str, amounts: list[int], text: str) -> None:
    paid = f"{len(amounts)} payment{'s' * (len(amounts) != 1)}{', ' if amounts else ''}"
    total = f"{sum(amounts)} EUR" if amounts else ""
    print(f"   {name:<9}{paid + total:<22}{text}")


def _count_wrong(amounts: list[int], failure: Demonstration) -> int:
    """How many payments are of a wrong amount, too many or missing."""
    right = amounts.count(_AMOUNT)
    return len(amounts) - right + abs(right - failure.payments)


def _explain(number: int) -> None:
    """Show the two programs of a failure, as they run."""
    failure = FAILURES[number - 1]
    print(f"{number}. {failure.title}\n")
    print(f"CALL = {CALL}\nCONTEXT = {CONTEXT}")
    for program in (failure.without, failure.guarded):
        print(f"\n\n{inspect.getsource(program).rstrip()}")
    print(f"\n\nAll of it: {inspect.getsourcefile(failure.without)}")
