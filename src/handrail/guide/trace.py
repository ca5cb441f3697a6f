"""The trace of a guided turn: iteration → guideline → candidate → verdict → call → decision → result → reply."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from handrail.core.display import format_lines
from handrail.core.redact import Redactor
from handrail.core.secret_patterns import MAX_PIECE
from handrail.core.text import compact_json
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import shorten
from handrail.guide.compiled_agent import Guide
from handrail.guide.values import InvalidData, MissingData, ToolEvaluation, ToolInsights
from handrail.guide.verdicts import CheckedPlan

_MAX_OUTPUT = 300


class GuidelineTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was decided about one guideline in one iteration."""

    id: str
    condition: str = ""
    applies: bool = False
    reason: str = ""


class CallTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that was made for a candidate, and its result."""

    id: str
    arguments: Mapping[str, Any] = {}
    """The arguments, redacted."""
    decision: Decision | None = None
    ok: bool | None = None
    """None while the call waits for an approval."""
    error: str = ""
    """The code of the failure."""
    output: str = ""
    """The output, redacted and shortened."""
    duration_ms: float = 0.0


class CandidateTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One verdict on a candidate, after the checks, with the call that it led to."""

    tool: str
    state: str
    reason: str = ""
    guideline_ids: tuple[str, ...] = ()
    confirmation: str | None = None
    call: CallTrace | None = None


class IterationTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One iteration of planning."""

    number: int
    guidelines: tuple[GuidelineTrace, ...] = ()
    candidates: tuple[CandidateTrace, ...] = ()
    notes: tuple[str, ...] = ()
    """Other events, such as a judge that failed or a pending call that was withdrawn."""


class ReplyTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the reply was written."""

    text: str = ""
    guideline_ids: tuple[str, ...] = ()
    drafts: int = 0
    rejected: tuple[str, ...] = ()
    """Why drafts were dropped."""
    replaced: bool = False
    """Whether a plain text replaced the draft."""
    template: str = ""
    """The id of the template that was sent."""


class TurnTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that was decided in one turn."""

    session_id: str = ""
    turn: int = 0
    iterations: tuple[IterationTrace, ...] = ()
    reply: ReplyTrace = ReplyTrace()
    model_calls: int = 0

    def __repr__(self) -> str:
        calls = sum(candidate.call is not None for iteration in self.iterations for candidate in iteration.candidates)
        counts = f"{len(self.iterations)} iterations, {calls} calls, {self.model_calls} model calls"
        return f"<TurnTrace: session {shorten(self.session_id)!r}, turn {self.turn}: {counts}>"

    def __rich_repr__(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Make `rich` show what `repr` shows: by itself it would show every field, unredacted."""

    def _repr_html_(self) -> str:
        return format_lines(self.tree().splitlines())

    def why(self, call_id: str) -> str:
        """Explain in one line why a call was made; if it was in several iterations, the last one."""
        found = ""
        for iteration in self.iterations:
            for candidate in iteration.candidates:
                if candidate.call is not None and candidate.call.id == call_id:
                    found = self._explain(iteration, candidate, candidate.call)
        return found or f"{call_id}: no call of this turn"

    def _explain(self, iteration: IterationTrace, candidate: CandidateTrace, call: CallTrace) -> str:
        known = {guideline.id: guideline for guideline in self._iter_guidelines()}
        asked = ", ".join(
            f"{guideline_id} ({_clean_line(known[guideline_id].condition, 80)})"
            if guideline_id in known
            else guideline_id
            for guideline_id in candidate.guideline_ids
        )
        reason = f": {_clean_line(candidate.reason)}" if candidate.reason else ""
        decided = f"; policy: {_format_decision(call.decision)}" if call.decision else ""
        return (
            f"{candidate.tool}({_clean_line(compact_json(call.arguments))}) in iteration {iteration.number} "
            f"because of {asked or 'no guideline'}; {candidate.state}{reason}{decided}; {_format_outcome(call)}"
        )

    def _iter_guidelines(self) -> Iterator[GuidelineTrace]:
        for iteration in self.iterations:
            yield from iteration.guidelines

    def to_json(self) -> str:
        """The trace as JSON text."""
        return msgspec.json.encode(self).decode()

    def summary(self) -> tuple[str, ...]:
        """Summarize every guideline and verdict in one line each, with ids, names and codes only, for an audit log."""
        lines: list[str] = []
        for iteration in self.iterations:
            number = iteration.number
            lines += [
                f"{number} {guideline.id} {'applies' if guideline.applies else 'does not apply'}"
                for guideline in iteration.guidelines
            ]
            for candidate in iteration.candidates:
                line = f"{number} {candidate.tool} {candidate.state} {','.join(candidate.guideline_ids)}".rstrip()
                if (call := candidate.call) is not None:
                    decided = f" {call.decision.action}" if call.decision else ""
                    how = "waits" if call.ok is None else "ok" if call.ok else call.error
                    line = f"{line} {call.id}{decided} {how}"
                lines.append(line)
        replaced = " replaced" if self.reply.replaced else ""
        lines.append(f"reply {len(self.reply.text)} characters, {self.reply.drafts} drafts{replaced}")
        return tuple(lines)

    def tree(self) -> str:
        """The trace as lines for a terminal."""
        lines = [f"turn {self.turn} ({self.model_calls} model calls)"]
        for iteration in self.iterations:
            lines.append(f"├─ iteration {iteration.number}")
            lines += [f"│  ├─ {line}" for line in _format_iteration(iteration)]
        reply = self.reply
        how = " (plain text instead of the draft)" if reply.replaced else ""
        lines += [f"├─ draft dropped: {_clean_line(reason)}" for reason in reply.rejected]
        lines.append(f"└─ reply{how}: {_clean_line(reply.text) or '(none)'}")
        return "\n".join(lines)


def _format_iteration(iteration: IterationTrace) -> Iterator[str]:
    for guideline in iteration.guidelines:
        mark = "applies" if guideline.applies else "does not apply"
        reason = f": {_clean_line(guideline.reason)}" if guideline.reason else ""
        yield f"guideline {guideline.id} {mark} ({_clean_line(guideline.condition, 60)}){reason}"
    for candidate in iteration.candidates:
        by = f" for {', '.join(candidate.guideline_ids)}" if candidate.guideline_ids else ""
        confirmation = f", confirmation: {candidate.confirmation}" if candidate.confirmation else ""
        reason = f": {_clean_line(candidate.reason)}" if candidate.reason else ""
        yield f"{candidate.tool}{by}: {candidate.state}{confirmation}{reason}"
        if (call := candidate.call) is not None:
            yield f"   call {call.id} {_clean_line(compact_json(call.arguments))}"
            if call.decision is not None:
                yield f"   decision: {_format_decision(call.decision)}"
            yield f"   {_format_outcome(call)}"
    for note in iteration.notes:
        yield f"note: {_clean_line(note)}"


def _format_decision(decision: Decision) -> str:
    who = f" {decision.by}" if decision.by else ""
    rule = f" by {decision.rule}" if decision.rule else ""
    return f"{decision.action}{who}{rule}" + (f" ({decision.source})" if decision.source else "")


def _format_outcome(call: CallTrace) -> str:
    if call.ok is None:
        return "result: waits for an approval"
    if call.ok:
        return f"result: {_clean_line(call.output)}"
    return f"result: {call.error}: {_clean_line(call.output)}"


def _clean_line(text: str, limit: int = 160) -> str:
    """Return a text as one line without control characters."""
    line = " ".join("".join(char if char.isprintable() or char.isspace() else "�" for char in text).split())
    return line if len(line) <= limit else f"{line[:limit]}…"


class Recorder:
    """Records the decisions, calls and results of one turn."""

    def __init__(self, guide: Guide, redactor: Redactor) -> None:
        self._guide = guide
        self._redactor = redactor
        self._iterations: list[IterationTrace] = []
        self._evaluations: list[ToolEvaluation] = []
        self._missing: dict[str, tuple[MissingData, ...]] = {}
        self._invalid: dict[str, tuple[InvalidData, ...]] = {}
        self._calls: dict[str, tuple[int, int]] = {}
        """The indexes of the iteration and the candidate of each call."""
        self._recorded: dict[str, ToolResult] = {}
        """The results that are in the trace, by the ids of their calls."""

    # Recording.

    def start_iteration(self, number: int) -> None:
        """Start a new iteration."""
        self._iterations.append(IterationTrace(number=number))

    def record_guidelines(self, matches: Mapping[str, tuple[bool, str]]) -> None:
        """Record which guidelines apply, and why."""
        by_id = self._guide.by_id
        self._update(
            guidelines=tuple(
                GuidelineTrace(id=guideline_id, condition=by_id[guideline_id].condition, applies=applies, reason=reason)
                for guideline_id, (applies, reason) in matches.items()
            )
        )

    def record_verdicts(self, plan: CheckedPlan) -> None:
        """Record the verdicts of an iteration, after the checks."""
        self._evaluations += plan.evaluations
        for tool in {evaluation.tool for evaluation in plan.evaluations}:
            # Replaces what an earlier iteration reported for the tool.
            self._missing[tool] = tuple(entry for entry in plan.missing if entry.tool == tool)
            self._invalid[tool] = tuple(entry for entry in plan.invalid if entry.tool == tool)
        self._update(
            candidates=(
                *self._iterations[-1].candidates,
                *(
                    CandidateTrace(
                        tool=evaluation.tool,
                        state=evaluation.state,
                        reason=evaluation.reason,
                        guideline_ids=evaluation.guideline_ids,
                    )
                    for evaluation in plan.evaluations
                ),
            )
        )

    def record_failure(self, tool: str, reason: str, iteration: int) -> None:
        """Record a candidate without a usable verdict."""
        evaluation = ToolEvaluation(tool=tool, state="cannot_run", reason=reason, iteration=iteration)
        self._evaluations.append(evaluation)
        self._update(
            candidates=(*self._iterations[-1].candidates, CandidateTrace(tool=tool, state="cannot_run", reason=reason))
        )

    def record_call(
        self,
        call: ToolCall,
        arguments: Mapping[str, Any],
        *,
        reason: str = "",
        confirmation: str | None = None,
        is_new: bool = False,
    ) -> None:
        """Record a call that is about to run; with `is_new`, for a candidate of its own."""
        trace = CallTrace(id=call.id, arguments=self._redactor.arguments(arguments, max_chars=MAX_PIECE))
        candidates = list(self._iterations[-1].candidates)
        place = next(
            (
                place
                for place, candidate in enumerate(candidates)
                if not is_new
                and candidate.tool == call.name
                and candidate.state == "needs_to_run"
                and candidate.call is None
            ),
            None,
        )
        if place is None:
            candidates.append(
                CandidateTrace(tool=call.name, state="needs_to_run", reason=reason, guideline_ids=call.guideline_ids)
            )
            place = len(candidates) - 1
        candidates[place] = structs.replace(candidates[place], call=trace, confirmation=confirmation)
        self._calls[call.id] = (len(self._iterations) - 1, place)
        self._update(candidates=tuple(candidates))

    def record_result(self, result: ToolResult | None, call_id: str, decision: Decision | None) -> None:
        """Record the result of a call; None if it waits for an approval."""
        if call_id not in self._calls or (result is not None and self._recorded.get(call_id) is result):
            return
        if result is not None:
            self._recorded[call_id] = result
        number, place = self._calls[call_id]
        candidates = list(self._iterations[number].candidates)
        call = candidates[place].call
        assert call is not None
        call = structs.replace(call, decision=decision or call.decision)
        if result is not None:
            text = result.error.message if result.error else result.for_model()
            call = structs.replace(
                call,
                ok=result.error is None,
                error=result.error.code if result.error else "",
                output=shorten(self._redactor.text(text[: 4 * _MAX_OUTPUT]), _MAX_OUTPUT),
                duration_ms=round(result.duration_ms, 3),
            )
        candidates[place] = structs.replace(candidates[place], call=call)
        self._iterations[number] = structs.replace(self._iterations[number], candidates=tuple(candidates))

    def add_note(self, text: str) -> None:
        """Add a note to the current iteration."""
        if not self._iterations:
            self.start_iteration(0)
        self._update(notes=(*self._iterations[-1].notes, text))

    def _update(self, **fields: Any) -> None:
        self._iterations[-1] = structs.replace(self._iterations[-1], **fields)

    # Reading.

    def build_insights(self, candidates: Iterable[str]) -> ToolInsights:
        """Build the insights; only tools that are still candidates report missing and invalid data."""
        current = list(candidates)
        return ToolInsights(
            evaluations=tuple(self._evaluations),
            missing_data=tuple(entry for tool in current for entry in self._missing.get(tool, ())),
            invalid_data=tuple(entry for tool in current for entry in self._invalid.get(tool, ())),
        )

    def build_trace(self, *, session_id: str, turn: int, reply: ReplyTrace, model_calls: int) -> TurnTrace:
        """Build the trace so far."""
        return TurnTrace(
            session_id=session_id,
            turn=turn,
            iterations=tuple(self._iterations),
            reply=reply,
            model_calls=model_calls,
        )
