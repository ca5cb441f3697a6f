"""Walk through a JSON Schema, and say whether it is one at all."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import jsonschema_rs

from .reading import as_list, as_map, is_list, is_map

JsonSchema: TypeAlias = dict[str, object]

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
SINGLES = (
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
STRUCTURAL_2020_12 = frozenset(
    {"allOf", "not", "oneOf", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas"}
    | {"patternProperties", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"}
    | {"prefixItems", "additionalItems", "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"}
    | {"$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$anchor"}
)
"""The keywords beyond `anyOf`, `items` and `properties` that change which values are valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subschema:
    """A schema inside a schema."""

    context: tuple[str, ...]
    schema: JsonSchema
    level: int
    """How many objects it stands in, itself included where it is one."""


Complaint: TypeAlias = str | None
SchemaRule: TypeAlias = Callable[[JsonSchema], Complaint]


def first_complaint(schema: JsonSchema, rules: Iterable[SchemaRule]) -> Complaint:
    """What the first rule says that is not met."""
    return next((complaint for rule in rules if (complaint := rule(schema))), None)


def walk(root: JsonSchema) -> Iterator[Subschema]:
    """The schema and every schema in it, in the order of the text; references are not followed."""
    waiting = [Subschema(context=(), schema=root, level=int(is_object(root)))]
    while waiting:
        place = waiting.pop()
        yield place
        waiting += reversed(list(_children(place)))


def is_object(schema: JsonSchema) -> bool:
    """Whether the schema is meant for objects."""
    return "object" in kinds(schema) or "properties" in schema


def kinds(schema: JsonSchema) -> tuple[str, ...]:
    """The types that the schema names."""
    kind = schema.get("type")
    return tuple(map(str, kind)) if is_list(kind) else (str(kind),) if kind is not None else ()


def target(root: JsonSchema, ref: str) -> JsonSchema | None:
    """What a local reference points at, or None where there is nothing."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    found: object = root
    for step in ref.removeprefix("#").split("/")[1:]:
        found = as_map(found).get(step.replace("~1", "/").replace("~0", "~"))
    return found if is_map(found) else None


def is_malformed(root: JsonSchema) -> Complaint:
    """API reference: "JSON Schema 2020-12"; what is no schema at all is refused by every API."""
    try:
        jsonschema_rs.validator_for(root, retriever=_stay_here)
    except ValueError as error:
        return f"JSON schema is invalid: {str(error).splitlines()[0]}"
    return None


def is_instance(root: JsonSchema, value: object) -> bool:
    """Whether the value is valid."""
    return jsonschema_rs.validator_for(root, retriever=_stay_here).is_valid(value)


def _stay_here(address: str) -> NoReturn:
    raise LookupError(f"{address} is not in this schema")


def _children(place: Subschema) -> Iterator[Subschema]:
    schema = place.schema
    for keyword in MAPS:
        for name, child in as_map(schema.get(keyword)).items():
            yield from _child(place, (keyword, name), child, root=keyword in ("$defs", "definitions"))
    for keyword in LISTS:
        for index, child in enumerate(as_list(schema.get(keyword))):
            yield from _child(place, (keyword, str(index)), child)
    for keyword in SINGLES:
        yield from _child(place, (keyword,), schema.get(keyword))


def _child(place: Subschema, steps: tuple[str, ...], child: object, *, root: bool = False) -> Iterator[Subschema]:
    if is_map(child):
        above = 0 if root else place.level
        yield Subschema(context=(*place.context, *steps), schema=child, level=above + int(is_object(child)))
