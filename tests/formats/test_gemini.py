"""Google Gemini."""

import json
from typing import Any, Literal

import pytest
from google.genai.types import GenerateContentResponse
from hypothesis import given
from hypothesis import strategies as st

from handrail import ToolArgsParseError, ToolRegistry, ToolResult, tool
from handrail.formats import gemini as wire
from tests.formats.streams import arguments, takes_anything

SNAKE = GenerateContentResponse.model_validate


def chunk(*calls: Any, reason: str | None = None, id: str | None = "resp_1") -> dict[str, Any]:
    parts = [{"functionCall": call} for call in calls]
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if reason:
        candidate["finishReason"] = reason
    return {"candidates": [candidate], **({"responseId": id} if id else {})}


@tool
def get(city: str, unit: Literal["C"] = "C") -> str:
    """Look up the weather."""
    return ""


@tool
def now() -> str:
    """Tell the time."""
    return ""


def test_all_functions_are_declared_in_one_entry() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"default": "C", "type": "string", "enum": ["C"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    declared = [
        {"name": "get", "description": "Look up the weather.", "parameters_json_schema": schema},
        {"name": "now", "description": "Tell the time."},
    ]

    assert wire.tools([get, now]) == ToolRegistry([get, now]).to_gemini_tools() == [{"function_declarations": declared}]


@pytest.mark.parametrize("read", [dict, SNAKE], ids=["dict", "object"])
def test_calls_are_read_in_order_with_their_ids(read: Any) -> None:
    said = {"id": "1", "name": "get", "args": {"city": "Ulm"}}, {"id": "2", "name": "now", "args": {}}
    answer = chunk(*said, reason="STOP")
    answer["candidates"][0]["content"]["parts"].insert(1, {"text": "Hm."})

    calls = wire.calls(read(answer))

    assert [(call.wire_id, call.name, call.arguments_json, call.response_id) for call in calls] == [
        ("1", "get", '{"city":"Ulm"}', "resp_1"),
        ("2", "now", "{}", "resp_1"),
    ]


@pytest.mark.parametrize("read", [dict, SNAKE], ids=["dict", "object"])
def test_calls_without_ids_get_ids_of_their_own_which_are_not_sent_back(read: Any) -> None:
    answer = read(chunk({"name": "now"}, {"name": "now"}))

    first, second = wire.calls(answer)

    assert first.id != second.id
    assert [call.id for call in wire.calls(answer)] == [first.id, second.id]
    assert not {first.id, second.id} & {call.id for call in wire.calls(read(chunk({"name": "now"}, id="resp_2")))}
    (content,) = wire.results(
        [ToolResult(output="x", call_id=first.id, provider_id=first.provider_id, tool_name="now")]
    )
    assert content == {"role": "user", "parts": [{"function_response": {"name": "now", "response": {"output": "x"}}}]}


def test_calls_of_a_response_without_an_id_never_share_theirs() -> None:
    answers = [chunk({"name": "now"}, {"name": "now"}, id=None) for _ in range(3)]

    assert len({call.id for answer in answers for call in wire.calls(answer)}) == 6


def test_a_result_is_a_part_under_the_id_of_its_call_with_failures_told_apart() -> None:
    failed = ToolResult(error="No.", call_id="2", tool_name="get")

    assert wire.results([ToolResult(output={"a": 1}, call_id="1", tool_name="get"), failed]) == [
        {
            "role": "user",
            "parts": [
                {"function_response": {"id": "1", "name": "get", "response": {"output": '{"a":1}'}}},
                {"function_response": {"id": "2", "name": "get", "response": {"error": failed.for_model()}}},
            ],
        }
    ]


@pytest.mark.parametrize("read", [dict, SNAKE], ids=["dict", "object"])
def test_the_last_call_of_a_response_that_was_cut_gets_a_result_and_never_runs(read: Any) -> None:
    answer = chunk({"id": "1", "name": "a", "args": {"x": 1}}, {"id": "2", "name": "b"}, reason="MAX_TOKENS")

    whole, cut = wire.calls(read(answer))

    assert takes_anything.parse(whole.arguments_json) == {"x": 1}
    assert cut.wire_id == "2"
    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(cut.arguments_json)


@pytest.mark.parametrize("read", [dict, SNAKE], ids=["dict", "object"])
def test_a_stream_gives_the_calls_of_all_its_chunks(read: Any) -> None:
    chunks = [chunk({"name": "a", "args": {"x": 1}}), chunk(), chunk({"name": "b"}), chunk(reason="STOP")]

    calls = wire.calls([read(item) for item in chunks])

    assert [(call.name, call.arguments_json) for call in calls] == [("a", '{"x":1}'), ("b", "{}")]
    assert len({call.id for call in calls}) == 2


# Arguments that are streamed in pieces, as Vertex does.


def said_in_pieces(value: Any, path: str, size: int) -> list[dict[str, Any]]:
    """A value as pieces for the paths into it."""
    if isinstance(value, dict):
        return [piece for key, inner in value.items() for piece in said_in_pieces(inner, f"{path}.{key}", size)]
    if isinstance(value, list):
        return [piece for n, inner in enumerate(value) for piece in said_in_pieces(inner, f"{path}[{n}]", size)]
    if isinstance(value, str):
        parts = [value[start : start + size] for start in range(0, len(value), size)] or [""]
        last = len(parts) - 1
        return [
            {"jsonPath": path, "stringValue": part, **({"willContinue": True} if n < last else {})}
            for n, part in enumerate(parts)
        ]
    if value is None:
        return [{"jsonPath": path, "nullValue": "NULL_VALUE"}]
    kind = "boolValue" if isinstance(value, bool) else "numberValue"
    return [{"jsonPath": path, kind: value}]


def without_empty_lists(value: dict[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in value.items() if one != []}


several = st.lists(arguments.map(without_empty_lists), min_size=1, max_size=3)


@given(several, st.integers(1, 4), st.booleans(), st.booleans())
def test_a_call_in_chunks_is_put_together_and_never_runs_before_its_last_chunk(
    many: list[dict[str, Any]], size: int, objects: bool, ids: bool
) -> None:
    chunks: list[Any] = []
    ends: list[int] = []
    for number, value in enumerate(many):
        own = {"id": f"call_{number}"} if ids else {}
        chunks.append(chunk({"name": f"tool_{number}", "willContinue": True, **own}))
        for piece in said_in_pieces(value, "$", size):
            chunks.append(chunk({"partialArgs": [piece], "willContinue": True, **own}))
        chunks.append(chunk({**own}))
        ends.append(len(chunks))
    chunks.append(chunk(reason="STOP"))
    if objects:
        chunks = [SNAKE(item) for item in chunks]

    for position in range(len(chunks) + 1):
        found = wire.calls(chunks[:position])
        assert [item.name for item in found] == [f"tool_{number}" for number in range(len(found))]
        for call, value, end in zip(found, many, ends, strict=False):
            if position >= end:
                assert takes_anything.parse(call.arguments_json) == value
            else:
                with pytest.raises(ToolArgsParseError):
                    takes_anything.parse(call.arguments_json)
    assert len(wire.calls(chunks)) == len(many)


@pytest.mark.parametrize(
    "path",
    ["", "$", "city", "$.city[", "$[0]", "$.a[5]", "$.a[0]", "$.a..b", "$[?(@.x)]", "$.a.b"],
)
def test_a_piece_for_a_path_that_leads_nowhere_makes_a_call_that_does_not_run(path: str) -> None:
    pieces = [{"jsonPath": "$.a", "stringValue": "x"}, {"jsonPath": path, "stringValue": "y"}]

    (call,) = wire.calls([chunk({"name": "get", "partialArgs": pieces})])

    with pytest.raises(ToolArgsParseError):
        takes_anything.parse(call.arguments_json)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$.a.b", {"a": {"b": "x"}}),
        ("$['a b']", {"a b": "x"}),
        ('$["a"][0].b', {"a": [{"b": "x"}]}),
        (r"$['it\'s']", {"it's": "x"}),
        ("$.größe", {"größe": "x"}),
    ],
)
def test_paths_are_written_in_several_ways(path: str, value: Any) -> None:
    (call,) = wire.calls([chunk({"name": "get", "partialArgs": [{"jsonPath": path, "stringValue": "x"}]})])

    assert json.loads(call.arguments_json) == value


def test_two_calls_in_chunks_are_told_apart_by_their_ids() -> None:
    pieces = [
        {"id": "1", "name": "a", "willContinue": True},
        {"id": "2", "name": "a", "willContinue": True},
        {"id": "1", "partialArgs": [{"jsonPath": "$.x", "numberValue": 1}]},
        {"id": "2", "partialArgs": [{"jsonPath": "$.x", "numberValue": 2}]},
    ]

    assert [(call.wire_id, call.arguments_json) for call in wire.calls([chunk(piece) for piece in pieces])] == [
        ("1", '{"x":1}'),
        ("2", '{"x":2}'),
    ]
