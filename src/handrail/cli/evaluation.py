"""`handrail eval`: measures how well a provider calls tools, on a fixed set of prompts."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from handrail.cli.provider_choice import PROVIDERS, choose_provider
from handrail.guide.judges import make_judge
from handrail.providers.provider import Provider
from handrail.testing.evaluations import (
    EvaluationReport,
    GuidedCase,
    GuidedReport,
    GuidedScore,
    Score,
    Totals,
    evaluate,
    evaluate_guided,
    load_guided_cases,
    load_prompts,
)

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="WHAT", required=True)
    tools = actions.add_parser(
        "tools", help="count right tools, right arguments and false calls, on a fixed set of prompts"
    )
    guided = actions.add_parser(
        "guided", help="count right guidelines, calls and insights, on the cases of guided calling that need judgement"
    )
    for command in (tools, guided):
        command.add_argument(
            "--provider",
            choices=PROVIDERS,
            metavar="NAME",
            help=f"{', '.join(PROVIDERS)} (default: the first that the environment configures)",
        )
        command.add_argument(
            "--model", metavar="MODEL", help="the provider's model; for the embedded provider a name or a path"
        )
        command.add_argument("--limit", type=int, metavar="N", help="run only N of them, evenly spread over the set")
        command.add_argument("--verbose", action="store_true", help="print every one that got a wrong response")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if options.limit is not None and options.limit < 1:
        print(f"--limit must be at least 1, got {options.limit}.", file=sys.stderr)
        return 2
    if options.action == "guided":
        return _run_guided(options)
    provider = _choose(options.provider, options.model)
    prompts = _sample(load_prompts(), options.limit)
    report = asyncio.run(evaluate(provider, prompts, progress=_Progress(len(prompts))))
    print(format_table(report))
    for score in report.scores if options.verbose else ():
        if not (score.has_right_arguments or (score.has_right_tool and score.prompt.tool is None)):
            print(_format_wrong(score))
    return 0


def _run_guided(options: argparse.Namespace) -> int:
    provider = _choose(options.provider, options.model)
    cases = _sample(load_guided_cases(), options.limit)
    report = asyncio.run(_evaluate_guided(provider, cases))
    print(report.judge)
    for name, count in report.totals().items():
        print(f"  {name:<18}{count:>5}")
    for score in report.scores if options.verbose else ():
        if not (score.has_right_matches and score.has_right_calls and score.has_right_insights):
            print(_format_wrong_case(score))
    return 0


async def _evaluate_guided(provider: Provider, cases: Sequence[GuidedCase]) -> GuidedReport:
    try:
        progress = _Progress(len(cases))
        return await evaluate_guided(make_judge(provider), cases, name=provider.name, progress=progress)
    finally:
        if (close := getattr(provider, "aclose", None)) is not None:
            await close()


def _format_wrong_case(score: GuidedScore) -> str:
    calls = ", ".join(f"{call.tool} {dict(call.arguments)}" for call in score.calls) or "no call"
    found = f"guidelines {list(score.matches)}, {calls}, missing {list(score.missing)}, invalid {list(score.invalid)}"
    return f"  {score.case.name} ({score.case.message!r}): {score.error or found}"


def format_table(report: EvaluationReport) -> str:
    """Format the totals as a table of plain text."""
    head = (
        f"{report.provider:<28}{'prompts':>8}{'right tool':>13}{'right arguments':>17}{'false calls':>13}{'errors':>8}"
    )
    return "\n".join([head, _format_row("tuned", report.tuned), _format_row("held out", report.held_out)])


def _format_row(name: str, totals: Totals) -> str:
    no_call = totals.prompts - totals.to_call
    return (
        f"{name:<28}{totals.prompts:>8}{f'{totals.right_tool}/{totals.prompts}':>13}"
        f"{f'{totals.right_arguments}/{totals.to_call}':>17}{f'{totals.false_calls}/{no_call}':>13}{totals.errors:>8}"
    )


def _format_wrong(score: Score) -> str:
    actual = ", ".join(f"{call.name} {call.arguments_json}" for call in score.calls) or score.error or "no call"
    return f"  {score.prompt.message!r}: got {actual}; expected {score.prompt.tool or 'no call'}"


def _sample(prompts: tuple[T, ...], limit: int | None) -> list[T]:
    """Take `limit` prompts, evenly spread: the set is ordered by tool."""
    if limit is None or limit >= len(prompts):
        return list(prompts)
    return [prompts[number * len(prompts) // limit] for number in range(limit)]


def _choose(name: str | None, model: str | None) -> Provider:
    """Choose the provider by name; without one, the embedded provider if the model is a file."""
    is_file = model is not None and Path(model).expanduser().is_file()
    return choose_provider(name="embedded" if name is None and is_file else name, model=model)


class _Progress:
    """Prints the progress: one line that is overwritten on a terminal, else a line per 10 prompts."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def __call__(self, _: object) -> None:
        self._done += 1
        if sys.stderr.isatty():
            end = "\n" if self._done == self._total else ""
            print(f"\r{self._done} of {self._total}", end=end, file=sys.stderr, flush=True)
        elif self._done % 10 == 0 or self._done == self._total:
            print(f"{self._done} of {self._total}", file=sys.stderr, flush=True)
