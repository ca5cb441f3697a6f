"""The texts and data that values can come from, as records, and the indexes that find a value in them."""

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, cast

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
from handrail.core.lazy_loading import LazyPattern
from handrail.core.text import normalize_unicode

SourceKind: TypeAlias = Literal["customer", "application", "operator", "tool"]
RecordKind: TypeAlias = Literal["customer", "application", "tool", "quoted"]
OutputForm: TypeAlias = Literal["text", "data"]
FieldPath: TypeAlias = tuple[str, ...]

_RECORD_CHARS: Final = 200
"""What a record takes beside its text."""
_MAX_CANDIDATES: Final = 200
"""How many texts are searched for a value of several words; if there are more, nobody can tell."""
_MIN_PIECE: Final = 3
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
    return normalize_unicode(text).casefold()


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


class ValueRecords:
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
