"""The trace of a guided turn: iteration → guideline → candidate → verdict → call → decision → result → reply."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from handrail.core.text import compact_json
from handrail.core.values import Decision


class GuidelineTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was decided about one guideline in one iteration."""

    id: str
    condition: str = ""
    applies: bool = False
    reason: str = ""


class CallTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that was made for a candidate, and what became of it."""

    id: str
    arguments: Mapping[str, Any] = {}
    """Redacted."""
    decision: Decision | None = None
    ok: bool | None = None
    """None while the call waits for an approval."""
    error: str = ""
    """The code of the failure."""
    output: str = ""
    """Redacted, and shortened."""
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
    """One round of planning."""

    number: int
    guidelines: tuple[GuidelineTrace, ...] = ()
    candidates: tuple[CandidateTrace, ...] = ()
    notes: tuple[str, ...] = ()
    """What else happened: a judge that failed, a pending call that ended."""


class ReplyTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the reply was made."""

    text: str = ""
    guideline_ids: tuple[str, ...] = ()
    drafts: int = 0
    rejected: tuple[str, ...] = ()
    """Why drafts were dropped."""
    replaced: bool = False
    """Whether the text is a plain one instead of the judge's."""


class TurnTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that was decided in one turn."""

    session_id: str = ""
    turn: int = 0
    iterations: tuple[IterationTrace, ...] = ()
    reply: ReplyTrace = ReplyTrace()
    model_calls: int = 0

    def why(self, call_id: str) -> str:
        """Why a call was made, in one line; the last thing that is known of it, if it was in several iterations."""
        found = ""
        for iteration in self.iterations:
            for one in iteration.candidates:
                if one.call is not None and one.call.id == call_id:
                    found = self._why(iteration, one, one.call)
        return found or f"{call_id}: no call of this turn"

    def _why(self, iteration: IterationTrace, candidate: CandidateTrace, call: CallTrace) -> str:
        known = {one.id: one for one in self._guidelines()}
        asked = ", ".join(
            f"{one} ({_line(known[one].condition, 80)})" if one in known else one for one in candidate.guideline_ids
        )
        reason = f": {_line(candidate.reason)}" if candidate.reason else ""
        decided = f"; policy: {_decision(call.decision)}" if call.decision else ""
        return (
            f"{candidate.tool}({_line(compact_json(call.arguments))}) in iteration {iteration.number} "
            f"because of {asked or 'no guideline'}; {candidate.state}{reason}{decided}; {_outcome(call)}"
        )

    def _guidelines(self) -> Iterator[GuidelineTrace]:
        for iteration in self.iterations:
            yield from iteration.guidelines

    def to_json(self) -> str:
        """The trace as JSON text."""
        return msgspec.json.encode(self).decode()

    def summary(self) -> tuple[str, ...]:
        """One line for every guideline and verdict, with ids, names and codes only: what an audit may keep."""
        lines: list[str] = []
        for iteration in self.iterations:
            number = iteration.number
            lines += [
                f"{number} {one.id} {'applies' if one.applies else 'does not apply'}" for one in iteration.guidelines
            ]
            for one in iteration.candidates:
                line = f"{number} {one.tool} {one.state} {','.join(one.guideline_ids)}".rstrip()
                if (call := one.call) is not None:
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
            lines += [f"│  ├─ {line}" for line in _iteration_lines(iteration)]
        reply = self.reply
        how = " (plain text instead of the draft)" if reply.replaced else ""
        lines += [f"├─ draft dropped: {_line(one)}" for one in reply.rejected]
        lines.append(f"└─ reply{how}: {_line(reply.text) or '(none)'}")
        return "\n".join(lines)


def _iteration_lines(iteration: IterationTrace) -> Iterator[str]:
    for guideline in iteration.guidelines:
        mark = "applies" if guideline.applies else "does not apply"
        reason = f": {_line(guideline.reason)}" if guideline.reason else ""
        yield f"guideline {guideline.id} {mark} ({_line(guideline.condition, 60)}){reason}"
    for one in iteration.candidates:
        by = f" for {', '.join(one.guideline_ids)}" if one.guideline_ids else ""
        answer = f", confirmation: {one.confirmation}" if one.confirmation else ""
        reason = f": {_line(one.reason)}" if one.reason else ""
        yield f"{one.tool}{by}: {one.state}{answer}{reason}"
        if (call := one.call) is not None:
            yield f"   call {call.id} {_line(compact_json(call.arguments))}"
            if call.decision is not None:
                yield f"   decision: {_decision(call.decision)}"
            yield f"   {_outcome(call)}"
    for note in iteration.notes:
        yield f"note: {_line(note)}"


def _decision(decision: Decision) -> str:
    who = f" {decision.by}" if decision.by else ""
    rule = f" by {decision.rule}" if decision.rule else ""
    return f"{decision.action}{who}{rule}" + (f" ({decision.source})" if decision.source else "")


def _outcome(call: CallTrace) -> str:
    if call.ok is None:
        return "result: waits for an approval"
    if call.ok:
        return f"result: {_line(call.output)} ({call.duration_ms:.0f} ms)"
    return f"result: {call.error}: {_line(call.output)}"


def _line(text: str, limit: int = 160) -> str:
    """A text on one line, without anything that could move a terminal's cursor."""
    line = " ".join("".join(char if char.isprintable() or char.isspace() else "�" for char in text).split())
    return line if len(line) <= limit else f"{line[:limit]}…"
