"""Read a request field by field, and refuse in the words of each API what is missing, unknown or of the wrong kind."""

import re
from base64 import b64decode
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeGuard

Path: TypeAlias = tuple[str | int, ...]


class RequestRefused(Exception):
    """The API does not accept the request."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param


class Wording(Protocol):
    """How one API says that a field is wrong."""

    def spellings(self, key: str) -> tuple[str, ...]:
        """The names under which a field may be sent."""
        ...

    def missing(self, path: Path) -> RequestRefused: ...

    def unknown(self, path: Path) -> RequestRefused: ...

    def wrong_type(self, path: Path, expected: str, value: object) -> RequestRefused: ...

    def wrong_value(self, path: Path, value: str, allowed: Collection[str]) -> RequestRefused: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A JSON value, where it stands in the request, and how to say what is wrong with it."""

    value: object
    path: Path = ()
    wording: Wording

    def members(self) -> dict[str, object]:
        """The value, which has to be an object."""
        if is_map(self.value):
            return self.value
        raise self.wording.wrong_type(self.path, "an object", self.value)

    def items(self) -> list["Field"]:
        """The fields of the value, which has to be an array."""
        if is_list(self.value):
            return [self._at(index, item) for index, item in enumerate(self.value)]
        raise self.wording.wrong_type(self.path, "an array", self.value)

    def text(self) -> str:
        """The value, which has to be a string."""
        if not isinstance(self.value, str):
            raise self.wording.wrong_type(self.path, "a string", self.value)
        return self.value

    def flag(self) -> bool:
        """The value, which has to be true or false."""
        if not isinstance(self.value, bool):
            raise self.wording.wrong_type(self.path, "a boolean", self.value)
        return self.value

    def number(self) -> int:
        """The value, which has to be an integer."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.wording.wrong_type(self.path, "an integer", self.value)
        return self.value

    def one_of(self, allowed: Collection[str]) -> str:
        """The value, which has to be one of these strings."""
        found = self.text()
        if found not in allowed:
            raise self.wording.wrong_value(self.path, found, allowed)
        return found

    def find(self, key: str) -> "Field | None":
        """The field of this object, or None: an API takes null for absent."""
        members = self.members()
        for spelling in self.wording.spellings(key):
            if members.get(spelling) is not None:
                return self._at(key, members[spelling])
        return None

    def need(self, key: str) -> "Field":
        """The field of this object, which has to be there."""
        if found := self.find(key):
            return found
        raise self.wording.missing((*self.path, key))

    def has(self, key: str) -> bool:
        """Whether the field was sent, as null or otherwise."""
        return any(spelling in self.members() for spelling in self.wording.spellings(key))

    def only(self, allowed: Collection[str]) -> None:
        """Refuse fields of this object that the API does not know."""
        known = {spelling for key in allowed for spelling in self.wording.spellings(key)}
        for key in self.members():
            if key not in known:
                raise self.wording.unknown((*self.path, key))

    def _at(self, step: str | int, value: object) -> "Field":
        return Field(value=value, path=(*self.path, step), wording=self.wording)


def is_base64(text: str) -> bool:
    """Whether the text is base64 of something."""
    try:
        return bool(b64decode(text.replace("-", "+").replace("_", "/"), validate=True))  # Google takes both alphabets.
    except ValueError:
        return False


def format_bracketed(path: Path) -> str:
    """`messages[0].role`: how OpenAI and Google write a place."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(steps).removeprefix(".")


def format_dotted(path: Path) -> str:
    """`messages.0.role`: how Anthropic writes a place."""
    return ".".join(str(step) for step in path)


def is_map(value: object) -> TypeGuard[dict[str, object]]:
    """Whether the value is a JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether the value is a JSON array."""
    return isinstance(value, list)


def as_map(value: object) -> dict[str, object]:
    """The value as an object; anything else is an empty one."""
    return value if is_map(value) else {}


def as_list(value: object) -> list[object]:
    """The value as an array; anything else is an empty one."""
    return value if is_list(value) else []


def words(text: str) -> frozenset[str]:
    """The words of a text, for long lists of names."""
    return frozenset(text.split())


def first_repeated(names: Collection[str]) -> str | None:
    """The first name that is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


_KINDS = {
    "str": "a string",
    "bool": "a boolean",
    "int": "an integer",
    "float": "a decimal",
    "list": "an array",
    "dict": "an object",
}


@dataclass(frozen=True, slots=True)
class OpenAIWording:
    """Chat Completions and Responses; they differ in what they say of unknown fields."""

    unrecognized: bool = False

    def spellings(self, key: str) -> tuple[str, ...]:
        return (key,)

    def missing(self, path: Path) -> RequestRefused:
        place = format_bracketed(path)
        return RequestRefused(f"Missing required parameter: '{place}'.", code="missing_required_parameter", param=place)

    def unknown(self, path: Path) -> RequestRefused:
        place = format_bracketed(path)
        if self.unrecognized and len(path) == 1:
            return RequestRefused(f"Unrecognized request argument supplied: {place}")
        return RequestRefused(f"Unknown parameter: '{place}'.", code="unknown_parameter", param=place)

    def wrong_type(self, path: Path, expected: str, value: object) -> RequestRefused:
        place, got = format_bracketed(path), _KINDS.get(type(value).__name__, "null")
        message = f"Invalid type for '{place}': expected {expected}, but got {got} instead."
        return RequestRefused(message, code="invalid_type", param=place)

    def wrong_value(self, path: Path, value: str, allowed: Collection[str]) -> RequestRefused:
        values = ", ".join(f"'{value}'" for value in sorted(allowed))
        return RequestRefused(
            f"Invalid value: '{value}'. Supported values are: {values}.",
            code="invalid_value",
            param=format_bracketed(path),
        )


@dataclass(frozen=True, slots=True)
class AnthropicWording:
    """How Anthropic Messages words a refusal."""

    def spellings(self, key: str) -> tuple[str, ...]:
        return (key,)

    def missing(self, path: Path) -> RequestRefused:
        return RequestRefused(f"{format_dotted(path)}: Field required")

    def unknown(self, path: Path) -> RequestRefused:
        return RequestRefused(f"{format_dotted(path)}: Extra inputs are not permitted")

    def wrong_type(self, path: Path, expected: str, value: object) -> RequestRefused:
        return RequestRefused(f"{format_dotted(path)}: Input should be a valid {expected.split(' ', 1)[1]}")

    def wrong_value(self, path: Path, value: str, allowed: Collection[str]) -> RequestRefused:
        return RequestRefused(
            f"{format_dotted(path)}: Input should be one of {', '.join(sorted(allowed))}, not '{value}'"
        )


@dataclass(frozen=True, slots=True)
class GeminiWording:
    """Google's APIs read a field by its JSON name and by its name in the protocol buffer."""

    def spellings(self, key: str) -> tuple[str, ...]:
        return (key, re.sub("[A-Z]", lambda match: "_" + match.group().lower(), key))

    def missing(self, path: Path) -> RequestRefused:
        return RequestRefused(f"* GenerateContentRequest.{format_bracketed(path)}: required field is not set")

    def unknown(self, path: Path) -> RequestRefused:
        at = f" at '{format_bracketed(path[:-1])}'" if path[:-1] else ""
        return RequestRefused(f'Invalid JSON payload received. Unknown name "{path[-1]}"{at}: Cannot find field.')

    def wrong_type(self, path: Path, expected: str, value: object) -> RequestRefused:
        return RequestRefused(f"Invalid value at '{format_bracketed(path)}': expected {expected}, got {value!r:.80}")

    def wrong_value(self, path: Path, value: str, allowed: Collection[str]) -> RequestRefused:
        values = ", ".join(sorted(allowed))
        return RequestRefused(f"Invalid value at '{format_bracketed(path)}': \"{value}\" is none of {values}")
