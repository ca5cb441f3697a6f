"""What Chat Completions and Responses both refuse, and the subset of JSON Schema that OpenAI accepts."""

import re
from collections.abc import Collection, Iterator, Mapping

from .reading import Field, RequestRefused, as_list, as_map, first_repeated, format_bracketed, is_map
from .schemas import (
    STRUCTURAL_2020_12,
    Complaint,
    JsonSchema,
    Subschema,
    first_complaint,
    is_malformed,
    is_object,
    target,
    walk,
)

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
LOOKAROUND = re.compile(r"\(\?<?[=!]")


def check_function(parameters: Field, *, name: str, strict: bool) -> None:
    """Refuse parameters of a function that the API would refuse."""
    _refuse(parameters, f"function '{name}'", strict=strict)


def check_output(schema: Field, *, name: str, strict: bool) -> None:
    """Refuse the schema of a structured response that the API would refuse."""
    _refuse(schema, f"response_format '{name}'", strict=strict)


def _refuse(field: Field, what: str, *, strict: bool) -> None:
    rules = (is_malformed, root_is_an_object, *STRICT) if strict else (is_malformed, root_is_an_object)
    if complaint := first_complaint(field.members(), rules):
        message = f"Invalid schema for {what}: {complaint}"
        raise RequestRefused(message, code="invalid_function_parameters", param=format_bracketed(field.path))


def root_is_an_object(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "root `object`"; the API asks it of functions that are not strict too."""
    kind = root.get("type")
    found = "None" if kind is None else f'"{kind}"'
    return None if kind == "object" else f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {found}'."


def root_is_not_a_union(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "root `object`, not anyOf"."""
    return "In context=(), 'anyOf' is not permitted at the root." if "anyOf" in root else None


def objects_are_closed(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "every object `additionalProperties:false`"."""
    for place in _objects(root):
        if place.schema.get("additionalProperties") is not False:
            return f"In context={place.context}, 'additionalProperties' is required to be supplied and to be false."
    return None


def every_property_is_required(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "all properties in `required` (optional = union with null)"."""
    for place in _objects(root):
        names, required = as_map(place.schema.get("properties")), dict.fromkeys(as_list(place.schema.get("required")))
        must = "'required' is required to be supplied and to be an array including every key in properties."
        if missing := [name for name in names if name not in required]:
            return f"In context={place.context}, {must} Missing '{missing[0]}'."
        if extra := [name for name in required if name not in names]:
            return f"In context={place.context}, {must} Extra required key '{extra[0]}' supplied."
    return None


def keywords_are_supported(root: JsonSchema) -> Complaint:
    """API reference, strict mode: unsupported keywords, and in practice no `default` and no oneOf."""
    for place in walk(root):
        for keyword in place.schema:
            if keyword in STRUCTURAL_2020_12 or keyword == "default":
                return f"In context={place.context}, '{keyword}' is not permitted."
    return None


def formats_are_supported(root: JsonSchema) -> Complaint:
    """API reference, strict mode: the list after "format"."""
    for place in walk(root):
        if (found := place.schema.get("format")) is not None and found not in FORMATS:
            return f"In context={place.context}, '{found}' is not a valid format."
    return None


def patterns_do_not_look_around(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "no lookaround in pattern"."""
    for place in walk(root):
        if LOOKAROUND.search(str(place.schema.get("pattern", ""))):
            return f"In context={place.context}, 'pattern' must not use lookaround."
    return None


def references_stand_alone(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "no $ref siblings"."""
    for place in walk(root):
        if "$ref" in place.schema and (siblings := sorted(place.schema.keys() - {"$ref"})):
            return f"In context={place.context}, $ref cannot have keywords {siblings}."
    return None


def references_are_local(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "refs only `#` or `#/$defs/X`"."""
    for place in walk(root):
        ref = str(place.schema.get("$ref", "#"))
        if ref != "#" and not (re.fullmatch(r"#/\$defs/[^/]+", ref) and target(root, ref) is not None):
            return f"In context={place.context}, reference '{ref}' is not supported: use '#' or '#/$defs/…'."
    return None


def items_are_typed(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "array items must be typed"."""
    says_what = {"type", "$ref", "anyOf", "enum", "const"}
    for place in walk(root):
        if place.schema.get("type") == "array" and not says_what & as_map(place.schema.get("items")).keys():
            return f"In context={place.context}, array schema items must have a 'type' key."
    return None


def properties_are_few(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "≤ 5,000 properties total"."""
    count = sum(len(as_map(place.schema.get("properties"))) for place in walk(root))
    return f"schema has {count} properties, more than the limit of 5000." if count > 5_000 else None


def nesting_is_shallow(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "≤ 10 nesting levels"; counted in objects, the root being the first."""
    deepest = max(place.level for place in walk(root))
    return f"schema has {deepest} levels of nesting, more than the limit of 10." if deepest > 10 else None


def names_and_values_are_short(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "≤ 120,000 chars over property names + $defs names + enum + const"."""
    count = 0
    for place in walk(root):
        count += sum(len(name) for key in ("properties", "$defs") for name in as_map(place.schema.get(key)))
        count += sum(len(str(value)) for value in as_list(place.schema.get("enum")))
        count += len(str(place.schema.get("const", "")))
    return f"schema has {count} characters in names and values; the limit is 120000." if count > 120_000 else None


def enums_are_small(root: JsonSchema) -> Complaint:
    """API reference, strict mode: "≤ 1,000 enum values"; "a string enum > 250 values ≤ 15,000 chars"."""
    enums = [as_list(place.schema.get("enum")) for place in walk(root)]
    if (count := sum(map(len, enums))) > 1_000:
        return f"schema has {count} enum values, more than the limit of 1000."
    for values in enums:
        if len(values) > 250 and (size := sum(len(str(value)) for value in values)) > 15_000:
            return f"an enum of {len(values)} values has {size} characters, more than the limit of 15000."
    return None


STRICT = (
    root_is_not_a_union,
    objects_are_closed,
    every_property_is_required,
    keywords_are_supported,
    formats_are_supported,
    patterns_do_not_look_around,
    references_stand_alone,
    references_are_local,
    items_are_typed,
    properties_are_few,
    nesting_is_shallow,
    names_and_values_are_short,
    enums_are_small,
)


def _objects(root: JsonSchema) -> Iterator[Subschema]:
    return (place for place in walk(root) if is_object(place.schema))


NAME = re.compile("[a-zA-Z0-9_-]+")


def key_is_sent(headers: Mapping[str, str]) -> None:
    """Observed: openai 3.49 sends the key as a bearer token, and the API responds with 401 without it."""
    if not re.fullmatch(r"Bearer \S+", headers.get("authorization", "")):
        message = "You didn't provide an API key. Provide it in an Authorization header using Bearer auth."
        raise RequestRefused(message, status=401)


def name_is_valid(name: Field, *, max_chars: int) -> str:
    """API reference: `^[a-zA-Z0-9_-]+$`, up to 128 (Responses) or 64 (Chat Completions)."""
    found, place = name.text(), format_bracketed(name.path)
    if not NAME.fullmatch(found):
        message = f"Invalid '{place}': string does not match pattern. Expected '^[a-zA-Z0-9_-]+$'."
        raise RequestRefused(message, code="invalid_value", param=place)
    if len(found) > max_chars:
        message = f"Invalid '{place}': string too long. Expected at most {max_chars} characters, but got {len(found)}."
        raise RequestRefused(message, code="string_above_max_length", param=place)
    return found


def names_are_unique(names: Collection[str]) -> None:
    """Observed: a call by a name that two tools have could not be told apart."""
    if repeated := first_repeated(names):
        raise RequestRefused(f"Tool names must be unique: '{repeated}' is there twice.", param="tools")


def stream_options_need_a_stream(body: Field) -> None:
    """Observed: the refusal of the API."""
    if body.find("stream_options") and body.members().get("stream") is not True:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise RequestRefused(message, param="stream_options")


def options_need_tools(body: Field, *options: str) -> None:
    """API reference: `parallel_tool_calls` and `tool_choice` need tools."""
    for option in options:
        if body.find(option) and not body.find("tools"):
            message = f"Invalid value for '{option}': '{option}' is only allowed when 'tools' are specified."
            raise RequestRefused(message, param=option)


def output_format_is_valid(described: Field) -> None:
    """API reference, strict mode, for structured output."""
    name = name_is_valid(described.need("name"), max_chars=64)
    strict = described.find("strict")
    if schema := described.find("schema"):
        check_output(schema, name=name, strict=strict is not None and strict.flag())


def parts_are(content: Field, kinds: Collection[str]) -> None:
    """Refuse content that is neither text nor a list of parts of these kinds."""
    if isinstance(content.value, str):
        return
    if is_map(content.value):
        raise content.wording.wrong_type(content.path, "one of a string or an array of objects", content.value)
    for part in content.items():
        if part.need("type").one_of(kinds) in ("text", "input_text", "output_text"):
            part.need("text").text()
