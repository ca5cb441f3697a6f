"""Records a guided turn, and builds its trace and its insights."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from handrail.core.redact import Redactor
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import shorten
from handrail.guide.definition import Guide
from handrail.guide.evaluation import Evaluation
from handrail.guide.trace import CallTrace, CandidateTrace, GuidelineTrace, IterationTrace, ReplyTrace, TurnTrace
from handrail.guide.values import InvalidData, MissingData, ToolEvaluation, ToolInsights

_MAX_OUTPUT = 300


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

    # Recording.

    def start_iteration(self, number: int) -> None:
        """Start a new iteration."""
        self._iterations.append(IterationTrace(number=number))

    def record_guidelines(self, matches: Mapping[str, tuple[bool, str]]) -> None:
        """Record which guidelines apply, and why."""
        by_id = self._guide.by_id
        self._update(
            guidelines=tuple(
                GuidelineTrace(id=one, condition=by_id[one].condition, applies=applies, reason=reason)
                for one, (applies, reason) in matches.items()
            )
        )

    def record_evaluation(self, evaluation: Evaluation) -> None:
        """Record the verdicts of an iteration, after the checks."""
        self._evaluations += evaluation.evaluations
        for tool in {one.tool for one in evaluation.evaluations}:
            # Replaces what an earlier iteration reported for the tool.
            self._missing[tool] = tuple(one for one in evaluation.missing if one.tool == tool)
            self._invalid[tool] = tuple(one for one in evaluation.invalid if one.tool == tool)
        self._update(
            candidates=(
                *self._iterations[-1].candidates,
                *(
                    CandidateTrace(tool=one.tool, state=one.state, reason=one.reason, guideline_ids=one.guideline_ids)
                    for one in evaluation.evaluations
                ),
            )
        )

    def record_failure(self, tool: str, reason: str, iteration: int) -> None:
        """Record a candidate without a usable verdict."""
        one = ToolEvaluation(tool=tool, state="cannot_run", reason=reason, iteration=iteration)
        self._evaluations.append(one)
        self._update(
            candidates=(*self._iterations[-1].candidates, CandidateTrace(tool=tool, state="cannot_run", reason=reason))
        )

    def record_call(
        self, call: ToolCall, arguments: Mapping[str, Any], *, reason: str = "", confirmation: str | None = None
    ) -> None:
        """Record a call that is about to run."""
        trace = CallTrace(id=call.id, arguments=self._redactor.value(dict(arguments)))
        candidates = list(self._iterations[-1].candidates)
        place = next(
            (
                place
                for place, one in enumerate(candidates)
                if confirmation is None and one.tool == call.name and one.state == "needs_to_run" and one.call is None
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
        if call_id not in self._calls:
            return
        number, place = self._calls[call_id]
        candidates = list(self._iterations[number].candidates)
        call = candidates[place].call
        assert call is not None
        call = structs.replace(call, decision=decision or call.decision)
        if result is not None:
            text = result.error.message if result.error else result.for_model()
            call = structs.replace(
                call,
                ok=result.ok,
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
            missing_data=tuple(one for tool in current for one in self._missing.get(tool, ())),
            invalid_data=tuple(one for tool in current for one in self._invalid.get(tool, ())),
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

    def get_states(self, number: int) -> dict[str, str]:
        """Return the last state of every candidate of an iteration."""
        return {one.tool: one.state for one in self._evaluations if one.iteration == number}
