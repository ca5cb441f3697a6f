"""A JSON Schema as a decoder can keep to it, and as a small model can fill it in.

What a decoder does not know is left out here and checked afterwards; strings, lists and numbers get an end, because a
small model does not find one by itself.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard, cast

LONGEST_TEXT: Final = 200
LONGEST_LIST: Final = 8
LARGEST: Final = 10**12
DEEPEST: Final = 12
FORMATS: Final = frozenset({"date", "date-time", "time", "email", "uuid"})
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_PLAIN_PATTERN: Final = re.compile(r"(?:[^\\(]|\((?!\?)|\\[dws.\-+*?()\[\]{}|/^$])*")
_WORD: Final = re.compile(r"[^\s\"“”„]+")
_NAME: Final = re.compile(r"[\w-]+")
_NUMBER: Final = re.compile(r"(?<![\w.,-])-?\d+(?:[.,]\d+)?(?![\w-])")
_MOST_WORDS: Final = 40
_SPAN: Final = 5


def decodable(schema: Mapping[str, Any], *, copied_from: str | None = None) -> dict[str, Any]:
    """The schema, reduced. With a text to copy from, values are those of the text where it has any."""
    return _Lowering(schema, copied_from).whole()


def spans(text: str) -> list[str]:
    """Every run of a few words in the text, without the punctuation around it: what a value could be copied from."""
    words = list(_WORD.finditer(text))
    if len(words) > _MOST_WORDS:
        return []
    found: dict[str, None] = {}
    for start in range(len(words)):
        for end in range(start, min(start + _SPAN, len(words))):
            run = _bare(text[words[start].start() : words[end].end()])
            if run and "\n" not in run:
                found[run] = None
    return list(found)


def _bare(run: str) -> str:
    while (shorter := run.strip().strip(".,;:!?()'\"’")) != run:
        run = shorter
    return run


def numbers(text: str) -> list[float]:
    """The numbers of the text that stand alone, so not those of `A-17`."""
    return [float(found.replace(",", ".")) for found in _NUMBER.findall(text)]


def mentions(text: str, values: Sequence[Any]) -> bool:
    """Whether one of the values stands in the text, as words of its own."""
    words = f" {' '.join(_NAME.findall(text))} ".casefold()
    return any(f" {' '.join(_NAME.findall(str(value)))} ".casefold() in words for value in values if value != "")


class _Lowering:
    def __init__(self, schema: Mapping[str, Any], text: str | None) -> None:
        self._schema = schema
        self._text = text
        self._spans = spans(text) if text is not None else []
        self._numbers = numbers(text) if text is not None else []

    def whole(self) -> dict[str, Any]:
        lowered = self._node(self._schema, 0)
        for key in ("$defs", "definitions"):
            if named := members(self._schema.get(key)):
                lowered[key] = {name: self._node(one, 1) for name, one in named.items()}
        return lowered

    def _node(self, node: object, depth: int) -> dict[str, Any]:
        known = members(node)
        if depth > DEEPEST:
            return self._anything()
        if "const" in known:
            return {"enum": [known["const"]]}
        if values := listed(known.get("enum")):
            return {"enum": self._spoken(values)}
        if self._resolves(known.get("$ref")):
            return {"$ref": known["$ref"]}
        if some := listed(known.get("anyOf")) or listed(known.get("oneOf")):
            return {"anyOf": [self._node(one, depth + 1) for one in some]}
        if parts := listed(known.get("allOf")):
            return self._node(_merged(known, parts), depth + 1)
        kind = known.get("type")
        if kinds := listed(kind):
            return {"anyOf": [self._node({**known, "type": one}, depth + 1) for one in kinds]}
        if kind == "object" or members(known.get("properties")):
            return self._object(known, depth)
        return self._plain(known, kind, depth)

    def _plain(self, node: Mapping[str, Any], kind: Any, depth: int) -> dict[str, Any]:
        match kind:
            case "array":
                return self._array(node, depth)
            case "string":
                return self._string(node)
            case "integer" | "number":
                return self._number(node, kind)
            case "boolean" | "null":
                return {"type": kind}
            case _:
                return self._anything()

    def _spoken(self, values: Sequence[Any]) -> list[Any]:
        """The values that the text to copy from speaks of; all of them where it speaks of none."""
        named = [one for one in values if self._text is not None and mentions(self._text, [one])]
        return named or [*values]

    def _anything(self) -> dict[str, Any]:
        kinds = [self._string({}), self._number({}, "number"), {"type": "boolean"}, {"type": "null"}]
        return {"anyOf": kinds}

    def _resolves(self, ref: object) -> bool:
        match ref.split("/") if isinstance(ref, str) else ():
            case ["#", "$defs" | "definitions" as key, name]:
                return name in members(self._schema.get(key))
            case _:
                return False

    def _object(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = members(node.get("properties"))
        required = [name for name in listed(node.get("required")) if name in properties]
        if self._text is not None:  # A small model fills in whatever it may; what nobody spoke of stays out.
            properties = {name: one for name, one in properties.items() if name in required or self._spoken_of(one)}
        lowered: dict[str, Any] = {
            "type": "object",
            "properties": {name: self._node(one, depth + 1) for name, one in properties.items()},
            "required": required,
            "additionalProperties": False,
        }
        if (more := members(node.get("additionalProperties"))) and not properties:
            lowered["additionalProperties"] = self._node(more, depth + 1)
        return lowered

    def _spoken_of(self, node: object) -> bool:
        known = members(node)
        kind = known.get("type")
        if values := listed(known.get("enum")):
            return mentions(self._text or "", values)
        return kind in ("integer", "number") and bool(self._fitting(known, kind))

    def _array(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        least, most = node.get("minItems"), node.get("maxItems")
        least = least if isinstance(least, int) else 0
        most = min(most, LONGEST_LIST) if isinstance(most, int) else LONGEST_LIST
        items = self._node(node.get("items"), depth + 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": max(least, most)}

    def _string(self, node: Mapping[str, Any]) -> dict[str, Any]:
        least, most, pattern, kind = (node.get(key) for key in ("minLength", "maxLength", "pattern", "format"))
        least = least if isinstance(least, int) else 0
        most = min(most, LONGEST_TEXT) if isinstance(most, int) else LONGEST_TEXT
        if kind in FORMATS:
            return {"type": "string", "format": kind}
        fitting = [one for one in self._spans if least <= len(one) <= most and _matches(pattern, one)]
        if fitting:
            return {"enum": fitting}
        if isinstance(pattern, str) and _PLAIN_PATTERN.fullmatch(pattern):
            return {"type": "string", "pattern": pattern}  # Decoders take a pattern or lengths, and not both.
        return {"type": "string", "minLength": least, "maxLength": max(least, most)}

    def _number(self, node: Mapping[str, Any], kind: str) -> dict[str, Any]:
        if fitting := self._fitting(node, kind):
            return {"enum": fitting}
        bounds = {key: node[key] for key in BOUNDS if _is_number(node.get(key))}
        if "minimum" not in bounds and "exclusiveMinimum" not in bounds:
            bounds["minimum"] = min(-LARGEST, *bounds.values(), 0)
        if "maximum" not in bounds and "exclusiveMaximum" not in bounds:
            bounds["maximum"] = max(LARGEST, *bounds.values(), 0)
        return {"type": kind, **bounds}

    def _fitting(self, node: Mapping[str, Any], kind: str) -> list[float | int]:
        whole = [int(one) if one.is_integer() else one for one in self._numbers]
        return [one for one in whole if (isinstance(one, int) or kind == "number") and _within(one, node)]


def members(node: object) -> Mapping[str, Any]:
    """What a part of a schema says, if it is one that says something."""
    return cast(Mapping[str, Any], node) if isinstance(node, Mapping) else {}


def listed(value: object) -> list[Any]:
    """The items of a list in a schema; none where there is no list."""
    return [*cast(Sequence[Any], value)] if isinstance(value, list | tuple) else []


def _merged(node: Mapping[str, Any], parts: Sequence[Any]) -> dict[str, Any]:
    """One schema that says what all parts say of an object; the rest is checked afterwards."""
    merged: dict[str, Any] = {key: value for key, value in node.items() if key != "allOf"}
    for part in map(members, parts):
        for key, value in part.items():
            if key == "properties":
                merged[key] = {**members(merged.get(key)), **members(value)}
            elif key == "required":
                merged[key] = [*listed(merged.get(key)), *listed(value)]
            else:
                merged.setdefault(key, value)
    return merged


def _matches(pattern: object, text: str) -> bool:
    if not isinstance(pattern, str):
        return True
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _within(value: float, node: Mapping[str, Any]) -> bool:
    low, high, above, below = (node.get(key) for key in BOUNDS)
    return not (
        (_is_number(low) and value < low)
        or (_is_number(high) and value > high)
        or (_is_number(above) and value <= above)
        or (_is_number(below) and value >= below)
    )
