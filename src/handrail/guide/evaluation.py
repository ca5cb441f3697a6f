"""Turns a plan into the calls that run: a pure function, and the only place where a verdict becomes a call."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from msgspec import Struct

from handrail.core.text import encodable
from handrail.errors import ToolError, shorten
from handrail.guide.checking import (
    MAX_REASON,
    CheckedArguments,
    build_arguments_key,
    check_arguments,
    has_hidden_name,
    render_arguments,
)
from handrail.guide.definition import RANK, Guide
from handrail.guide.parameters import GuidedTool
from handrail.guide.values import InvalidData, MissingData, Plan, ToolEvaluation, ToolVerdict, VerdictState

NO_GUIDELINE_APPLIES = "no guideline that asks for it applies"
NOT_AVAILABLE = "it is not available: it has no handler, or its source is not connected"


class PlannedCall(Struct, frozen=True, kw_only=True):
    """A call that passed every check."""

    tool: str
    arguments: Mapping[str, Any]
    arguments_json: str
    key: str
    guideline_ids: tuple[str, ...]
    rank: int
    reason: str


class Situation(Struct, frozen=True, kw_only=True):
    """The state of the turn that a plan is checked against."""

    guide: Guide
    iteration: int
    shown: Set[str]
    """The tools that the judge was shown."""
    active: Set[str]
    """The active guidelines."""
    choices: Mapping[str, Mapping[str, Sequence[Any]] | None]
    """The choices of parameters, by tool; None if they could not be read."""
    done: Set[str]
    """The keys of calls that were made in this turn, or that the customer rejected."""
    known: Set[str]
    """Tools whose result was in the conversation before this turn."""
    ran: Set[str]
    """Tools that were called in this turn."""
    is_customers_word: Callable[[str], bool]


class Evaluation(Struct, frozen=True, kw_only=True):
    """The outcome of a plan: an evaluation of each tool, and the calls to run."""

    evaluations: tuple[ToolEvaluation, ...]
    calls: tuple[PlannedCall, ...]
    """The calls in the order in which they run, the most critical first."""
    missing: tuple[MissingData, ...]
    invalid: tuple[InvalidData, ...]


def select_guidelines(guide: Guide, tool: str, active: Set[str]) -> tuple[str, ...]:
    """Select the active guidelines that ask for a tool."""
    candidate = guide.candidates.get(tool)
    return tuple(one for one in candidate.guideline_ids if one in active) if candidate else ()


def list_candidates(guide: Guide, active: Set[str]) -> list[str]:
    """List the tools of the active guidelines, without duplicates, in the order of the guidelines."""
    return list(dict.fromkeys(tool for one in guide.guidelines if one.id in active for tool in one.tools))


def build_verdict_keys(plan: Plan, guide: Guide) -> dict[int, str]:
    """Build the key of every verdict with valid arguments, by its index."""
    found: dict[int, str] = {}
    for place, verdict in enumerate(plan.verdicts):
        key = build_call_key(guide, verdict.tool, verdict.arguments)
        if key is not None:
            found[place] = key
    return found


def build_call_key(guide: Guide, tool: str, arguments: Mapping[str, Any] | str) -> str | None:
    """Build the key of a call; None if its arguments are not valid, or there is no such tool."""
    known = guide.tools.get(tool)
    if known is None:
        return None
    try:
        return build_arguments_key(
            known, arguments if isinstance(arguments, str) else render_arguments(known, arguments)
        )
    except (ToolError, ValueError):
        return None


def evaluate(plan: Plan, situation: Situation, *, skip: Set[int] = frozenset()) -> Evaluation:
    """Check every verdict of a plan; `skip` has the indexes of those that were only about a pending call."""
    return _Evaluator(situation).run(plan, skip)


class _Evaluator:
    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._evaluations: list[ToolEvaluation] = []
        self._calls: dict[str, PlannedCall] = {}
        self._missing: list[MissingData] = []
        self._invalid: list[InvalidData] = []

    def run(self, plan: Plan, skip: Set[int]) -> Evaluation:
        judged: set[str] = set()
        for place, verdict in enumerate(plan.verdicts):
            judged.add(verdict.tool)
            if place not in skip:
                self._evaluate(verdict)
        self._add_unjudged(judged)
        calls = sorted(
            self._calls.values(), key=lambda call: call.rank
        )  # The sort is stable: equal ranks keep the judge's order.
        return Evaluation(
            evaluations=tuple(self._evaluations),
            calls=tuple(calls),
            missing=tuple(self._missing),
            invalid=tuple(self._invalid),
        )

    def _evaluate(self, verdict: ToolVerdict) -> None:
        here = self._situation
        tool = here.guide.tools.get(verdict.tool)
        if tool is None or verdict.tool not in here.shown:
            self._add_evaluation(shorten(verdict.tool, 100), "cannot_run", "it is not a candidate")
            return
        asked_by = select_guidelines(here.guide, tool.name, here.active)
        reason = _clean_reason(tool, verdict.reason)
        if not asked_by:
            self._add_evaluation(tool.name, "not_applicable", NO_GUIDELINE_APPLIES, verdict=verdict)
        elif verdict.state in ("data_already_in_context", "not_applicable"):
            self._add_evaluation(tool.name, verdict.state, reason, asked_by, verdict)
        elif not tool.runnable:
            self._add_evaluation(tool.name, "cannot_run", NOT_AVAILABLE, asked_by, verdict)
        else:
            self._check(tool, verdict, asked_by, reason)

    def _check(self, tool: GuidedTool, verdict: ToolVerdict, asked_by: tuple[str, ...], reason: str) -> None:
        here = self._situation
        choices = here.choices.get(tool.name, {})
        if choices is None:
            self._add_evaluation(
                tool.name, "cannot_run", "the choices of a parameter could not be read", asked_by, verdict
            )
            return
        checked = check_arguments(
            tool, verdict, guideline_ids=asked_by, choices=choices, is_customers_word=here.is_customers_word
        )
        if verdict.state == "cannot_run" or not checked.ok:
            self._missing += checked.missing
            self._invalid += checked.invalid
            why = "; ".join(filter(None, [reason, _describe_problems(checked)]))
            self._add_evaluation(tool.name, "cannot_run", why, asked_by, verdict)
        elif checked.key in here.done:
            self._add_evaluation(tool.name, "data_already_in_context", "it was called in this turn", asked_by, verdict)
        elif checked.key in self._calls:  # Of identical calls only one runs.
            self._add_evaluation(
                tool.name, "data_already_in_context", "the same call is already planned", asked_by, verdict
            )
        else:
            self._add_call(tool, checked, asked_by, reason)
            self._add_evaluation(tool.name, "needs_to_run", reason, asked_by, verdict)

    def _add_call(self, tool: GuidedTool, checked: CheckedArguments, asked_by: tuple[str, ...], reason: str) -> None:
        by_id = self._situation.guide.by_id
        self._calls[checked.key] = PlannedCall(
            tool=tool.name,
            arguments=checked.arguments,
            arguments_json=checked.arguments_json,
            key=checked.key,
            guideline_ids=asked_by,
            rank=min(RANK[by_id[one].criticality] for one in asked_by),
            reason=reason,
        )

    def _add_unjudged(self, judged: set[str]) -> None:
        """Add the candidates without a verdict: one that needs no inference runs, unless its result is known."""
        here = self._situation
        for name in list_candidates(here.guide, here.active):
            if name in judged:
                continue
            tool = here.guide.tools[name]
            asked_by = select_guidelines(here.guide, name, here.active)
            if name in here.ran:
                self._add_evaluation(name, "data_already_in_context", "it was called in this turn", asked_by)
                continue
            if not tool.needs_no_inference:
                if name in here.shown:
                    state: VerdictState = "not_applicable" if tool.runnable else "cannot_run"
                    reason = "the judge gave no verdict" if tool.runnable else NOT_AVAILABLE
                    self._add_evaluation(name, state, reason, asked_by)
                continue
            key = build_arguments_key(tool, "{}")
            if key in here.done or name in here.known:
                self._add_evaluation(name, "data_already_in_context", "its result is already there", asked_by)
                continue
            self._add_call(tool, CheckedArguments(key=key), asked_by, "it needs no arguments")
            self._add_evaluation(name, "needs_to_run", "it needs no arguments", asked_by)

    def _add_evaluation(
        self,
        tool: str,
        state: VerdictState,
        reason: str,
        guideline_ids: tuple[str, ...] = (),
        verdict: ToolVerdict | None = None,
    ) -> None:
        self._evaluations.append(
            ToolEvaluation(
                tool=tool,
                state=state,
                arguments=verdict.arguments if verdict else {},
                reason=reason,
                guideline_ids=guideline_ids,
                iteration=self._situation.iteration,
            )
        )


def _clean_reason(tool: GuidedTool, reason: str) -> str:
    """Return the judge's reason, unless it names a hidden parameter."""
    return "" if has_hidden_name(tool, reason) else encodable(shorten(reason, MAX_REASON))


def _describe_problems(checked: CheckedArguments) -> str:
    parts = [checked.error]
    if checked.missing:
        parts.append(f"missing: {', '.join(one.parameter for one in checked.missing)}")
    if checked.invalid:
        parts.append(f"invalid: {', '.join(one.parameter for one in checked.invalid)}")
    return "; ".join(filter(None, parts))
