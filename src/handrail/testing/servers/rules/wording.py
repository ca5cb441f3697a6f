"""How each API says that a field is missing, unknown, of the wrong type or out of range."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from .reading import Path, RequestRefused, format_bracketed, format_dotted

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
