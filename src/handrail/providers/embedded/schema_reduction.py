"""Reduces a JSON Schema to what a constrained decoder supports and a small model can fill in.

Unsupported keywords are left out and checked afterwards. Strings, lists and numbers get a maximum length, because a
small model does not stop by itself.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard, cast

from handrail.core.lazy_loading import LazyPattern
from handrail.providers.embedded.spans import extract, extract_money, extract_numbers, find_kind, is_money

MAX_TEXT_CHARS: Final = 200
MAX_LIST_ITEMS: Final = 8
MAX_NUMBER: Final = 10**12
MAX_DEPTH: Final = 12
FORMATS: Final = frozenset({"date", "date-time", "time", "email", "uuid"})
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_PLAIN_PATTERN: Final = LazyPattern(r"(?:[^\\(]|\((?!\?)|\\[dws.\-+*?()\[\]{}|/^$])*")
_WORD: Final = LazyPattern(r"[^\s\"“”„]+")
_NAME: Final = LazyPattern(r"[\w-]+")
_MAX_WORDS: Final = 40
_MAX_SPAN_WORDS: Final = 5


def build_decodable_schema(schema: Mapping[str, Any], *, copy_from: str | None = None) -> dict[str, Any]:
    """Reduce a schema. With `copy_from`, values are limited to those that occur in the text, if there are any."""
    return _Lowering(schema, copy_from).lower()


def extract_spans(text: str) -> list[str]:
    """List every sequence of a few words in the text, without surrounding punctuation, as possible values."""
    words = list(_WORD.compiled.finditer(text))
    if len(words) > _MAX_WORDS:
        return []
    found: dict[str, None] = {}
    for start in range(len(words)):
        for end in range(start, min(start + _MAX_SPAN_WORDS, len(words))):
            run = _strip_punctuation(text[words[start].start() : words[end].end()])
            if run and "\n" not in run:
                found[run] = None
    return list(found)


def _strip_punctuation(run: str) -> str:
    while (shorter := run.strip().strip(".,;:!?()'\"’")) != run:
        run = shorter
    return run


def has_mention(text: str, values: Sequence[Any]) -> bool:
    """Whether one of the values occurs in the text as a whole word."""
    words = f" {' '.join(_NAME.compiled.findall(text))} ".casefold()
    return any(
        f" {' '.join(_NAME.compiled.findall(str(value)))} ".casefold() in words for value in values if value != ""
    )


class _Lowering:
    def __init__(self, schema: Mapping[str, Any], text: str | None) -> None:
        self._schema = schema
        self._text = text
        self._spans = extract_spans(text) if text is not None else []
        self._numbers = extract_numbers(text) if text is not None else []
        self._money = extract_money(text) if text is not None else []

    def lower(self) -> dict[str, Any]:
        lowered = self._lower_node(self._schema, 0)
        for key in ("$defs", "definitions"):
            if named := as_mapping(self._schema.get(key)):
                lowered[key] = {name: self._lower_node(value, 1) for name, value in named.items()}
        return lowered

    def _lower_node(self, node: object, depth: int) -> dict[str, Any]:
        known = as_mapping(node)
        if depth > MAX_DEPTH:
            return self._lower_any()
        if "const" in known:
            return {"enum": [known["const"]]}
        if values := as_list(known.get("enum")):
            return {"enum": self._select_mentioned(values)}
        if self._is_local_reference(known.get("$ref")):
            return {"$ref": known["$ref"]}
        if some := as_list(known.get("anyOf")) or as_list(known.get("oneOf")):
            return {"anyOf": [self._lower_node(branch, depth + 1) for branch in some]}
        if parts := as_list(known.get("allOf")):
            return self._lower_node(_merge_all_of(known, parts), depth + 1)
        kind = known.get("type")
        if kinds := as_list(kind):
            return {"anyOf": [self._lower_node({**known, "type": item}, depth + 1) for item in kinds]}
        if kind == "object" or as_mapping(known.get("properties")):
            return self._lower_object(known, depth)
        return self._lower_scalar(known, kind, depth)

    def _lower_scalar(self, node: Mapping[str, Any], kind: Any, depth: int) -> dict[str, Any]:
        match kind:
            case "array":
                return self._lower_array(node, depth)
            case "string":
                return self._lower_string(node)
            case "integer" | "number":
                return self._lower_number(node, kind)
            case "boolean" | "null":
                return {"type": kind}
            case _:
                return self._lower_any()

    def _select_mentioned(self, values: Sequence[Any]) -> list[Any]:
        """Select the values that occur in the text; all of them if none does."""
        named = [value for value in values if self._text is not None and has_mention(self._text, [value])]
        return named or [*values]

    def _lower_any(self) -> dict[str, Any]:
        kinds = [self._lower_string({}), self._lower_number({}, "number"), {"type": "boolean"}, {"type": "null"}]
        return {"anyOf": kinds}

    def _is_local_reference(self, ref: object) -> bool:
        match ref.split("/") if isinstance(ref, str) else ():
            case ["#", "$defs" | "definitions" as key, name]:
                return name in as_mapping(self._schema.get(key))
            case _:
                return False

    def _lower_object(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = as_mapping(node.get("properties"))
        required = [name for name in as_list(node.get("required")) if isinstance(name, str) and name in properties]
        if (
            self._text is not None
        ):  # A small model fills in every property that it may, so those that the text does not mention are left out.
            properties = {
                name: value for name, value in properties.items() if name in required or self._is_mentioned(name, value)
            }
        lowered: dict[str, Any] = {
            "type": "object",
            "properties": {name: self._lower_property(name, value, depth + 1) for name, value in properties.items()},
            "required": required,
            "additionalProperties": False,
        }
        if (more := as_mapping(node.get("additionalProperties"))) and not properties:
            lowered["additionalProperties"] = self._lower_node(more, depth + 1)
        return lowered

    def _lower_property(self, name: str, node: object, depth: int) -> dict[str, Any]:
        """Limit a property of a known kind to the values of that kind in the text, if there are any."""
        values = self._find_values(name, as_mapping(node))
        return {"enum": values} if values else self._lower_node(node, depth)

    def _find_values(self, name: str, node: Mapping[str, Any]) -> list[Any]:
        known = _drop_null(node)
        if self._text is None or "enum" in known or "const" in known:
            return []
        kind = known.get("type")
        if kind in ("integer", "number") and self._money and is_money(name, node):
            return _select_numbers(self._money, known, kind)
        found = find_kind(name, known) if kind == "string" else None
        if found is None:
            return []
        least, most, pattern = (known.get(key) for key in ("minLength", "maxLength", "pattern"))
        return [
            item
            for item in extract(found, self._text)
            if not (isinstance(least, int) and len(item) < least)
            and not (isinstance(most, int) and len(item) > most)
            and _is_match(pattern, item)
        ]

    def _is_mentioned(self, name: str, node: object) -> bool:
        known = _drop_null(as_mapping(node))
        kind = known.get("type")
        if values := as_list(known.get("enum")):
            return has_mention(self._text or "", values)
        if kind in ("integer", "number"):
            return bool(_select_numbers(self._numbers, known, kind))
        return bool(self._find_values(name, known))

    def _lower_array(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        least, most = node.get("minItems"), node.get("maxItems")
        least = least if isinstance(least, int) else 0
        most = min(most, MAX_LIST_ITEMS) if isinstance(most, int) else MAX_LIST_ITEMS
        items = self._lower_node(node.get("items"), depth + 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": max(least, most)}

    def _lower_string(self, node: Mapping[str, Any]) -> dict[str, Any]:
        least, most, pattern, kind = (node.get(key) for key in ("minLength", "maxLength", "pattern", "format"))
        least = least if isinstance(least, int) else 0
        most = min(most, MAX_TEXT_CHARS) if isinstance(most, int) else MAX_TEXT_CHARS
        if kind in FORMATS:
            return {"type": "string", "format": kind}
        fitting = [span for span in self._spans if least <= len(span) <= most and _is_match(pattern, span)]
        if fitting:
            return {"enum": fitting}
        if isinstance(pattern, str) and _PLAIN_PATTERN.compiled.fullmatch(pattern):
            return {"type": "string", "pattern": pattern}  # Decoders support a pattern or lengths, not both.
        return {"type": "string", "minLength": least, "maxLength": max(least, most)}

    def _lower_number(self, node: Mapping[str, Any], kind: str) -> dict[str, Any]:
        if fitting := _select_numbers(self._numbers, node, kind):
            return {"enum": fitting}
        bounds = {key: node[key] for key in BOUNDS if _is_number(node.get(key))}
        if "minimum" not in bounds and "exclusiveMinimum" not in bounds:
            bounds["minimum"] = min(-MAX_NUMBER, *bounds.values(), 0)
        if "maximum" not in bounds and "exclusiveMaximum" not in bounds:
            bounds["maximum"] = max(MAX_NUMBER, *bounds.values(), 0)
        return {"type": kind, **bounds}


def _select_numbers(numbers: Sequence[float], node: Mapping[str, Any], kind: str) -> list[float | int]:
    whole = [int(number) if number.is_integer() else number for number in numbers]
    return [number for number in whole if (isinstance(number, int) or kind == "number") and _is_within(number, node)]


def _drop_null(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of the value itself, if the node only adds that it may be null."""
    some = [as_mapping(item) for item in as_list(node.get("anyOf"))]
    others = [branch for branch in some if branch.get("type") != "null"]
    return others[0] if len(others) == 1 and len(others) < len(some) else node


def as_mapping(node: object) -> Mapping[str, Any]:
    """Return a subschema as a mapping; an empty one if it is not an object."""
    return cast(Mapping[str, Any], node) if isinstance(node, Mapping) else {}


def as_list(value: object) -> list[Any]:
    """Return a list in a schema; an empty one if it is not a list."""
    return [*cast(Sequence[Any], value)] if isinstance(value, list | tuple) else []


def _merge_all_of(node: Mapping[str, Any], parts: Sequence[Any]) -> dict[str, Any]:
    """Merge the properties of an `allOf`; the rest is checked afterwards."""
    merged: dict[str, Any] = {key: value for key, value in node.items() if key != "allOf"}
    for part in map(as_mapping, parts):
        for key, value in part.items():
            if key == "properties":
                merged[key] = {**as_mapping(merged.get(key)), **as_mapping(value)}
            elif key == "required":
                merged[key] = [*as_list(merged.get(key)), *as_list(value)]
            else:
                merged.setdefault(key, value)
    return merged


def _is_match(pattern: object, text: str) -> bool:
    if not isinstance(pattern, str):
        return True
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_within(value: float, node: Mapping[str, Any]) -> bool:
    low, high, above, below = (node.get(key) for key in BOUNDS)
    return not (
        (_is_number(low) and value < low)
        or (_is_number(high) and value > high)
        or (_is_number(above) and value <= above)
        or (_is_number(below) and value >= below)
    )
