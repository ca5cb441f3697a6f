"""Taking out of values and texts what must not be written down: by field name, by type, by pattern."""

import asyncio
import dataclasses
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures  # Its executors are loaded on first use.
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import pydantic  # Its own names load on first use, which is later than this import.
from msgspec import UNSET, Struct, structs
from pydantic_core import from_json, to_jsonable_python

from handrail.core.lazy_loading import LazyPattern
from handrail.core.media import MediaPart
from handrail.core.secret_patterns import MAX_PIECE, MIN_SECRET, is_card, remove_secrets
from handrail.core.text import compact_json, encodable, normalize_unicode
from handrail.errors import ConfigError, shorten

T = TypeVar("T")

HIDDEN: Final = "[redacted]"

FIELDS: Final = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "jwt", "api_key", "access_key",
    "private_key", "signing_key", "encryption_key", "authorization", "cookie", "credential", "pin", "pin_code", "otp",
    "totp", "cvv", "cvc", "security_code", "card_number", "iban", "ssn", "social_security_number",
)  # fmt: skip
"""Field names whose values are never written. A name is secret if one of these is among its words: `userPassword`,
`X-API-KEY`, `CARD_NUMBERS`."""

ALONE: Final = frozenset(("pass", "auth"))
"""Names that are secret by themselves, but not as a word among others: `boarding_pass` says nothing."""

FLAT: Final = (
    "password", "passwd", "passphrase", "passcode", "secret", "token", "apikey", "accesskey", "privatekey",
    "credential", "cookie", "cardnumber",
)  # fmt: skip
"""Ends of names that are written without any sign between their words: `clientsecret`, `accesstoken`."""
_FLAT_ENDS: Final = tuple(end + plural for end in FLAT for plural in ("", "s"))

_SIGN = LazyPattern(r"(?<=[\w\s.\"'\])-])[:=]++\s{0,4}")
_HEADER = LazyPattern(r"(?i)authorization|cookie|[^\x00-\x7f]")
_VALUE = LazyPattern(
    r"\\{0,16}\"(?:[^\"\\]++|\\[\s\S])*+\"?"  # quoted, perhaps cut off
    r"|\\{0,16}'(?:[^'\\]++|\\[\s\S])*+'?"
    r"|[{\[(][\s\S]*"  # the rest of the text: where it ends is not known
    r"|[^\s\"',;&{}\[\]()]++"
)
_SIGNS = LazyPattern(r"[\W_]+")
_WORD = LazyPattern(r"[^\W_]+")
_NEW_WORD = LazyPattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_REST_OF_LINE = LazyPattern(r"[^\r\n]*")
_NUMBER = LazyPattern(r"[0-9]+(?![A-Za-z0-9])")
_LAST_WORDS = LazyPattern(r" *+[\w.\-]++(?: ++[\w.\-]++){0,2}+")
_LONGEST_NAME = 96
_MAX_KEY_CHARS = 1_000
"""Of the name of a member, in JSON that is too long."""

_LEVELS = 8
"""How many texts of JSON inside texts of JSON are read; what is deeper is hidden as a whole."""
_DEPTH = 100
"""How deep values are walked."""
_REMEMBERED = 4_096
"""How many names are judged only once."""
_MAX_NAME_CHARS: Final = 200
"""Of the name of a tool, of a rule and so on, where it is written to a log."""


_MAX_PARSED = 16
"""JSON that is so many times as long as a text may be is still read, to be shortened as JSON; longer is cut as text."""
_MAX_ARGUMENT_CHARS = 100_000
_MIN_VALUE_CHARS = 6
"""Shorter secrets are not looked for: they would hide ordinary text."""
_MAX_VALUES = 1_000
_own_values: dict[str, None] = {}
"""Values that every redactor of the process hides: listeners and stores have redactors of their own."""
_callers_values: dict[str, None] = {}
"""Those that callers have brought. However many there are, no value of the process is forgotten for them."""


def hide_value(value: str, *, is_callers: bool = False) -> None:
    """Hide a secret's value in everything that this process writes from now on."""
    values = _callers_values if is_callers else _own_values
    if len(value) >= _MIN_VALUE_CHARS and value not in values:
        values[value] = None
        while len(values) > _MAX_VALUES:
            del values[next(iter(values))]


def cut_text(text: str, max_chars: int) -> str:
    """The beginning of a text, with a notice of how much was left out; the text itself if it is not longer."""
    left_out = len(text) - max_chars
    return text if left_out <= 0 else f"{text[:max_chars]} [{left_out} characters left out]"


def is_longer(value: Any, max_chars: int) -> bool:
    """Whether a value has more characters than so many, about; a long one is not looked through to its end."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            max_chars -= len(one)
        elif isinstance(one, Mapping):
            members = cast(Mapping[Any, Any], one)
            max_chars -= 4 * len(members)
            if max_chars >= 0:
                waiting += (*members.keys(), *members.values())
        elif isinstance(one, list | tuple):
            items = cast(list[Any], one)
            max_chars -= 2 * len(items)
            if max_chars >= 0:
                waiting += items
        else:
            max_chars -= 4
        if max_chars < 0:
            return True
    return False


def _cut_value(value: Any, max_chars: int) -> Any:
    if isinstance(value, str):
        return cut_text(value, max_chars)
    if not isinstance(value, Mapping | list | tuple) or not is_longer(value, max_chars):
        return cast(Any, value)
    try:
        return cut_text(compact_json(value), max_chars)
    except (ValueError, TypeError):
        return HIDDEN


class Redactor:
    """Redacts by field name, by type (Pydantic's secrets, and types of your own) and by pattern.

    Card numbers and IBANs are known by their check digits, so that ordinary numbers stay as they are. Truth values and
    `None` stay too, whatever their field is called: they hold no secret.
    """

    __slots__ = ("_fields", "_known", "_max_chars", "_names", "_patterns", "_stems", "_thread", "_types", "_window")

    def __init__(
        self,
        *,
        fields: Iterable[str] = (),
        patterns: Iterable[str] = (),
        types: Iterable[type[Any]] = (),
        max_chars: int = 1_000_000,
    ) -> None:
        """Fields, patterns and types are added to those that are always redacted.

        Args:
            fields: Names of fields whose values are hidden, however they are written: `card_pin` also hides `cardPin`.
            patterns: Regular expressions; what they match in a text is hidden.
            types: Types whose values are hidden.
            max_chars: A longer text is cut before it is looked at, and ends with a notice: what was not looked at is
                not written, and no text holds an event loop for long.
        """
        if max_chars < 1:
            raise ConfigError(f"max_chars must be at least 1, got {max_chars!r}.")
        self._max_chars = max_chars
        self._thread: futures.ThreadPoolExecutor | None = None
        names = [words for name in (*FIELDS, *fields) if (words := _words(name))]
        self._fields = frozenset("".join(words) + plural for words in names for plural in ("", "s"))
        stems = sorted({max(words, key=len) for words in names} | ALONE)
        self._stems = LazyPattern("|".join(map(re.escape, stems)))  # of lower case: to ignore case is ten times as slow
        self._window = max(3, *(len(words) for words in names))
        self._known: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._types = (pydantic.SecretStr, pydantic.SecretBytes, pydantic.Secret, *types)
        try:
            self._patterns = tuple(re.compile(pattern) for pattern in patterns)
        except re.error as error:
            raise ConfigError(f"{error.pattern!r} is to be redacted, and is no regular expression: {error}.") from error

    def text(self, text: str) -> str:
        """A text without what must not be written: JSON by its fields, any other by what looks like one."""
        return self._whole_text(text)

    def name(self, text: str) -> str:
        """The name of a tool, of a rule …, which every event has again: shortened, and redacted once."""
        known = self._names.get(text)
        if known is None:
            known = self._whole_text(shorten(text, _MAX_NAME_CHARS))
            if len(self._names) >= _REMEMBERED:  # A model can make up any number of names.
                self._names.clear()
            if len(text) <= _MAX_NAME_CHARS:
                self._names[text] = known
        return known

    def value(self, value: Any) -> Any:
        """A copy of any value, as JSON has it, without what must not be written."""
        try:
            return self._value(value, 0)
        except Exception:  # noqa: BLE001  # a value with code of its own: what cannot be looked at is not written
            return HIDDEN

    def arguments(self, arguments: Mapping[str, Any], *, max_chars: int = _MAX_ARGUMENT_CHARS) -> Any:
        """A copy of a call's arguments for people to read: of long ones, the beginning.

        They are JSON already. About `max_chars` are looked at, whoever wrote them, and whatever they hold.
        """
        limit = max(max_chars // max(len(arguments), 1), 100)
        cut = {name: _cut_value(value, limit) for name, value in arguments.items()}
        if (whole := self.value(cut)) != HIDDEN:
            return whole
        alone = ((name, self.value({name: value})) for name, value in cut.items())  # One of them cannot be looked at.
        return {
            key: value
            for name, one in alone
            for key, value in ({encodable(str(name)): HIDDEN} if one == HIDDEN else one).items()
        }

    def beginning(self, value: Any, *, max_chars: int = MAX_PIECE) -> Any:
        """A copy of any value, of a long one the beginning: no more than may be redacted in the event loop."""
        return self.value(_cut_value(value, max_chars))

    async def run_aside(self, redact: Callable[[], T], *, is_long: bool) -> T:
        """Run a function that redacts with this: for something long, in a thread.

        No search looks at more than `MAX_PIECE` characters; between two of them the event loop goes on.
        """
        if not is_long:
            return redact()
        if self._thread is None:
            self._thread = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="handrail-redact")
        return await asyncio.get_running_loop().run_in_executor(self._thread, redact)

    async def text_aside(self, text: str) -> str:
        """`text`, which does not hold the event loop, however long it is."""
        return await self.run_aside(lambda: self.text(text), is_long=len(text) > MAX_PIECE)

    def output(self, output: Any) -> str:
        """The model's text of an output, without what must not be written."""
        return self.text(output) if isinstance(output, str) else compact_json(self.value(output))

    # Values.

    def _value(self, value: Any, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        if depth > _DEPTH or isinstance(value, self._types):
            return HIDDEN
        if isinstance(value, str):
            return self._whole_text(str.__str__(value))  # Also of a subclass: what it is, not what it shows.
        if isinstance(value, int):
            return self._number(int.__int__(value))
        if isinstance(value, float):
            return float.__float__(value) if math.isfinite(value) else compact_json(value).strip('"')
        if isinstance(value, Mapping):
            return self._mapping(cast(Mapping[Any, Any], value), depth)
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(item, depth + 1) for item in cast(Iterable[Any], value)]
        if isinstance(value, MediaPart):
            return self._mapping(value.describe(), depth)  # Never its data.
        if isinstance(value, Struct):
            members = {name: getattr(value, name) for name in value.__struct_fields__}
            return self._mapping({name: one for name, one in members.items() if one is not UNSET}, depth)
        if isinstance(value, pydantic.BaseModel):
            return self._model(value, depth)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._mapping({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, depth)
        return self._other(value, depth)

    def _mapping(self, mapping: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        for name, item in mapping.items():
            key = self._key(name)
            clean[self._scan(key)] = HIDDEN if self._hides(key, item) else self._value(item, depth + 1)
        return clean

    def _key(self, name: Any) -> str:
        if isinstance(name, self._types):
            return HIDDEN
        if isinstance(name, str):
            return encodable(cut_text(str.__str__(name), self._max_chars))
        return next(iter(to_jsonable_python({name: None}, inf_nan_mode="strings", fallback=_name_of)))

    def _model(self, model: "pydantic.BaseModel", depth: int) -> Any:
        """A Pydantic model as it writes itself, without the fields that hold a hidden type."""
        written = to_jsonable_python(model, inf_nan_mode="strings", fallback=_name_of)
        hiding = [name for name, one in dict(model).items() if self._holds(one, depth + 1)]
        if not isinstance(written, dict):
            return HIDDEN if hiding else self._value(written, depth + 1)
        shown = cast(dict[str, Any], written)
        for name in hiding:
            field = type(model).model_fields.get(name)
            aliases = {name, field.alias, field.serialization_alias} if field else {name}
            known = [alias for alias in aliases if alias in shown]
            if not known and not (field and field.exclude):
                return HIDDEN  # It is in there somewhere, under a name of the model's own making.
            for alias in known:
                shown[alias] = HIDDEN
        return self._mapping(shown, depth)

    def _holds(self, value: Any, depth: int) -> bool:
        """Whether a value of a hidden type is in there."""
        if depth > _DEPTH or isinstance(value, self._types):
            return True
        match value:
            case str() | bytes() | int() | float() | None:
                return False
            case Mapping():
                items = cast(Mapping[Any, Any], value).items()
                return any(self._holds(key, depth + 1) or self._holds(one, depth + 1) for key, one in items)
            case list() | tuple() | set() | frozenset():
                return any(self._holds(item, depth + 1) for item in cast(Iterable[Any], value))
            case pydantic.BaseModel():
                return any(self._holds(item, depth + 1) for item in dict(value).values())
            case Struct():
                return any(self._holds(item, depth + 1) for item in structs.astuple(value))
            case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
                return any(self._holds(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value))
            case _:
                return False

    def _other(self, value: Any, depth: int) -> Any:
        """Dates, enums, paths, UUIDs …: as Pydantic writes them. What it does not know is written as its type."""
        if isinstance(value, Iterator):  # It would be used up, and may never end.
            return _name_of(cast(Any, value))
        plain = to_jsonable_python(value, inf_nan_mode="strings", fallback=_name_of)
        return HIDDEN if type(plain) is type(value) else self._value(plain, depth + 1)

    def _number(self, number: int) -> int | str:
        # No card has fewer digits, or more; and a text has no sign that would keep its digits from being one.
        return HIDDEN if 10**12 <= abs(number) < 10**19 and is_card(str(abs(number))) else number

    # Texts.

    def _whole_text(self, text: str) -> str:
        if self._max_chars < len(text) <= _MAX_PARSED * self._max_chars:
            parsed = _parse(text)
            if isinstance(parsed, dict | list):  # It stays JSON: what is left out is left out of its values.
                return compact_json(self._read(_Pruner(self._max_chars).prune(parsed), 1))
        return self._text(encodable(cut_text(text, self._max_chars)), 0)

    def _text(self, text: str, level: int) -> str:
        parsed = _parse(text)
        if parsed is not None:
            clean = self._read(parsed, level + 1) if level < _LEVELS else HIDDEN
            # What has nothing to hide stays as it was written. It is looked through all the same: of two members of
            # one name only the last was read.
            return self._without_patterns(text) if clean is parsed else compact_json(clean)
        return self._scan(text)

    def _read(self, value: Any, level: int) -> Any:
        """JSON that was read from a text; the very same object if there was nothing to take out."""
        if isinstance(value, str):
            clean = self._text(value, level)
            return value if clean == value else clean
        if isinstance(value, dict):
            return self._read_object(cast(dict[str, Any], value), level)
        if isinstance(value, list):
            every = cast(list[Any], value)
            cleaned = [self._read(item, level) for item in every]
            return every if all(map(_same, every, cleaned)) else cleaned
        if type(value) is int:
            return HIDDEN if self._number(value) is HIDDEN else value
        return value

    def _read_object(self, value: dict[str, Any], level: int) -> dict[str, Any]:
        same = True
        cleaned: dict[str, Any] = {}
        for name, item in value.items():
            shown = self._scan(name)
            clean = HIDDEN if self._hides(name, item) else self._read(item, level)
            same = same and clean is item and shown == name
            cleaned[shown] = clean
        return value if same else cleaned

    def _scan(self, text: str) -> str:
        if len(text) < 4:  # Nothing so short gives itself away.
            return text
        if ":" in text or "=" in text:
            text = self._without_assignments(text)
        return self._without_patterns(text)

    def _without_patterns(self, text: str) -> str:
        for values in (_own_values, _callers_values):
            for value in tuple(values) if values else ():
                if value in text:
                    text = text.replace(value, HIDDEN)
        if len(text) >= MIN_SECRET:
            text = remove_secrets(text, HIDDEN)
        for pattern in self._patterns:
            text = pattern.sub(HIDDEN, text)
        return text

    def _find_stems(self, text: str) -> Iterator[int]:
        """Where parts of secret names end in a text; a long one is looked through piece by piece."""
        folded = text.lower() if text.isascii() else text.translate(_FOLDED)
        finditer = self._stems.compiled.finditer
        if len(folded) <= MAX_PIECE:
            return iter([stem.end() for stem in finditer(folded)])
        return self._find_stems_in_pieces(folded)

    def _find_stems_in_pieces(self, folded: str) -> Iterator[int]:
        done = 0
        for start in range(0, len(folded), MAX_PIECE):
            end = start + MAX_PIECE
            pairs = self._stems.compiled.finditer(folded, max(start, done), end + _LONGEST_NAME)
            ends = [stem.end() for stem in pairs if stem.start() < end]
            if ends:
                done = ends[-1]
                yield from ends

    def _without_assignments(self, text: str) -> str:
        """A text without the values of `password=…`, `"apiKey": "…"`, `Authorization: …`: JSON that was cut off,
        headers, addresses, what people write."""
        parts: list[str] = []
        done, start = 0, -1
        find_sign, number, any_value = _SIGN.compiled.search, _NUMBER.compiled.match, _VALUE.compiled.match
        # Only the first sign after a part of a secret name can be that of a secret: a name has no sign in it.
        for after in self._find_stems(text):
            if after <= start:
                continue
            begin = after if after > done else done
            sign = find_sign(text, begin, begin + _LONGEST_NAME)  # Further away it is not the sign of this name.
            if sign is None:
                continue
            start, place = sign.span()
            if place == begin + _LONGEST_NAME:  # It may go on.
                sign = _SIGN.compiled.match(text, start)
                place = sign.end() if sign else place
            name, secrecy = self._find_name(text, start)
            if not secrecy or (secrecy == 1 and number(text, place)) or text.startswith(HIDDEN, place):
                continue
            value = (_REST_OF_LINE.compiled.match if _is_line(text, start, place, name) else any_value)(text, place)
            if value is not None and value.end() > place:
                parts += (text[done:place], HIDDEN)
                done = value.end()
        return "".join((*parts, text[done:])) if parts else text

    def _find_name(self, text: str, place: int) -> tuple[str, int]:
        """The last words before a sign, `API key` of `the API key: …`, and how secret they are."""
        before = text[max(0, place - _LONGEST_NAME) : place].rstrip().rstrip("\"'\\])")
        last = before.rpartition(" ")[2].rpartition("\n")[2].rpartition('"')[2]  # Most often it says so alone.
        secrecy = self._known.get(last)
        if secrecy and last.lower() not in ALONE:
            return last, secrecy
        words = _LAST_WORDS.compiled.match(before[::-1])  # Backwards: there is but one place to begin at.
        name = " ".join(words[0][::-1].split()) if words else ""
        secrecy = self._secrecy(name)
        last = name.rpartition(" ")[2]
        if (secrecy or not last.isalnum()) and last.lower() not in ALONE:
            return name, self._secrecy(last) or secrecy  # To know it the next time; and `--pass` says it alone.
        return name, secrecy

    # Names.

    def _hides(self, name: str, value: Any) -> bool:
        secrecy = self._secrecy(name)
        if not secrecy or value is None or value is True or value is False:
            return False
        return secrecy == 2 or not isinstance(value, int | float)

    def _secrecy(self, name: str) -> int:
        """2: what has this name is secret; 1: unless it is a number; 0: it is not."""
        known = self._known.get(name)
        if known is None:
            known = self._judge(_words(name)) if self._may_be_secret(name) else 0
            if len(name) <= _LONGEST_NAME and len(self._known) < _REMEMBERED:
                self._known[name] = known
        return known

    def _may_be_secret(self, name: str) -> bool:
        """Whether a part of a secret name is in a name, without the signs between its words."""
        if not name.isascii():
            return True
        return (
            self._stems.compiled.search((name if name.isalnum() else _SIGNS.compiled.sub("", name)).lower()) is not None
        )

    def _judge(self, words: list[str]) -> int:
        if len(words) == 1 and words[0] in ALONE:
            return 2
        fields, window = self._fields, self._window
        for last in range(len(words)):
            joined = ""
            for place in range(last, max(last - window, -1), -1):
                joined = words[place] + joined
                if joined in fields:
                    break
            else:  # What ends a part of it ends the longest.
                if not joined.endswith(_FLAT_ENDS):
                    continue
            return 1 if words[-1].endswith("tokens") else 2  # How many a model used is no secret.
        return 0


def _words(name: str) -> list[str]:
    """The words of a name in any style: `apiKey`, `API-Key`, `API_KEY`, `api.key`."""
    if not name.isascii():
        name = normalize_unicode(name)
    if not name.islower():
        name = _NEW_WORD.compiled.sub("_", name).lower()
    return _WORD.compiled.findall(name)


class _Folded(dict[int, str]):
    """For `str.translate`: the lower case of each character in its plain form, if that is one character, too."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        plain = unicodedata.normalize("NFKC", char).lower()
        self[code] = folded = plain if len(plain) == 1 else char
        return folded


_FOLDED: Final = _Folded()


@lru_cache(maxsize=_REMEMBERED)
def _is_header(name: str) -> bool:
    if not _HEADER.compiled.search(name):
        return False
    return _words(name)[-1].startswith(("authorization", "cookie"))


def _is_line(text: str, start: int, place: int, name: str) -> bool:
    """Whether a value goes on to the end of its line: in headers, and in what people write, `password: two words`."""
    if _is_header(name):
        return True
    if not text[place - 1].isspace() or text[start - 1] in "\"'":
        return False
    return text[place : place + 1] not in ('"', "'", "{", "[")


def _parse(text: str) -> Any:
    """What a text is that is JSON with something in it, else None."""
    if text[:1] not in ("{", "[", '"', " ", "\n", "\r", "\t") or text.lstrip()[:1] not in ("{", "[", '"'):
        return None
    try:
        return from_json(text)
    except ValueError:
        return None


def _same(one: Any, other: Any) -> bool:
    return one is other


class _Pruner:
    """Shortens a JSON value to about so many characters: long texts are cut, and lists and objects end early."""

    def __init__(self, max_chars: int) -> None:
        self._left = max_chars

    def prune(self, value: Any) -> Any:
        """The beginning of a value."""
        if isinstance(value, str):
            cut = cut_text(value, max(self._left, 0))
            self._left -= len(cut) + 2
            return cut
        if isinstance(value, list):
            every = cast(list[Any], value)
            kept: list[Any] = []
            for item in every:
                if self._left <= 0:
                    return [*kept, f"[{len(every) - len(kept)} more left out]"]
                kept.append(self.prune(item))
            return kept
        if isinstance(value, dict):
            members = cast(dict[str, Any], value)
            shown: dict[str, Any] = {}
            for name, one in members.items():
                if self._left <= 0:
                    return {**shown, "[left out]": f"{len(members) - len(shown)} more"}
                self._left -= len(name) + 4
                # The name decides whether the value is secret, so that it stays whole unless nobody could want it.
                shown[cut_text(name, _MAX_KEY_CHARS)] = self.prune(one)
            return shown
        self._left -= 8
        return value


def _name_of(value: Any) -> str:
    return f"<{type(value).__name__}>"
