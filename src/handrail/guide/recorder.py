"""Recording a guided turn: what was decided, as the trace and as the insights."""

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
    """Collects what happens in one turn."""

    def __init__(self, guide: Guide, redactor: Redactor) -> None:
        self._guide = guide
        self._redactor = redactor
        self._iterations: list[IterationTrace] = []
        self._evaluations: list[ToolEvaluation] = []
        self._missing: dict[str, tuple[MissingData, ...]] = {}
        self._invalid: dict[str, tuple[InvalidData, ...]] = {}
        self._calls: dict[str, tuple[int, int]] = {}
        """Where each call is: the iteration and the candidate."""

    # What happens.

    def begin(self, number: int) -> None:
        """A new iteration."""
        self._iterations.append(IterationTrace(number=number))

    def guidelines(self, said: Mapping[str, tuple[bool, str]]) -> None:
        """Which guidelines apply, and why."""
        by_id = self._guide.by_id
        self._change(
            guidelines=tuple(
                GuidelineTrace(id=one, condition=by_id[one].condition, applies=applies, reason=reason)
                for one, (applies, reason) in said.items()
            )
        )

    def evaluated(self, evaluation: Evaluation) -> None:
        """The verdicts of an iteration, after the checks."""
        self._evaluations += evaluation.evaluations
        for tool in {one.tool for one in evaluation.evaluations}:
            # What an earlier iteration missed, this one has decided anew.
            self._missing[tool] = tuple(one for one in evaluation.missing if one.tool == tool)
            self._invalid[tool] = tuple(one for one in evaluation.invalid if one.tool == tool)
        self._change(
            candidates=(
                *self._iterations[-1].candidates,
                *(
                    CandidateTrace(tool=one.tool, state=one.state, reason=one.reason, guideline_ids=one.guideline_ids)
                    for one in evaluation.evaluations
                ),
            )
        )

    def cannot_run(self, tool: str, reason: str, iteration: int) -> None:
        """A candidate about which there is no usable verdict."""
        one = ToolEvaluation(tool=tool, state="cannot_run", reason=reason, iteration=iteration)
        self._evaluations.append(one)
        self._change(
            candidates=(*self._iterations[-1].candidates, CandidateTrace(tool=tool, state="cannot_run", reason=reason))
        )

    def call(
        self, call: ToolCall, arguments: Mapping[str, Any], *, reason: str = "", confirmation: str | None = None
    ) -> None:
        """A call is about to be made."""
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
        self._change(candidates=tuple(candidates))

    def result(self, result: ToolResult | None, call_id: str, decision: Decision | None) -> None:
        """What became of a call; None if it waits for an approval."""
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

    def note(self, text: str) -> None:
        """Anything else that matters."""
        if not self._iterations:
            self.begin(0)
        self._change(notes=(*self._iterations[-1].notes, text))

    def _change(self, **fields: Any) -> None:
        self._iterations[-1] = structs.replace(self._iterations[-1], **fields)

    # What is known at the end.

    def insights(self, candidates: Iterable[str]) -> ToolInsights:
        """The insights, of which only those about tools that are still candidates ask for something."""
        current = list(candidates)
        return ToolInsights(
            evaluations=tuple(self._evaluations),
            missing_data=tuple(one for tool in current for one in self._missing.get(tool, ())),
            invalid_data=tuple(one for tool in current for one in self._invalid.get(tool, ())),
        )

    def trace(self, *, session_id: str, turn: int, reply: ReplyTrace, model_calls: int) -> TurnTrace:
        """The trace so far."""
        return TurnTrace(
            session_id=session_id,
            turn=turn,
            iterations=tuple(self._iterations),
            reply=reply,
            model_calls=model_calls,
        )

    def states(self, number: int) -> dict[str, str]:
        """The last state of every candidate of an iteration."""
        return {one.tool: one.state for one in self._evaluations if one.iteration == number}
