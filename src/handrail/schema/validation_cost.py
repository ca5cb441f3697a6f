"""How much a schema grows when its references are followed: a short one can mean 2⁴⁰ checks of one value."""

from collections.abc import Iterator
from typing import Any, Final, cast
from urllib.parse import unquote

from handrail.schema.subschemas import Schema

MAX_CHECKS: Final = 20_000
"""How many subschemas one value may have to be checked against."""
_MIN_REFERENCES: Final = 24
"""With fewer references than this a schema cannot grow much beyond its own length."""
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_ONES: Final = ("not", "if", "then", "else")


def is_explosive(schema: Schema, text: str | None = None) -> bool:
    """Whether one value may have to be checked against more than `MAX_CHECKS` subschemas.

    `text` is the schema as JSON, where the caller has it: most schemas are harmless at a glance.
    """
    if text is not None and text.count('"$ref"') + text.count('"$dynamicRef"') < _MIN_REFERENCES:
        return False
    counted: dict[int, int] = {}
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if _count(cast(Schema, node), schema, counted) > MAX_CHECKS:
                return True
            waiting += cast(Schema, node).values()
        elif isinstance(node, list):
            waiting += cast(list[Any], node)
    return False


def _count(start: Schema, root: Schema, counted: dict[int, int]) -> int:
    """How many subschemas a value is checked against that is checked against this one; a circle counts once."""
    stack: list[tuple[Schema, list[Schema]]] = [(start, list(_iter_in_place(start, root)))]
    entered = {id(start)}
    while stack:
        node, children = stack[-1]
        if child := next((item for item in children if id(item) not in counted and id(item) not in entered), None):
            entered.add(id(child))
            stack.append((child, list(_iter_in_place(child, root))))
            continue
        # A child that was entered and is not counted yet leads back here.
        counted[id(node)] = min(1 + sum(counted.get(id(item), 0) for item in children), MAX_CHECKS + 1)
        stack.pop()
    return counted[id(start)]


def _iter_in_place(node: Schema, root: Schema) -> Iterator[Schema]:
    """The subschemas that apply to the same value."""
    for key in _LISTS:
        if isinstance(parts := node.get(key), list):
            yield from (cast(Schema, item) for item in cast(list[Any], parts) if isinstance(item, dict))
    for key in _ONES:
        if isinstance(part := node.get(key), dict):
            yield cast(Schema, part)
    if isinstance(parts := node.get("dependentSchemas"), dict):
        yield from (cast(Schema, item) for item in cast(Schema, parts).values() if isinstance(item, dict))
    for key in ("$ref", "$dynamicRef"):
        if isinstance(reference := node.get(key), str) and (target := _find(reference, root)) is not None:
            yield target


def _find(reference: str, root: Schema) -> Schema | None:
    """The schema that a local reference points to; None for any other."""
    head, *steps = reference.split("/")
    found: Any = root if head == "#" else None
    for step in steps:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdigit() and int(name) < len(cast(list[Any], found)):
            found = cast(list[Any], found)[int(name)]
        else:
            found = cast(Schema, found).get(name) if isinstance(found, dict) else None
    return cast(Schema, found) if isinstance(found, dict) else None
