"""Where values come from: what the customer wrote, what the application knows, what tools returned in a conversation.

A rule with `from` asks it. It answers from indexes by value, which exist for the sources that some rule names; the rest
is only kept, within limits, and searched when a person is told where a value was first seen.
"""

import copy
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

from handrail.core.exact_words import DecimalMark, ExactNumber
from handrail.core.lazy_loading import LazyPattern
from handrail.core.provenance_records import (
    OutputForm,
    RecordKind,
    SourceKind,
    SourceTool,
    ValueRecord,
    ValueRecords,
    ValueSource,
)
from handrail.core.text import compact_json, encodable
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError

MAX_CHARS: Final = 4_000_000
"""Characters of results that are kept for one conversation, and as many of what the customer wrote."""
_MAX_NAMES: Final = 10_000
"""How many names (of tools, of cut outputs) are kept."""
_MAX_SESSIONS: Final = 1_000
DROPPED_OUTPUT: Final = "(This result was removed after the reply that used it.)"
"""What a history has in the place of an output that was meant for one response."""
_CUT: Final = LazyPattern(
    r"\n\[Cut: [\d,]+ of [\d,]+ characters are shown\.(?: Call read_more with handle='([\w-]+)'[^\n]*)?\]\Z"
)
_PAGE_REST: Final = LazyPattern(r"\n\[[\d,]+ more characters: offset=\d+\]\Z")
_PAGE_AFTER_END: Final = LazyPattern(r"\[The output ends at \d+\.\]")


class Provenance:
    """Where the values of one conversation come from; a rule with `from` asks it.

    A `ChatSession` and an `Agent` keep their own. A loop of your own makes one for each conversation, passes it in
    `ToolContext(provenance=…)`, and adds what the customer writes; the executor adds the results that it returns.
    """

    def __init__(self, *, decimal: DecimalMark | None = None, max_chars: int = MAX_CHARS) -> None:
        """`decimal` is the mark before the decimals of a number that the customer or a tool writes: with ".", the word
        1,200 is 1200; with ",", the word 1.200 is. Without it neither is a number, because nobody can tell.

        `max_chars` limits what is kept of the results, and of what the customer wrote: the oldest is forgotten first,
        and a rule about it is in doubt.
        """
        if decimal not in (None, ".", ","):
            raise ConfigError(f"decimal must be '.', ',' or None, got {decimal!r}.")
        if isinstance(max_chars, bool) or not isinstance(max_chars, int) or max_chars < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"max_chars must be at least 1, got {max_chars!r}.")
        self.decimal: DecimalMark | None = decimal
        self.session_id: str | None = None
        """The conversation that it belongs to; set by the first that uses it."""
        self._max_chars = max_chars
        self._number = 0
        self._application = self._build_records()
        self._forget_conversation()
        self._approver: tuple[SourceKind, frozenset[str | ExactNumber]] | None = None

    def _build_records(self) -> ValueRecords:
        return ValueRecords(max_chars=self._max_chars, decimal=self.decimal)

    def _forget_conversation(self) -> None:
        self._customer = self._build_records()
        self._quoted = self._build_records()
        """Of no source: it is only searched."""
        self._results = self._build_records()
        self._calls: dict[str, ValueRecord | None] = {}
        """Calls whose result was added; None if it is not kept."""
        self._cut: dict[str, tuple[SourceTool, OutputForm, str]] = {}
        """The tool, the form and the arguments of outputs that were cut, by the handle that `read_more` takes."""
        self._incomplete: dict[SourceTool, None] = {}
        """Tools of which something was cut, dropped or forgotten."""
        self._is_customer_incomplete = False

    def __repr__(self) -> str:
        texts, results = sum(1 for _ in self._customer), sum(1 for _ in self._results)
        return f"Provenance({texts} texts of the customer, {results} results)"

    def __eq__(self, other: object) -> bool:
        """Whether the same values come from the same sources."""
        return isinstance(other, Provenance) and self._list_facts() == other._list_facts()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _list_facts(self) -> tuple[Any, ...]:
        results = sorted(
            (
                record.kind,
                record.call_id,
                record.form,
                record.text,
                record.arguments_json,
                record.tool.name if record.tool else "",
            )
            for record in self._results
            if not record.is_dropped and record.turn is None
        )
        return (
            *(self.decimal, results, [record.text for record in (*self._customer, *self._quoted)]),
            *(sorted(record.text for record in self._application), self._is_customer_incomplete),
        )

    # What is added.

    def bind(self, session_id: str) -> None:
        """Tie it to a conversation: one that belongs to another raises `ConfigError`."""
        if self.session_id is None:
            self.session_id = session_id
        elif self.session_id != session_id:
            raise ConfigError(
                f"provenance must be a new Provenance() for each conversation: this one belongs to session "
                f"{self.session_id!r}, and was passed to {session_id!r}."
            )

    def add_customer(self, text: str) -> None:
        """Add what the customer typed. Leave out what they pasted or forwarded: that is nobody's word."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"text must be a str, got {type(text).__name__}.")
        if self._customer.add(self._build_record("customer", encodable(text))):
            self._is_customer_incomplete = True

    def set_customer(self, texts: Sequence[str]) -> None:
        """Make these texts, in their order, all that the customer typed: for a history that somebody else keeps."""
        known = [record.text for record in self._customer]
        texts = [encodable(text) for text in texts]
        if texts[: len(known)] != known or self._is_customer_incomplete:
            self._customer, self._is_customer_incomplete, known = self._build_records(), False, []
        for text in texts[len(known) :]:
            self.add_customer(text)

    def mark_unknown(self, call_id: str, tool: SourceTool) -> None:
        """There was a result of this call that is not known here: a rule about its tool is in doubt."""
        if call_id not in self._calls:
            self._mark_incomplete(tool)

    def add_quoted(self, text: str) -> None:
        """Add what the customer pasted or forwarded. It is a source of nothing; a person who is asked about a value in
        it is told where it stands."""
        self._quoted.add(self._build_record("quoted", encodable(text)))

    def add_application(self, **values: Any) -> None:
        """Add values that your program knows, such as `account=user.iban`: strings, numbers, lists and objects."""
        try:
            text = compact_json(values)
        except ValueError as error:
            raise ConfigError(f"values of add_application() must be JSON values: {error}") from error
        self._application.add(self._build_record("application", text, form="data"))

    def add_result(self, call: ToolCall, result: ToolResult, tool: SourceTool, *, turn: int = 0) -> None:
        """Add the result of a call. The executor does so."""
        if result.error is not None:
            return
        if result.notice or result.origin == "joined":  # It quotes other arguments, or is another call's.
            self._mark_incomplete(tool)
            return
        lifespan = result.control.lifespan if result.control is not None else "session"
        form: OutputForm = "text" if isinstance(result.output, str) else "data"
        self._add_output(call, result.text, form, tool, turn if lifespan == "response" else None)

    def add_history_result(self, call: ToolCall, result: ToolResult, tool: SourceTool) -> None:
        """Add a result as a saved conversation has it."""
        if result.error is not None:
            return
        if result.form is None or result.output == DROPPED_OUTPUT:
            self._mark_incomplete(tool)
            return
        self._add_output(call, str(result.output or ""), result.form, tool, None)

    def drop_result(self, call_id: str) -> None:
        """Forget the result of a call, which was meant for one response only."""
        record = self._calls.get(call_id)
        if record is not None and record.tool is not None:
            record.is_dropped = True
            self._mark_incomplete(record.tool)

    def rebuild(self) -> None:
        """Forget the conversation before it is added again; what the application knows stays."""
        self._forget_conversation()

    def update_indexes(self, sources: Iterable[ValueSource]) -> None:
        """Index what was added for the sources that rules name, so that no decision has to."""
        for source in sources:
            if source.kind == "tool":
                self._results.update_index(source)

    def _build_record(self, kind: RecordKind, text: str, **options: Any) -> ValueRecord:
        self._number += 1
        return ValueRecord(kind, text, number=self._number, **options)

    def _add_output(self, call: ToolCall, text: str, form: OutputForm, tool: SourceTool, turn: int | None) -> None:
        if call.id and call.id in self._calls:
            return
        arguments = call.arguments_json
        if tool.reads_more:
            tool, form, arguments, text = self._read_page(tool, form, arguments, text)
        if (cut := _CUT.compiled.search(text)) is not None and form == "text":
            text = _drop_partial_word(text[: cut.start()])
            # Data that was cut is no text: a field of it would be read as words.
            cut_form: OutputForm = "data" if text[:1] in ("{", "[") else "text"
            if cut[1] and cut[1] not in self._cut and len(self._cut) < _MAX_NAMES:
                self._cut[cut[1]] = (tool, cut_form, arguments)
            self._mark_incomplete(tool)
            form = cut_form
        record = self._build_record(
            *("tool", text), form=form, tool=tool, call_id=call.id, arguments_json=arguments, turn=turn
        )
        forgotten = self._results.add(record)
        if call.id:
            self._calls[call.id] = record
        for old in forgotten:
            if old.tool is not None:
                self._mark_incomplete(old.tool)
                self._calls.pop(old.call_id, None)

    def _read_page(
        self, tool: SourceTool, form: OutputForm, arguments_json: str, text: str
    ) -> tuple[SourceTool, OutputForm, str, str]:
        """A page of an output that was cut: whose it is, and its text without what `read_more` says itself."""
        try:
            arguments: Any = json.loads(arguments_json)
            handle, offset = arguments.get("handle"), arguments.get("offset", 0)
        except (ValueError, RecursionError, AttributeError):
            handle, offset = None, 0
        known = self._cut.get(handle) if isinstance(handle, str) else None
        if known is None or _PAGE_AFTER_END.compiled.fullmatch(text):
            return tool, form, arguments_json, text
        whose, form, arguments_json = known
        if (rest := _PAGE_REST.compiled.search(text)) is not None:
            text = _drop_partial_word(text[: rest.start()])
        if offset != 0 and not text[:1].isspace():  # The word may have begun on the page before.
            text = text.split(None, 1)[1] if len(text.split(None, 1)) > 1 else ""
        return whose, form, arguments_json, text

    def _mark_incomplete(self, tool: SourceTool) -> None:
        if len(self._incomplete) < _MAX_NAMES:
            self._incomplete[tool] = None

    # What is asked.

    def is_from(self, value: str | ExactNumber, sources: Iterable[ValueSource], turn: int) -> bool | None:
        """Whether one of the sources vouches for the value; None if nobody can tell, because something is missing."""
        is_certain = True
        for source in sources:
            kind = source.kind
            if kind == "customer":
                outcome = self._customer.find(value, source, turn)
                is_certain = is_certain and not self._is_customer_incomplete
            elif kind == "tool":
                outcome = self._results.find(value, source, turn)
                if self._incomplete and outcome is not True and is_certain:
                    is_certain = all(source.find_path(tool) is None for tool in self._incomplete)
            elif kind == "application":
                outcome = self._application.find(value, source, turn)
            else:
                outcome = False
            if self._approver is not None and kind == self._approver[0] and value in self._approver[1]:
                outcome = True
            if outcome is True:
                return True
            is_certain = is_certain and outcome is not None
        return False if is_certain else None

    def with_approver(self, by: SourceKind, values: Iterable[str | ExactNumber]) -> Self:
        """The same, for one decision about arguments that an approver changed: these values come from them."""
        other = copy.copy(self)
        other._approver = (by, frozenset(values))
        return other

    def find_first(self, value: str | ExactNumber) -> ValueRecord | None:
        """Where a value was first seen; it looks through everything that is kept."""
        start = value.split(None, 1)[0] if isinstance(value, str) and value.strip() else ""
        records = sorted(
            (*self._application, *self._customer, *self._quoted, *self._results), key=lambda record: record.number
        )
        for record in records:
            if record.is_dropped or (start and record.form == "text" and start not in record.text):
                continue
            if record.vouches_for(value, record.turn or 0) and record.contains(value, self.decimal):
                return record
        return None


def _drop_partial_word(text: str) -> str:
    """A text that was cut, without its last word, which may not be whole."""
    if not text or text[-1].isspace():
        return text
    head, _, _ = text.rpartition(text.split()[-1])
    return head


class SessionProvenances:
    """The provenances of sessions whose history another framework keeps, by tenant and session."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[str | None, str], Provenance] = OrderedDict()

    def get(self, tenant_id: str | None, session_id: str) -> Provenance:
        """The provenance of a session, a new one if there is none yet; the least used one is forgotten."""
        key = tenant_id, session_id
        provenance = self._sessions.setdefault(key, Provenance())
        self._sessions.move_to_end(key)
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return provenance

    def forget_session(self, session_id: str) -> None:
        """Forget a session that has ended."""
        for key in [key for key in self._sessions if key[1] == session_id]:
            del self._sessions[key]
