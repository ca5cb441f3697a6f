"""The ledger's state table as a model: what must be answered to a call, given everything that was done before.

Written from the table of the design, not from the code: it has no clock, no tasks and no database.
"""

from dataclasses import dataclass, field
from typing import Literal

Ending = Literal["ok", "refuses", "crashes before", "crashes after", "hangs before", "hangs after", "is cancelled"]
"""How a handler ends; before or after its effect."""

AFTER: frozenset[Ending] = frozenset({"ok", "crashes after", "hangs after"})
"""The endings in which the effect took place."""

State = Literal["running", "committed", "failed", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One call as it arrives."""

    executor: int
    session: str
    id: str
    tool: str
    invoice: str
    amount: int
    turn: int
    ending: Ending = "ok"
    tells: bool = False
    """Whether `verify` knows what happened."""

    @property
    def place(self) -> tuple[str, str]:
        return self.session, self.id

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.tool, self.invoice, self.amount

    @property
    def key(self) -> tuple[str, str]:
        return self.tool, self.invoice


@dataclass(kw_only=True)
class Line:
    """One entry of the ledger."""

    wanted: Wanted
    repeat: int
    state: State = "running"
    said: str | None = None
    """The text or the code that was answered."""
    happened: bool = False


@dataclass(kw_only=True)
class Question:
    """An approval that was asked for and not used."""

    asked: Wanted
    by: str
    repeat: int
    state: Literal["pending", "approved", "denied"] = "pending"
    token: str = ""

    @property
    def subject(self) -> tuple[object, ...]:
        return self.asked.session, self.asked.identity, self.by, self.repeat


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What must be answered."""

    says: str
    """The code of a failure, or the beginning of the output."""
    ok: bool = False
    replayed: bool = False
    ran: bool = False


@dataclass(kw_only=True)
class Model:
    """Everything that is known."""

    lines: list[Line] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    newest_run: Line | None = None

    def by_id(self, wanted: Wanted) -> Line | None:
        return next((line for line in self.lines if line.wanted.place == wanted.place), None)

    def newest(self, wanted: Wanted) -> Line | None:
        return next((line for line in reversed(self.lines) if line.wanted.key == wanted.key), None)

    def arrives(self, wanted: Wanted, *, dies: bool = False) -> Answer:
        """Read the table, and do what it says. `dies`: the process of the call is killed while its handler runs."""
        known = self.by_id(wanted)
        if known is not None:
            if known.wanted.identity != wanted.identity:
                return Answer(says="duplicate_call")
            if known.state in ("committed", "failed"):
                return self._replay(known, same_call=True)
            if known.state == "running":
                return Answer(says="in_progress")
            return self._find_out(known, wanted) or self._run_line(known, wanted, dies=dies)
        newest = self.newest(wanted)
        if newest is not None:
            is_same = newest.wanted.identity == wanted.identity
            if newest.state == "running":
                return Answer(says="in_progress")
            if newest.state == "unknown" and not is_same:  # Another's outcome says nothing about this one.
                return Answer(says="outcome_unknown")
            if newest.state == "unknown":
                return self._find_out(newest, wanted) or self._run_line(newest, wanted, dies=dies)
            elif newest.state == "committed" and (newest.wanted.session, newest.wanted.turn) == (
                wanted.session,
                wanted.turn,
            ):
                return self._replay(newest, same_call=False) if is_same else Answer(says="duplicate_call")
        return self._authorise(wanted, newest) or self._run(wanted, newest, dies=dies)

    def _replay(self, line: Line, *, same_call: bool) -> Answer:
        assert line.said is not None
        if line.state == "failed":
            return Answer(says=line.said, replayed=True)
        return Answer(says=line.said if same_call else "[Already done at ", ok=True, replayed=True)

    def _find_out(self, line: Line, wanted: Wanted) -> Answer | None:
        """Ask `verify`. None: nothing happened."""
        if not wanted.tells:
            return Answer(says="outcome_unknown")
        if not line.happened:
            return None
        line.state, line.said = "committed", "found "
        return Answer(says="found ", ok=True)

    def repeat_of(self, newest: Line | None) -> int:
        """Which repetition of the effect the next run is."""
        if newest is None:
            return 0
        return newest.repeat + 1 if newest.state == "committed" else newest.repeat

    def _authorise(self, wanted: Wanted, newest: Line | None) -> Answer | None:
        """None: it may run, and the approval is used up."""
        repeat = self.repeat_of(newest)
        by = "operator" if wanted.tool == "wire" else "customer" if repeat else None
        if by is None:
            return None
        question = Question(asked=wanted, by=by, repeat=repeat)
        # A denial is the answer to its own call, whatever else was done meanwhile, and to no other.
        of_call = (wanted.place, wanted.identity, by)
        if any(
            item.state == "denied" and (item.asked.place, item.asked.identity, item.by) == of_call
            for item in self.questions
        ):
            return Answer(says="permission_denied")
        known = next(
            (item for item in self.questions if item.state != "denied" and item.subject == question.subject), None
        )
        if known is None:
            self.questions.append(question)
            return Answer(says="approval_required")
        if known.state == "pending" or (by == "customer" and wanted.turn <= known.asked.turn):
            return Answer(says="approval_required")
        self.questions.remove(known)
        return None

    def _run(self, wanted: Wanted, newest: Line | None, *, dies: bool) -> Answer:
        line = Line(wanted=wanted, repeat=self.repeat_of(newest))
        self.lines.append(line)
        # What is claimed needs no answer any more.
        self.questions = [
            question
            for question in self.questions
            if question.state != "pending" or question.asked.place != wanted.place
        ]
        return self._run_line(line, wanted, dies=dies)

    def _run_line(self, line: Line, wanted: Wanted, *, dies: bool) -> Answer:
        """Run a call: its own entry, or one that it takes over because nothing happened."""
        self.newest_run = line
        line.state, line.happened = "running", wanted.ending in AFTER
        if dies:
            return Answer(says="", ran=True)
        if wanted.ending == "ok":
            line.state, line.said = "committed", f"paid {wanted.invoice}"
            return Answer(says=line.said, ok=True, ran=True)
        if wanted.ending == "refuses":
            line.state, line.said = "failed", "no_money"
            return Answer(says="no_money", ran=True)
        line.state = "unknown"
        found = self._find_out(line, wanted)
        if found is None:
            line.state = "failed"
            found = Answer(says="tool_execution_failed")
            line.said = found.says
        return Answer(says=found.says, ok=found.ok, ran=True)
