"""JSON Schemas written by hand: compiled once, never fetched, and checked in words for the model."""

import json
import math
import socket
import threading
from typing import Any

import pytest

from handrail import InvalidArgumentsError, ToolArgsParseError, ToolDefinitionError, build_tool
from handrail.schema.json_schema_arguments import RawSchema, build_from_json_schema

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "item": {"type": "string", "minLength": 2, "pattern": "^[a-z]+$"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "size": {"enum": ["S", "M", "L"]},
        "kind": {"const": "order"},
        "when": {"type": "string", "format": "date"},
        "price": {"type": ["number", "null"]},
        "to": {"$ref": "#/$defs/address"},
        "lines": {"type": "array", "maxItems": 2, "uniqueItems": True, "items": {"$ref": "#/$defs/line"}},
        "pay": {"oneOf": [{"type": "string"}, {"type": "object", "required": ["card"]}]},
        "who": {"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"id": {"type": "integer"}}}]},
        "never": False,
    },
    "required": ["item"],
    "additionalProperties": False,
    "$defs": {
        "address": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
        "line": {"type": "object", "properties": {"sku": {"type": "string"}}, "additionalProperties": False},
    },
}


def told(value: Any, schema: dict[str, Any] = ORDER) -> list[str]:
    """What the model is told about arguments that do not fit."""
    with pytest.raises(InvalidArgumentsError) as caught:
        build_from_json_schema(schema, name="order").parse(json.dumps(value))
    head, *lines = str(caught.value).split("\n")
    assert head == "The arguments are not valid:"
    return lines


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({}, "- item: required, but missing"),
        ({"item": 5}, "- item: must be of type string, got 5"),
        ({"item": "a"}, '- item: it is shorter than 2 characters, got "a"'),
        ({"item": "TEA"}, '- item: it does not match "^[a-z]+$", got "TEA"'),
        ({"item": "tea", "count": 0}, "- count: it is less than the minimum of 1, got 0"),
        ({"item": "tea", "count": 1.5}, "- count: must be of type integer, got 1.5"),
        ({"item": "tea", "count": "1"}, '- count: must be of type integer, got "1"'),
        ({"item": "tea", "size": "XL"}, '- size: must be one of ["S","M","L"], got "XL"'),
        ({"item": "tea", "kind": "offer"}, '- kind: must be exactly "order", got "offer"'),
        ({"item": "tea", "when": "2030-13-01"}, '- when: it is not a "date", got "2030-13-01"'),
        ({"item": "tea", "price": "free"}, '- price: must be of type null or number, got "free"'),
        ({"item": "tea", "to": {}}, "- to.city: required, but missing"),
        ({"item": "tea", "to": {"city": "Bonn"}}, '- to.city: must be one of ["Rome","Oslo"], got "Bonn"'),
        ({"item": "tea", "lines": [{}, {"x": 1}]}, "- lines[1].x: not expected here"),
        ({"item": "tea", "lines": [{}, {}]}, "- lines: it has non-unique elements, got [{},{}]"),
        ({"item": "tea", "pay": 5}, "- pay: must be of type string; or must be of type object, got 5"),
        ({"item": "tea", "pay": {}}, "- pay: must be of type string; or `card` is required, got {}"),
        (
            {"item": "tea", "who": {"id": "x"}},
            '- who: must be of type integer; or `id` must be of type integer, got {"id":"x"}',
        ),
        ({"item": "tea", "never": 1}, "- never: not allowed here, got 1"),
        ({"item": "tea", "": 1}, f'- "": not an argument of this tool; it has: {", ".join(ORDER["properties"])}'),
        ({"item": "tea", "gift": 1}, f"- gift: not an argument of this tool; it has: {', '.join(ORDER['properties'])}"),
    ],
)
@pytest.mark.proves("GC-42")
def test_the_answer_names_the_place_what_was_found_and_what_is_allowed(value: Any, line: str) -> None:
    assert told(value) == [line]


def test_an_argument_that_fits_is_the_json_value_itself() -> None:
    value = {"item": "tea", "count": 2, "price": None, "to": {"city": "Rome"}, "pay": {"card": 1}, "when": "2030-01-02"}
    arguments = build_from_json_schema(ORDER, name="order")

    assert arguments.parse(json.dumps(value)) == value
    assert arguments.dump(value) == value


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (None, "must be a JSON Schema object, not NoneType"),
        ([], "must be a JSON Schema object, not list"),
        (True, "must be a JSON Schema object, not bool"),
        ({"type": "array"}, "must describe an object, not 'array'"),
        ({"type": ["object", "null"]}, "must describe an object, not ['object', 'null']"),
        ({"properties": []}, "is not valid at properties: must be of type object"),
        ({"properties": {"a": {"type": "strin"}}}, "is not valid at properties.a.type: must be one of"),
        ({"properties": {"a": {"items": {"minimum": "1"}}}}, "is not valid at properties.a.items.minimum: must be of"),
        ({"required": "a"}, "is not valid at required: must be of type array"),
        ({"properties": {"a": {"pattern": "("}}}, "is not valid at properties.a.pattern"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "is not valid at properties.a.$ref: Pointer '/$defs/gone'"),
        ({"$schema": "https://example.com/mine"}, "is not valid at its root: Unknown meta-schema"),
        ({"properties": {"a": {"default": math.inf}}}, "is not JSON"),
        ({"properties": {"a": {"maximum": math.nan}}}, "is not valid at properties.a.maximum"),
        ({"enum": {1, 2}}, "is not JSON"),
        ({"default": object()}, "is not JSON"),
        ({"description": "half \ud800"}, "is not JSON"),
        ({"properties": {1: {}}}, "is not JSON"),
    ],
)
def test_a_bad_schema_is_refused_when_the_tool_is_defined_with_its_place(schema: Any, problem: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        RawSchema(schema, name="order")

    assert f"`order`: input_schema {problem}" in str(caught.value)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_a_schema_that_has_no_end_is_refused() -> None:
    ring: dict[str, Any] = {"type": "object", "properties": {}}
    ring["properties"]["a"] = ring

    for endless in (ring, nested(100_000)):
        with pytest.raises(ToolDefinitionError, match="is not JSON"):
            RawSchema(endless)
    assert RawSchema(nested(100)).schema == nested(100)


@pytest.fixture
def listening() -> Any:
    """A server that counts who knocks."""
    knocks: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        done = threading.Event()

        def serve() -> None:
            while not done.is_set():
                try:
                    knocks.append(server.accept())
                except TimeoutError:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/schema.json", knocks
        done.set()
        thread.join()
    for connection, _ in knocks:
        connection.close()


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$schema"])
def test_nothing_is_ever_fetched_from_a_server(keyword: str, listening: Any) -> None:
    address, knocks = listening
    schema = {"properties": {"a": {keyword: address}}} if keyword != "$schema" else {keyword: address}

    with pytest.raises(ToolDefinitionError, match=r"127\.0\.0\.1"):
        RawSchema(schema)

    assert knocks == []


def test_nothing_is_ever_read_from_a_file(tmp_path: Any) -> None:
    (tmp_path / "int.json").write_text('{"type": "integer"}')

    for reference in ((tmp_path / "int.json").as_uri(), "int.json", str(tmp_path / "int.json")):
        with pytest.raises(ToolDefinitionError, match=r"is not valid at properties\.a\.\$ref: .*int\.json"):
            RawSchema({"properties": {"a": {"$ref": reference}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/$defs/i"}}, "$defs": {"i": {"type": "integer"}}},
        {"properties": {"a": {"$ref": "#/definitions/i"}}, "definitions": {"i": {"type": "integer"}}},
        {"properties": {"a": {"$ref": "#i"}}, "$defs": {"i": {"$anchor": "i", "type": "integer"}}, "$id": "urn:x:y"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"type": "integer"}}},
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "integer"}}},
    ],
    ids=["$defs", "definitions", "$anchor", "draft 7", "a neighbour"],
)
def test_references_inside_the_schema_are_followed(schema: dict[str, Any]) -> None:
    assert build_from_json_schema(schema, name="t").parse('{"a": 1}') == {"a": 1}
    assert told({"a": "x"}, schema) == ['- a: must be of type integer, got "x"']


def test_the_draft_is_the_one_that_the_schema_names() -> None:
    exclusive = {"properties": {"a": {"maximum": 5, "exclusiveMaximum": True}}}
    draft_4 = {"$schema": "http://json-schema.org/draft-04/schema#", **exclusive}

    assert told({"a": 5}, draft_4) == ["- a: it is greater than or equal to the maximum of 5, got 5"]
    with pytest.raises(ToolDefinitionError, match=r"properties\.a\.exclusiveMaximum"):
        RawSchema(exclusive)


@pytest.mark.parametrize(
    ("form", "bad", "good"),
    [
        ("email", "nobody", "a@b.co"),
        ("date-time", "today", "2030-01-02T03:04:05Z"),
        ("uuid", "1", "00000000-0000-0000-0000-000000000001"),
        ("ipv4", "1.2.3.999", "1.2.3.4"),
        ("uri", "::", "https://example.com"),
        ("something-else", "anything", "anything"),
    ],
)
def test_formats_are_checked(form: str, bad: str, good: str) -> None:
    parse = build_from_json_schema({"properties": {"a": {"type": "string", "format": form}}}, name="t").parse

    assert parse(json.dumps({"a": good})) == {"a": good}
    if bad != good:
        with pytest.raises(InvalidArgumentsError, match=f'a: it is not a "{form}"'):
            parse(json.dumps({"a": bad}))


@pytest.mark.parametrize(
    "pattern",
    [
        *("^(a+)+$", "^(a|aa)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(a*)*$", "(.*a){25}$"),
        *("(?=a)(a+)+$", "^(?:(a+)+)(?!b)c$", "(a*)*(?<=b)c$", "(a+a+)+(?=z)", r"(a*)*\1$"),
    ],
)
@pytest.mark.timeout(120)
def test_no_pattern_and_no_text_keep_the_process_busy(pattern: str) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": pattern}}}
    names = {"patternProperties": {pattern: {"type": "integer"}}}

    for text in ("a" * 100_000 + "!", "a" * 999 + "!", "a" * 40 + "!", "ab" * 50_000):
        answer = answer_to(schema, {"a": text}) + answer_to(names, {text: 1})
        assert len(answer) < 1_000


def answer_to(schema: dict[str, Any], value: dict[str, Any]) -> str:
    try:
        build_from_json_schema(schema, name="t").parse(json.dumps(value))
    except InvalidArgumentsError as error:
        return str(error)
    return ""


def test_a_pattern_with_look_ahead_works() -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "^(?=.*[0-9]).{3,}$"}}}

    assert build_from_json_schema(schema, name="t").parse('{"a": "ab1"}') == {"a": "ab1"}
    assert told({"a": "abc"}, schema) == ['- a: it does not match "^(?=.*[0-9]).{3,}$", got "abc"']


def test_only_a_text_that_is_matched_while_looking_around_is_limited() -> None:
    schema = {"properties": {"path": {"pattern": "^(?!/)"}, "body": {"type": "string", "pattern": "^a*$"}}}

    assert build_from_json_schema(schema, name="t").parse(json.dumps({"path": "a" * 1_000, "body": "a" * 1_000_000}))
    (line,) = told({"path": "a" * 1_001}, schema)
    assert line.startswith('- path: it is longer than 1,000 characters, got "aaa')
    assert told({"path": "x", "other": {"a" * 1_001: 1}}, schema) == [
        "- no name in an object may be longer than 1,000 characters"
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"properties": {"a": {"anyOf": [{"$ref": "#/properties/b"}]}, "b": {"$ref": "#/properties/a"}}},
    ],
)
def test_references_in_a_circle_come_to_an_end(schema: dict[str, Any]) -> None:
    assert build_from_json_schema(schema, name="t").parse('{"a": 1}') == {"a": 1}


def test_a_recursive_schema_is_checked_all_the_way_down() -> None:
    tree = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#"}}}

    assert told({"next": {"next": {"value": "x"}}}, tree) == ['- next.next.value: must be of type integer, got "x"']


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 309 + ".0", "9" * 300 + "e10"]
)
@pytest.mark.parametrize("read_only", [True, False])
def test_a_number_that_is_not_finite_is_no_json(number: str, read_only: bool) -> None:
    """JSON Schema has no such numbers: the validator would take them for null."""
    schema = {"properties": {"a": {"type": ["number", "null"]}, "b": {}}}
    tool = build_tool({"name": "t", "input_schema": schema, "execute": lambda payload: 1, "read_only": read_only})

    for text in (f'{{"a": {number}}}', f'{{"b": [[{number}]]}}'):
        with pytest.raises(ToolArgsParseError):
            tool.parse(text)
    assert tool.parse('{"a": 1e200, "b": "1e999"}') == {"a": 1e200, "b": "1e999"}


def test_a_whole_number_is_one_to_count_with_however_it_was_written() -> None:
    arguments = build_from_json_schema({"properties": {"n": {"type": "integer"}}}, name="t").parse(
        '{"n": 2.0, "l": [1e2, 0.5]}'
    )

    assert repr(arguments) == "{'n': 2, 'l': [100.0, 0.5]}"  # What nobody called an integer stays as it was sent.


def test_a_copy_of_the_schema_is_plain_json() -> None:
    given = {"properties": {"a": {"enum": ("x", "y")}}, "required": ("a",)}

    assert RawSchema(given).schema == {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
    }


def test_no_more_than_ten_faults_are_listed() -> None:
    schema = {"additionalProperties": {"type": "integer"}}

    lines = told({f"k{number}": "x" for number in range(10_000)}, schema)

    assert len(lines) == 11
    assert lines[-1].startswith("- … and ")


def build(schema: dict[str, Any]) -> Any:
    return build_tool({"name": "x", "input_schema": schema, "execute": lambda payload: 1, "read_only": True})


def doubling(keyword: str, levels: int) -> dict[str, Any]:
    """Each definition names the next one twice."""

    def double(target: str) -> dict[str, Any]:
        one = {"$ref": f"#/$defs/{target}"}
        if keyword == "if":
            return {"if": one, "then": one, "else": one}
        return {keyword: [one, dict(one)]}

    definitions: dict[str, Any] = {f"s{n}": double(f"s{n + 1}") for n in range(levels)}
    definitions[f"s{levels}"] = {"type": "string"}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/s0"}}, "$defs": definitions}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf", "if"])
@pytest.mark.parametrize("levels", [20, 40, 3_000])
def test_a_schema_that_means_a_million_checks_of_one_value_is_refused(keyword: str, levels: int) -> None:
    with pytest.raises(ToolDefinitionError, match="one value may need more than 20,000 checks"):
        build(doubling(keyword, levels))


def test_a_long_schema_without_such_growth_is_taken() -> None:
    names = [f"d{n}" for n in range(200)]
    definitions: dict[str, Any] = {name: {"type": "object", "properties": {"next": {"$ref": "#"}}} for name in names}
    union = [{"$ref": f"#/$defs/{name}"} for name in names]
    tool = build({"type": "object", "properties": {"a": {"anyOf": union}, "b": {"oneOf": union}}, "$defs": definitions})
    assert tool.parse('{"a": {"next": {"a": {}}}}')


def test_references_in_a_circle_are_no_growth() -> None:
    circle = {f"s{n}": {"anyOf": [{"type": "string"}, {"$ref": f"#/$defs/s{(n + 1) % 30}"}]} for n in range(30)}
    tool = build({"type": "object", "properties": {"a": {"$ref": "#/$defs/s0"}}, "$defs": circle})
    assert tool.parse('{"a": "text"}')
