"""`handrail eval`: how well a provider calls tools, over the committed prompts."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from handrail.cli.choose import choose
from handrail.errors import HandrailError
from handrail.providers.provider import Provider
from handrail.testing.evaluations import Prompt, Score, Scores, Verdict, evaluate, load


def add(subparsers: Any) -> None:
    """Declare the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("eval", help="how well a provider calls tools")
    actions = parser.add_subparsers(dest="action", metavar="WHAT", required=True)
    tools = actions.add_parser("tools", help="right tools, right arguments and false calls, over the committed prompts")
    tools.add_argument("--provider", metavar="NAME", help="which provider; unless it is said, what the environment has")
    tools.add_argument("--model", metavar="MODEL", help="the provider's model; for the embedded one a name or a path")
    tools.add_argument("--limit", type=int, metavar="N", help="ask only N prompts, evenly taken from all of them")
    tools.add_argument("--verbose", action="store_true", help="show every prompt that went wrong")


def run(given: argparse.Namespace) -> int:
    """Run the command; the number is the exit code."""
    if given.limit is not None and given.limit < 1:
        print("--limit is 1 or more.", file=sys.stderr)
        return 2
    try:
        provider = _chosen(given.provider, given.model)
        prompts = _some(load(), given.limit)
        scores = asyncio.run(evaluate(provider, prompts, progress=_Progress(len(prompts))))
    except HandrailError as error:
        print(error.message, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(table(scores))
    for verdict in scores.verdicts if given.verbose else ():
        if not (verdict.right_arguments or (verdict.right_tool and verdict.prompt.tool is None)):
            print(_wrong(verdict))
    return 0


def table(scores: Scores) -> str:
    """The figures, in a table of plain text."""
    head = (
        f"{scores.provider:<28}{'prompts':>8}{'right tool':>13}{'right arguments':>17}{'false calls':>13}{'errors':>8}"
    )
    return "\n".join([head, _row("tuned", scores.tuned), _row("held out", scores.held_out)])


def _row(name: str, score: Score) -> str:
    quiet = score.prompts - score.to_call
    return (
        f"{name:<28}{score.prompts:>8}{f'{score.right_tool}/{score.prompts}':>13}"
        f"{f'{score.right_arguments}/{score.to_call}':>17}{f'{score.false_calls}/{quiet}':>13}{score.errors:>8}"
    )


def _wrong(verdict: Verdict) -> str:
    called = ", ".join(f"{call.name} {call.arguments_json}" for call in verdict.calls) or verdict.error or "no call"
    return f"  {verdict.prompt.say!r}: {called}; expected {verdict.prompt.tool or 'no call'}"


def _some(prompts: tuple[Prompt, ...], limit: int | None) -> list[Prompt]:
    """As many as the limit says, from the whole of the set: its order goes by tool."""
    if limit is None or limit >= len(prompts):
        return list(prompts)
    return [prompts[number * len(prompts) // limit] for number in range(limit)]


def _chosen(name: str | None, model: str | None) -> Provider:
    """The provider that was named; else the embedded one if the model is a file, else what `choose` makes of it."""
    local = model is not None and Path(model).expanduser().is_file()
    return choose(name="embedded" if name is None and local else name, model=model)


class _Progress:
    """One line that is written over where there is a terminal, and none elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def __call__(self, _: Verdict) -> None:
        self._done += 1
        if sys.stderr.isatty():
            end = "\n" if self._done == self._total else ""
            print(f"\r{self._done} of {self._total}", end=end, file=sys.stderr, flush=True)
        elif self._done % 10 == 0 or self._done == self._total:
            print(f"{self._done} of {self._total}", file=sys.stderr, flush=True)
