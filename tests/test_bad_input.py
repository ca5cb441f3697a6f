"""Whatever a model sends, it gets a clear answer under the id of its call, and nothing else happens."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from handrail import (
    InvalidArgumentsError,
    LLMFunctionTool,
    Tool,
    ToolArgsParseError,
    ToolCall,
    ToolContext,
    ToolError,
    ToolFlags,
    ToolNotFoundError,
    ToolRegistry,
    ToolResult,
    as_tool,
    build_tool,
    tool,
)

MEGABYTE = 1_000_000


class Node(BaseModel):
    value: int = 0
    next: "Node | None" = None


class Find(LLMFunctionTool):
    number: int
    text: str = ""
    share: float = 0.0
    flag: bool = False
    tree: Node | None = None
    rest: list[Any] | None = None

    def model_tool_handler(self, context: None) -> tuple[str, None]:
        return f"found {self.number}", None


class FindReadOnly(Find):
    model_tool_custom_name = "find"
    model_tool_flags = ToolFlags(read_only=True)


def find(
    number: int,
    text: str = "",
    share: float = 0.0,
    flag: bool = False,
    tree: Node | None = None,
    rest: list[Any] | None = None,
) -> str:
    return f"found {number}"


RAW = {
    "type": "object",
    "properties": {
        "number": {"type": "integer"},
        "text": {"type": "string"},
        "share": {"type": "number"},
        "flag": {"type": "boolean"},
        "tree": {"$ref": "#/$defs/node"},
        "rest": {"type": "array"},
    },
    "required": ["number"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
        }
    },
}


def raw(read_only: bool) -> Tool[..., Any]:
    execute = {"execute": lambda payload: f"found {payload['number']}"}
    return build_tool({"name": "find", "input_schema": RAW, "read_only": read_only, **execute})


TOOLS: dict[str, Tool[..., Any]] = {
    "function": tool(find),
    "read-only function": tool(read_only=True)(find),
    "class": as_tool(Find),
    "read-only class": as_tool(FindReadOnly),
    "mapping": raw(read_only=False),
    "read-only mapping": raw(read_only=True),
}
EVERY_KIND = pytest.mark.parametrize("kind", TOOLS)


async def answer(made: Tool[..., Any], text: str) -> ToolResult:
    context: ToolContext[None] = ToolContext(session_id="s-1", call=ToolCall(id="call_1", name=made.name))
    result = await made.execute(text, context)
    assert (result.call_id, result.tool_name) == ("call_1", made.name)
    assert len(result.for_model().encode("utf-8")) < 2_000
    return result


def outcome(made: Tool[..., Any], text: str) -> Any:
    """The arguments, or the error that the model is told about. Any other exception ends the test."""
    try:
        return made.parse(text)
    except ToolError as error:
        return error


NO_JSON = {
    "a word": "nope",
    "cut off": '{"number": 1',
    "cut off in a text": '{"number": 1, "text": "a',
    "single quotes": "{'number': 1}",
    "a comment": '{"number": 1 /* one */}',
    "a comma too many": '{"number": 1,}',
    "two objects": '{"number": 1}{"number": 2}',
    "something behind": '{"number": 1} done',
    "a byte order mark": '\ufeff{"number": 1}',
    "a plus sign": '{"number": +1}',
    "a leading zero": '{"number": 01}',
    "only spaces": " \n\t ",
    "nothing but NUL": "\x00",
    "NUL in a text": '{"number": 1, "text": "\x00"}',
    "a control character": '{"number": 1, "text": "\x1b[0m"}',
    "a line break in a text": '{"number": 1, "text": "a\nb"}',
    "half a character, escaped": '{"number": 1, "text": "\\ud800"}',
    "the other half, escaped": '{"number": 1, "text": "\\udc00x"}',
    "half a character": '{"number": 1, "text": "\ud800"}',
    "half a character in a name": '{"number": 1, "\ud800": 1}',
    "half a character in a name, escaped": '{"number": 1, "\\ud800": 1}',
    "half a character alone": "\ud800",
    "bytes that are no UTF-8": b'{"number": 1, "text": "\xff\xfe"}'.decode("utf-8", "surrogateescape"),
    "arrays without end": "[" * MEGABYTE,
    "objects without end": '{"number":' * (MEGABYTE // 10),
    "a megabyte of arrays": "[" * (MEGABYTE // 2) + "]" * (MEGABYTE // 2),
    "a megabyte of arrays inside": '{"number": 1, "rest": ' + "[" * (MEGABYTE // 2) + "]" * (MEGABYTE // 2) + "}",
    "a megabyte of objects inside": '{"number": 1, "rest": [' + '{"a":' * 150_000 + "1" + "}" * 150_000 + "]}",
    "a tree without end": '{"number": 1, "tree": ' + '{"next":' * 100_000 + "null" + "}" * 100_000 + "}",
    "a number of a million digits": '{"number": ' + "9" * MEGABYTE + "}",
    "such a number inside": '{"number": 1, "rest": [' + "9" * 5_000 + "]}",
}


@EVERY_KIND
@pytest.mark.parametrize("text", NO_JSON.values(), ids=NO_JSON.keys())
@pytest.mark.proves("PH-42")
async def test_what_is_no_json_is_refused_with_the_reason(kind: str, text: str) -> None:
    error = (await answer(TOOLS[kind], text)).error

    assert error is not None
    assert error.code == "tool_args_parse_error"
    assert error.message.startswith("The arguments are not valid JSON: ")


@EVERY_KIND
@pytest.mark.parametrize("text", ["[1]", "null", '"text"', "1", "1.5", "true", "[" * 100 + "]" * 100])
@pytest.mark.proves("PH-43")
async def test_what_is_no_object_is_refused_with_the_reason(kind: str, text: str) -> None:
    error = (await answer(TOOLS[kind], text)).error

    assert error is not None
    assert error.code == "tool_args_parse_error"
    assert error.message.startswith("The arguments must be a JSON object, not ")


DOES_NOT_FIT = {
    "nothing": ("", "number: required, but missing"),
    "an empty object": ("{}", "number: required, but missing"),
    "null": ('{"number": null}', "number: "),
    "a word for a number": ('{"number": "many"}', "number: "),
    "a part of a number": ('{"number": 1.5}', "number: "),
    "a list for a number": ('{"number": [1]}', "number: "),
    "an object for a text": ('{"number": 1, "text": {"a": 1}}', "text: "),
    "a list for an object": ('{"number": 1, "tree": []}', "tree: "),
    "a word far down": ('{"number": 1, "tree": {"next": {"next": {"value": "x"}}}}', "tree"),
    "a megabyte for a number": ('{"number": "' + "x" * MEGABYTE + '"}', "number: "),
    "a megabyte for a list": ('{"number": 1, "rest": "' + "x" * MEGABYTE + '"}', "rest: "),
    "a word for a boolean": ('{"number": 1, "flag": "maybe"}', "flag: "),
    "a control character for a number": ('{"number": "\\u0000\\u001b"}', "number: "),
    "a number in exponents for a whole one": ('{"number": 1e-1}', "number: "),
}


@EVERY_KIND
@pytest.mark.parametrize(("text", "told"), DOES_NOT_FIT.values(), ids=DOES_NOT_FIT.keys())
@pytest.mark.proves("GC-42")
async def test_what_does_not_fit_is_reported_with_its_place(kind: str, text: str, told: str) -> None:
    error = (await answer(TOOLS[kind], text)).error

    assert error is not None
    assert error.code == "invalid_arguments"
    assert error.message.startswith("The arguments are not valid:\n- ")
    assert f"- {told}" in error.message


@pytest.mark.parametrize("kind", [kind for kind in TOOLS if "class" not in kind])
@pytest.mark.parametrize(
    "text",
    ['{"number": 1, "extra": 2}', '{"number": 1, "' + "x" * MEGABYTE + '": 2}', '{"number": 1, "": 2}'],
    ids=["extra", "a long one", "an empty one"],
)
async def test_an_argument_too_many_is_named(kind: str, text: str) -> None:
    error = (await answer(TOOLS[kind], text)).error

    assert error is not None
    assert "not an argument of this tool; it has: number, text, share, flag, tree, rest" in error.message


GOOD = {
    "a plain call": '{"number": 7}',
    "a megabyte of text": '{"number": 7, "text": "' + "x" * MEGABYTE + '"}',
    "an escaped control character": '{"number": 7, "text": "\\u0000\\u001b"}',
    "an emoji in two halves": '{"number": 7, "text": "\\ud83d\\ude00"}',
    "letters of any kind": '{"number": 7, "text": "ÿþ ünï 漢字 \u202e"}',
    "a very small number": '{"number": 7, "share": 1e-999999}',
    "a tree of a hundred": '{"number": 7, "tree": ' + '{"next":' * 90 + "null" + "}" * 90 + "}",
    "a hundred lists": '{"number": 7, "rest": ' + "[" * 100 + "]" * 100 + "}",
    "spaces around": ' \n{ "number" : 7 }\t',
}


@EVERY_KIND
@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
async def test_what_is_only_unusual_runs(kind: str, text: str) -> None:
    result = await answer(TOOLS[kind], text)

    assert result.error is None
    assert result.output == "found 7"


@EVERY_KIND
@pytest.mark.proves("GC-43")
async def test_the_text_false_is_not_true(kind: str) -> None:
    text = '{"number": 1, "flag": "False"}'
    coerced = outcome(replace(TOOLS[kind], coerce=True), text)

    if not TOOLS[kind].read_only:
        assert isinstance(outcome(TOOLS[kind], text), InvalidArgumentsError)
    if "mapping" in kind:  # A JSON Schema takes no text for a boolean.
        assert isinstance(coerced, InvalidArgumentsError)
    else:
        assert TOOLS[kind].dump(coerced)["flag"] is False


@pytest.mark.proves("HC-11")
def test_an_unknown_tool_is_reported_with_its_name_and_one_like_it() -> None:
    registry = ToolRegistry([TOOLS["function"]])

    with pytest.raises(ToolNotFoundError, match=r"There is no tool named `fimd`\. Did you mean `find`\?"):
        registry.get("fimd")
    for hostile in ("\ud800", "x" * MEGABYTE, "\x00", ""):
        with pytest.raises(ToolNotFoundError) as caught:
            registry.get(hostile)
        assert len(str(caught.value).encode()) < 400


# Any text, any object


def json_values(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.text() | numbers,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )


names = st.sampled_from([*RAW["properties"], "extra"]) | st.text(max_size=5)
objects = st.dictionaries(names, json_values(st.integers() | st.floats()), max_size=5)
plain_objects = st.dictionaries(names, json_values(st.integers()), max_size=5)
any_text = st.one_of(
    st.text(st.characters()),
    objects.map(json.dumps),
    objects.map(lambda value: json.dumps(value, ensure_ascii=False)),
    st.tuples(objects.map(json.dumps), st.integers(0, 200)).map(lambda cut: cut[0][: cut[1]]),
    st.text(st.sampled_from('{}[]":,0123456789.eE+-\\un dtfalsruNIiy\ud800'), max_size=40),
)


@EVERY_KIND
@given(text=any_text)
def test_any_text_is_arguments_or_a_clear_refusal(kind: str, text: str) -> None:
    found = outcome(TOOLS[kind], text)

    if isinstance(found, ToolError):
        assert type(found) in (ToolArgsParseError, InvalidArgumentsError)
        assert len(found.message.encode("utf-8")) < 4_000
    else:
        dumped = TOOLS[kind].dump(found)
        assert isinstance(dumped["number"], int)
        json.dumps(dumped)


@EVERY_KIND
@given(value=plain_objects)
def test_any_object_that_is_taken_comes_back_as_what_was_sent(kind: str, value: dict[str, Any]) -> None:
    text = json.dumps({**value, "number": 1})
    found = outcome(TOOLS[kind], text)

    if not isinstance(found, ToolError):
        dumped, sent = TOOLS[kind].dump(found), json.loads(text)
        assert dumped["number"] == 1
        assert repr(dumped.get("rest") or []) == repr(sent.get("rest") or [])
        assert dumped.get("text", "") == sent.get("text", "") or "class" in kind  # A class takes a number as text.


@EVERY_KIND
@given(payload=st.dictionaries(names, st.one_of(json_values(st.floats()), st.binary(), st.builds(object)), max_size=4))
async def test_any_payload_gets_a_result_under_its_id(kind: str, payload: dict[str, Any]) -> None:
    context: ToolContext[None] = ToolContext(session_id="s-1", call=ToolCall(id="call_1", name="find"))
    result = await TOOLS[kind].execute(payload, context)

    assert result.call_id == "call_1"
    result.for_model().encode("utf-8")
