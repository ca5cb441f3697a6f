"""A value instead of words: each API is asked in its own way, and every answer is checked here."""

import json
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from handrail.errors import BadResponseError, ConfigError, RefusalError
from handrail.providers import ModelRequest, UserMessage, generate_structured
from handrail.testing import ScriptedProvider
from handrail.testing.servers import refusal, text
from tests.providers.kit import ANTHROPIC, CHAT, GEMINI, RESPONSES, Subject, Way, both_ways, every_adapter, hello


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Pet(BaseModel):
    """An animal."""

    name: str = Field(min_length=1)
    age: int = Field(default=3, ge=0)
    color: Color | None = None


class Node(BaseModel):
    """Something that refers to itself."""

    value: int
    children: list["Node"] = []


PET = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kind": {"const": "cat"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


async def _asked(subject: Subject, wanted: Any, *answers: Any, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    with subject.server([text(answer) if isinstance(answer, str) else answer for answer in answers]) as server:
        async with subject.at(server) as provider:
            value = await generate_structured(provider, wanted, "Which pet?", **options)
    return value, [request.body for request in server.requests]


def _schema(body: dict[str, Any]) -> Any:
    """The schema that the API was given, wherever it wants it."""
    for path in (
        ("response_format", "json_schema", "schema"),
        ("text", "format", "schema"),
        ("output_config", "format", "schema"),
        ("generationConfig", "responseJsonSchema"),
    ):
        found: Any = body
        for step in path:
            found = found.get(step, {}) if isinstance(found, dict) else {}
        if found:
            return found
    return None


@every_adapter
async def test_a_type_comes_back_as_its_value(subject: Subject) -> None:
    value, (body,) = await _asked(subject, Pet, '{"name": "Rex", "age": 4, "color": "blue"}')

    assert value == Pet(name="Rex", age=4, color=Color.BLUE)
    assert _schema(body)["properties"].keys() == {"name", "age", "color"}


@every_adapter
async def test_what_strict_mode_cannot_leave_out_comes_back_as_left_out(subject: Subject) -> None:
    answer = '{"name": "Rex", "age": null, "color": null}' if subject in (CHAT, RESPONSES) else '{"name": "Rex"}'

    value, _ = await _asked(subject, Pet, answer)

    assert value == Pet(name="Rex", age=3, color=None)
    assert "age" not in value.model_fields_set


@every_adapter
async def test_a_schema_comes_back_as_json(subject: Subject) -> None:
    value, (body,) = await _asked(subject, PET, '{"name": "Tom", "kind": "cat", "age": 2.0}')

    assert value == {"name": "Tom", "kind": "cat", "age": 2}
    assert isinstance(value["age"], int)
    if subject is GEMINI:
        assert _schema(body)["properties"]["kind"] == {"enum": ["cat"], "type": "string"}


VALUES: dict[str, tuple[Any, Any]] = {
    "a list": (list[int], [1, 2]),
    "a number": (float, 2.5),
    "a word": (Literal["yes", "no"], "yes"),
    "a choice": (int | str, "x"),
    "nothing": (None, None),
    "models": (list[Pet], [Pet(name="Rex", age=1, color=Color.RED)]),
    "a schema of a list": ({"type": "array", "items": {"type": "string"}}, ["a"]),
    "a schema of a choice": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
    "a schema that refers to itself": (
        {"type": "array", "items": {"$ref": "#"}},
        [[], [[]]],
    ),
    "a schema with definitions": (
        {"$ref": "#/$defs/Words", "$defs": {"Words": {"type": "array", "items": {"type": "string"}}}},
        ["a"],
    ),
}


@every_adapter
@pytest.mark.parametrize(("wanted", "value"), VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("wrapped", [True, False], ids=["as asked", "bare"])
async def test_a_value_that_is_no_object_travels_inside_of_one(
    subject: Subject, wanted: Any, value: Any, wrapped: bool
) -> None:
    plain = json.loads(json.dumps(value, default=lambda one: one.model_dump(mode="json")))

    found, (body,) = await _asked(subject, wanted, json.dumps({"answer": plain} if wrapped else plain))

    assert found == value
    schema = _schema(body)
    assert schema is None or schema["type"] == "object"


@every_adapter
async def test_a_type_that_strict_mode_cannot_say_is_asked_for_all_the_same(subject: Subject) -> None:
    answer = '{"value": 1, "children": [{"value": 2, "children": []}]}'
    value, (body,) = await _asked(subject, Node, answer)
    open_map, (other,) = await _asked(subject, dict[str, int], '{"a": 1}')

    assert value == Node(value=1, children=[Node(value=2)])
    assert open_map == {"a": 1}
    assert "children" in json.dumps(body)
    assert "integer" in json.dumps(other)


async def test_a_request_without_room_for_one_more_strict_schema_says_it_in_words() -> None:
    many = {
        "type": "object",
        "properties": {f"p{n}": {"type": "string"} for n in range(30)},
        "additionalProperties": False,
    }

    value, (body,) = await _asked(ANTHROPIC, many, '{"p1": "x"}')

    assert value == {"p1": "x"}
    assert _schema(body) is None
    assert "p29" in body["system"]


INVALID = {
    "wrong value": '{"name": "Rex", "age": -1, "color": null}',
    "missing": '{"age": 1, "color": null}',
    "no JSON": "Rex is my favourite.",
    "cut off": '{"name": "Re',
    "a list": "[]",
    "nothing": "",
    "no number": '{"name": "Rex", "age": NaN, "color": null}',
}


@every_adapter
@pytest.mark.parametrize("wanted", [Pet, Pet.model_json_schema()], ids=["type", "schema"])
@pytest.mark.parametrize("answer", INVALID.values(), ids=INVALID)
async def test_a_response_that_does_not_fit_is_mended(subject: Subject, wanted: Any, answer: str) -> None:
    value, bodies = await _asked(subject, wanted, answer, '{"name": "Rex", "age": 1, "color": null}')

    assert (value if isinstance(value, dict) else value.model_dump(mode="json"))["name"] == "Rex"
    assert len(bodies) == 2
    assert "The answer" in json.dumps(bodies[1])
    assert "Respond again" in json.dumps(bodies[1])


async def test_the_faults_are_named_with_their_places() -> None:
    _, (_, again) = await _asked(CHAT, Pet, '{"name": "", "age": -1, "color": "green"}', '{"name": "Rex"}')

    said = again["messages"][-1]["content"]
    assert all(f"- {place}: " in said for place in ("name", "age", "color"))


@every_adapter
@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_a_response_that_never_fits_is_given_up(subject: Subject, attempts: int) -> None:
    with pytest.raises(BadResponseError, match="it is wrong at age") as caught:
        await _asked(subject, Pet, *['{"name": "Rex", "age": -4321, "color": null}'] * attempts, max_attempts=attempts)

    assert "4321" not in str(caught.value.to_log_dict())


@every_adapter
async def test_a_refusal_is_not_asked_for_again(subject: Subject) -> None:
    with pytest.raises(RefusalError, match="refused to respond"):
        await _asked(subject, Pet, refusal("I must not."))


@pytest.mark.timeout(20)
async def test_a_model_that_writes_empty_lines_without_end_holds_nobody_up() -> None:
    provider = ScriptedProvider(["```json\n" + "\n" * 4_000 + "x"])
    with pytest.raises(BadResponseError):
        await generate_structured(provider, Pet, "Hello.", max_attempts=1)


@every_adapter
async def test_json_in_a_fence_is_json(subject: Subject) -> None:
    value, _ = await _asked(subject, Pet, '```json\n{"name": "Rex", "age": 1, "color": null}\n```')

    assert value == Pet(name="Rex", age=1)


@every_adapter
@both_ways
async def test_the_text_of_a_reply_fits_the_schema_of_its_request(subject: Subject, way: Way) -> None:
    answer = '{"answer": ["a", "b"]}'
    with subject.server([text(answer)]) as server:
        async with subject.at(server) as provider:
            schema = {"type": "array", "items": {"type": "string"}}
            reply = await way(provider, ModelRequest(messages=hello(), schema=schema))

    assert json.loads(reply.text) == ["a", "b"]


@every_adapter
async def test_a_conversation_and_instructions_go_with_the_question(subject: Subject) -> None:
    with subject.server([text('{"answer": 1}')]) as server:
        async with subject.at(server) as provider:
            history = [UserMessage(text="One."), UserMessage(text="Two.")]
            assert await generate_structured(provider, int, history, instructions="Count.") == 1

    said = json.dumps(server.requests[0].body)
    assert all(words in said for words in ("One.", "Two.", "Count."))


@pytest.mark.parametrize(
    "wanted", [{"type": "thing"}, {"$ref": "#/$defs/Nothing"}, {"type": object()}, object(), "Pet"]
)
async def test_what_is_no_schema_is_the_callers_mistake(wanted: Any) -> None:
    with pytest.raises(ConfigError, match="JSON Schema"):
        await _asked(CHAT, wanted)


async def test_a_value_is_asked_for_at_least_once() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        await _asked(CHAT, int, max_attempts=0)
