"""Where values come from: what the customer wrote, what the application knows, what tools returned in a conversation.

A rule with `from` asks it. It answers from indexes by value, which exist for the sources that some rule names; the rest
is only kept, within limits, and searched when a person is told where a value was first seen.
"""

import copy
import json
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, Literal, Self, TypeAlias, cast

from msgspec import Struct

from handrail.core.exact_words import (
    AROUND,
    DecimalMark,
    ExactNumber,
    collapse_spaces,
    is_searchable,
    list_leaves,
    list_words,
    stands_in,
)
from handrail.core.patterns import LazyPattern
from handrail.core.text import compact_json, encodable
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError

SourceKind: TypeAlias = Literal["customer", "application", "operator", "tool"]
RecordKind: TypeAlias = Literal["customer", "application", "tool", "quoted"]
OutputForm: TypeAlias = Literal["text", "data"]
FieldPath: TypeAlias = tuple[str, ...]

MAX_CHARS: Final = 4_000_000
"""Characters of results that are kept for one conversation, and as many of what the customer wrote."""
_RECORD_CHARS: Final = 200
"""What a record takes beside its text."""
_MAX_CANDIDATES: Final = 200
"""How many texts are searched for a value of several words; if there are more, nobody can tell."""
_MAX_NAMES: Final = 10_000
"""How many names (of tools, of cut outputs) are kept."""
_MAX_SESSIONS: Final = 1_000
_MIN_PIECE: Final = 3
DROPPED_OUTPUT: Final = "(This result was removed after the reply that used it.)"
"""What a history has in the place of an output that was meant for one response."""
_CUT: Final = LazyPattern(
    r"\n\[Cut: [\d,]+ of [\d,]+ characters are shown\.(?: Call read_more with handle='([\w-]+)'[^\n]*)?\]\Z"
)
_PAGE_REST: Final = LazyPattern(r"\n\[[\d,]+ more characters: offset=\d+\]\Z")
_PAGE_AFTER_END: Final = LazyPattern(r"\[The output ends at \d+\.\]")
_PIECE: Final = LazyPattern(r"[^\W_]+")
_NUMERAL: Final = LazyPattern(r"[0-9]+(?:\.[0-9]+)?")


class SourceTool(Struct, frozen=True):
    """The tool of a result: what selects it as a source."""

    name: str
    source: str = ""
    tags: frozenset[str] = frozenset()
    reads_more: bool = False
    """Whether it is the executor's own `read_more`: its pages belong to the call that was cut."""


class ValueSource(Struct, frozen=True):
    """A source that a rule names: `customer`, `application`, `operator`, or results of tools."""

    text: str
    """As it is written in the rule."""
    kind: SourceKind
    find_path: Callable[[SourceTool], FieldPath | None] = lambda tool: None
    """Which field of a tool's output it is: () for the whole output, None if it is not about the tool."""


class ValueRecord:
    """One text, or one piece of data, that values can come from."""

    __slots__ = (
        *("_collapsed", "_own", "arguments_json", "call_id", "form"),
        *("is_dropped", "kind", "number", "text", "tool", "turn"),
    )

    def __init__(
        self,
        kind: RecordKind,
        text: str,
        *,
        number: int,
        form: OutputForm = "text",
        tool: SourceTool | None = None,
        call_id: str = "",
        arguments_json: str = "",
        turn: int | None = None,
    ) -> None:
        self.kind: RecordKind = kind
        self.text = text
        """Data is written as JSON."""
        self.number = number
        self.form: OutputForm = form
        self.tool = tool
        self.call_id = call_id
        self.arguments_json = arguments_json
        """What the model sent with the call that this is the result of."""
        self.turn = turn
        """The only turn in which it counts; None: it counts in every turn."""
        self.is_dropped = False
        self._collapsed: str | None = None
        self._own: _OwnArguments | None = None

    @property
    def collapsed(self) -> str:
        """The text with single spaces."""
        if self._collapsed is None:
            self._collapsed = collapse_spaces(self.text)
        return self._collapsed

    def parse(self) -> Any:
        """The data; None if it cannot be read."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    def vouches_for(self, value: str | ExactNumber, turn: int) -> bool:
        """Whether it counts in this turn, and the value does not stand in the arguments of its own call."""
        if self.is_dropped or (self.turn is not None and self.turn != turn):
            return False
        if not self.arguments_json:
            return True
        if self._own is None:
            self._own = _OwnArguments(self.arguments_json)
        return not self._own.have(value)

    def contains(self, value: str | ExactNumber, decimal: DecimalMark | None) -> bool:
        """Whether the value stands in it at all: as a word, a number, a field, or in the text of a field."""
        if self.form == "data":
            leaves = list(list_leaves(self.parse()))
            if value in leaves:
                return True
            texts = [collapse_spaces(leaf) for leaf in leaves if isinstance(leaf, str)]
        else:
            texts = [self.collapsed]
        if isinstance(value, str):
            phrase = collapse_spaces(value)
            return is_searchable(value) and any(stands_in(phrase, text) for text in texts)
        return any(number == value for text in texts for _, number in list_words(text.split(), decimal))


class _OwnArguments:
    """What stands in the arguments of a call: its result says nothing new about it.

    Compared without case, and in pieces, so that a tool that joins two arguments does not count as their source.
    """

    __slots__ = ("_numbers", "_pieces", "_text")

    def __init__(self, arguments_json: str) -> None:
        try:
            value: Any = json.loads(arguments_json)
        except (ValueError, RecursionError):
            value = arguments_json
        leaves = list(list_leaves(value, with_names=True))
        self._text = _fold("\n".join(map(str, leaves)))
        self._pieces = frozenset(_PIECE.compiled.findall(self._text))
        numbers = {Decimal(numeral) for numeral in _NUMERAL.compiled.findall(self._text) if len(numeral) < 100}
        self._numbers = numbers.union(leaf for leaf in leaves if not isinstance(leaf, str))

    def have(self, value: str | ExactNumber) -> bool:
        if not isinstance(value, str):
            return value in self._numbers
        pieces = _PIECE.compiled.findall(_fold(value))
        return all(piece in (self._text if len(piece) >= _MIN_PIECE else self._pieces) for piece in pieces)


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def list_fields(value: Any, path: FieldPath) -> Iterator[Any]:
    """Yield what stands under a field of data; each element of a list has its own fields."""
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        found, depth = stack.pop()
        if depth == len(path):
            yield found
        elif isinstance(found, list):
            stack.extend((element, depth) for element in cast(list[Any], found))
        elif isinstance(found, dict) and path[depth] in found:
            stack.append((cast(dict[str, Any], found)[path[depth]], depth + 1))


class _Index:
    """What the records of one source have in them, by value."""

    __slots__ = ("_decimal", "leaves", "length", "numbers", "words")

    def __init__(self, decimal: DecimalMark | None) -> None:
        self._decimal: DecimalMark | None = decimal
        self.length = 0
        """How many records were looked at so far."""
        self.words: dict[str, list[ValueRecord]] = {}
        self.numbers: dict[ExactNumber, list[ValueRecord]] = {}
        self.leaves: dict[str | ExactNumber, list[ValueRecord]] = {}

    def add(self, record: ValueRecord, path: FieldPath) -> None:
        if record.form == "data":
            fields = list_fields(record.parse(), path)
            for leaf in {leaf for field in fields for leaf in list_leaves(field)}:
                self.leaves.setdefault(leaf, []).append(record)
        elif not path:  # A text has no fields.
            found = set(list_words(record.collapsed.split(), self._decimal))
            for word in {word for word, _ in found}:
                self.words.setdefault(word, []).append(record)
            for number in {number for _, number in found if number is not None}:
                self.numbers.setdefault(number, []).append(record)

    def find(self, value: str | ExactNumber, turn: int) -> bool | None:
        """Whether a record vouches for the value; None if it would take too long to find out."""
        for record in self.leaves.get(value, ()):
            if record.vouches_for(value, turn):
                return True
        if not isinstance(value, str):
            return any(record.vouches_for(value, turn) for record in self.numbers.get(value, ()))
        records = self.words.get(value)
        if records is not None:  # It has no white space in it, and no quotes around it.
            return is_searchable(value) and any(record.vouches_for(value, turn) for record in records)
        return self._find_phrase(value, turn) if self.words and len(value.split(None, 1)) > 1 else False

    def _find_phrase(self, value: str, turn: int) -> bool | None:
        """The same for a value of several words: only texts that have the rarest of its words are searched."""
        if not is_searchable(value):
            return False
        chunks = value.split()
        found: list[list[ValueRecord]] = []
        for chunk in chunks:
            if word := chunk.strip(AROUND):
                records = self.words.get(word)
                if records is None:
                    return False
                found.append(records)
        candidates: list[ValueRecord] = min(found, key=len) if found else []
        phrase = " ".join(chunks)
        for record in candidates[:_MAX_CANDIDATES]:
            if stands_in(phrase, record.collapsed) and record.vouches_for(phrase, turn):
                return True
        return None if len(candidates) > _MAX_CANDIDATES else False


class _Records:
    """Records in the order in which they came, the newest within a number of characters, with their indexes.

    They are kept in two halves: when the newer one is full, the older one is forgotten as a whole.
    """

    __slots__ = ("_chars", "_decimal", "_indexes", "_max_chars", "_older_indexes", "newer", "older")

    def __init__(self, *, max_chars: int, decimal: DecimalMark | None) -> None:
        self._max_chars = max_chars // 2
        self._decimal: DecimalMark | None = decimal
        self.newer: list[ValueRecord] = []
        self.older: list[ValueRecord] = []
        self._indexes: dict[str, _Index] = {}
        self._older_indexes: dict[str, _Index] = {}
        self._chars = 0

    def __iter__(self) -> Iterator[ValueRecord]:
        yield from self.older
        yield from self.newer

    def add(self, record: ValueRecord) -> list[ValueRecord]:
        """Keep a record; returns those that had to be forgotten, which may be the record itself."""
        size = len(record.text) + len(record.arguments_json) + _RECORD_CHARS
        if size > self._max_chars:
            return [record]
        forgotten: list[ValueRecord] = []
        if self._chars + size > self._max_chars:
            forgotten = self.older
            self.older, self._older_indexes = self.newer, self._indexes
            self.newer, self._indexes, self._chars = [], {}, 0
        self.newer.append(record)
        self._chars += size
        return forgotten

    def find(self, value: str | ExactNumber, source: ValueSource, turn: int) -> bool | None:
        """Whether a record of this source vouches for the value."""
        outcome = self.update_index(source).find(value, turn)
        if outcome is True or not self.older:
            return outcome
        older = self._update(self._older_indexes, self.older, source).find(value, turn)
        return older if outcome is False else older or outcome

    def update_index(self, source: ValueSource) -> _Index:
        """The index of the newer records of a source, with all of them."""
        index = self._indexes.get(source.text)
        if index is not None and index.length == len(self.newer):
            return index
        return self._update(self._indexes, self.newer, source)

    def _update(self, indexes: dict[str, _Index], records: list[ValueRecord], source: ValueSource) -> _Index:
        index = indexes.get(source.text)
        if index is None:
            index = indexes[source.text] = _Index(self._decimal)
        for record in records[index.length :]:
            # What has no tool is in the records of its kind only.
            path = () if record.tool is None else source.find_path(record.tool)
            if path is not None:
                index.add(record, path)
        index.length = len(records)
        return index


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

    def _build_records(self) -> _Records:
        return _Records(max_chars=self._max_chars, decimal=self.decimal)

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
