"""The subset of JSON Schema that Anthropic accepts for strict tools and structured output."""

import re
from collections.abc import Iterable

from .reading import Field, RequestRefused, as_list, as_map, format_dotted
from .schemas import (
    STRUCTURAL_2020_12,
    Complaint,
    JsonSchema,
    SchemaRule,
    Subschema,
    first_complaint,
    is_malformed,
    is_object,
    kinds,
    target,
    walk,
)

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
LENGTHS = frozenset({"minLength", "maxLength", "maxItems"})
UNSUPPORTED_PATTERN = re.compile(r"\(\?<?[=!]|\(\?P=|\\[1-9]|\\b")


def check_input(schema: Field, *, strict: bool) -> None:
    """Refuse an `input_schema` that the API would refuse."""
    rules = (is_malformed, root_is_an_object, *STRICT) if strict else (is_malformed, root_is_an_object)
    _refuse(schema, rules)


def check_output(schema: Field) -> None:
    """Refuse the schema of a structured response that the API would refuse."""
    _refuse(schema, (is_malformed, *STRICT))


def check_totals(schemas: Iterable[JsonSchema]) -> None:
    """API reference: "≤ 24 optional parameters, ≤ 16 union-typed parameters per request"."""
    places = [place for schema in schemas for place in walk(schema)]
    optional = sum(len(as_map(place.schema.get("properties")).keys() - _read_required(place)) for place in places)
    if optional > 24:
        raise RequestRefused(f"Schemas contain too many optional parameters ({optional}). The limit is 24.")
    properties = [
        as_map(parameter) for place in places for parameter in as_map(place.schema.get("properties")).values()
    ]
    if (
        unions := sum("anyOf" in parameter or isinstance(parameter.get("type"), list) for parameter in properties)
    ) > 16:
        raise RequestRefused(f"Schemas contain too many parameters with union types ({unions}). The limit is 16.")


def root_is_an_object(root: JsonSchema) -> Complaint:
    """API reference: "input_schema type object"."""
    if "type" not in root:
        return "type: Field required"
    return None if root["type"] == "object" else "type: Input should be 'object'"


def objects_are_closed(root: JsonSchema) -> Complaint:
    """API reference: strict supports "additionalProperties:false", and nothing else of it."""
    if any(is_object(place.schema) and place.schema.get("additionalProperties") is not False for place in walk(root)):
        return "For 'object' type, 'additionalProperties' must be explicitly set to false"
    return None


def keywords_are_supported(root: JsonSchema) -> Complaint:
    """API reference: "unsupported: … numeric bounds, min/maxLength, other array bounds"."""
    for place in walk(root):
        found = place.schema.keys() & ((STRUCTURAL_2020_12 - {"allOf"}) | BOUNDS | LENGTHS)
        if found:
            kind = next(iter(kinds(place.schema)), "any")
            return f"For '{kind}' type, properties {', '.join(sorted(found))} are not supported"
        if place.schema.get("minItems", 0) not in (0, 1):
            return "For 'array' type, 'minItems' values other than 0 or 1 are not supported"
    return None


def all_of_has_no_reference(root: JsonSchema) -> Complaint:
    """API reference: "allOf (not with $ref)"."""
    parts = [as_map(part) for place in walk(root) for part in as_list(place.schema.get("allOf"))]
    return "'allOf' with '$ref' is not supported" if any("$ref" in part for part in parts) else None


def formats_are_supported(root: JsonSchema) -> Complaint:
    """API reference: the list after "formats"."""
    formats = (place.schema.get("format") for place in walk(root))
    found = next(
        (format_name for format_name in formats if format_name is not None and format_name not in FORMATS), None
    )
    return f"For 'string' type, format '{found}' is not supported" if found else None


def patterns_are_simple(root: JsonSchema) -> Complaint:
    """API reference: "backreference/lookaround/\\b in pattern"."""
    for place in walk(root):
        if UNSUPPORTED_PATTERN.search(str(place.schema.get("pattern", ""))):
            return f"pattern '{place.schema['pattern']}' uses a backreference, a lookaround or a word boundary"
    return None


def enums_are_primitive(root: JsonSchema) -> Complaint:
    """API reference: "enum (primitives)"."""
    values = [value for place in walk(root) for value in as_list(place.schema.get("enum"))]
    return "Enum values must be primitives" if any(isinstance(value, (dict, list)) for value in values) else None


def references_are_local(root: JsonSchema) -> Complaint:
    """API reference: "unsupported: … external $ref"."""
    for place in walk(root):
        ref = str(place.schema.get("$ref", "#"))
        if not ref.startswith("#") or target(root, ref) is None:
            return f"External schema references are not supported: '{ref}'"
    return None


def nothing_is_recursive(root: JsonSchema) -> Complaint:
    """API reference: "unsupported: recursion"."""
    for start in _references(root):
        reached: set[str] = set()
        waiting = [start]
        while waiting:
            onward = {ref for ref in _references(target(root, waiting.pop()) or {}) if ref not in reached}
            reached |= onward
            waiting += onward
        if start in reached:
            return f"Circular reference detected in schema definitions: {start}"
    return None


STRICT = (
    objects_are_closed,
    keywords_are_supported,
    all_of_has_no_reference,
    formats_are_supported,
    patterns_are_simple,
    enums_are_primitive,
    references_are_local,
    nothing_is_recursive,
)


def _refuse(field: Field, rules: Iterable[SchemaRule]) -> None:
    if complaint := first_complaint(field.members(), rules):
        raise RequestRefused(f"{format_dotted(field.path)}: {complaint}")


def _read_required(place: Subschema) -> set[object]:
    return set(as_list(place.schema.get("required")))


def _references(schema: JsonSchema) -> list[str]:
    return [str(place.schema["$ref"]) for place in walk(schema) if "$ref" in place.schema]
