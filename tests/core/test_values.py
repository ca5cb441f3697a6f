"""The values that pass between the layers: frozen, and with one rendering for the model."""

import json
from enum import Enum, StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from handrail import Control, Decision, Failure, ToolCall, ToolContext, ToolError, ToolResult, tool
from handrail.core import Event, events

VALUES = [
    Failure(message="no"),
    Control(mode="manual"),
    ToolCall(id="c-1", name="pay"),
    ToolResult(output="done"),
    Decision(action="ask"),
    ToolContext(session_id="s-1"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.proves("HC-03", "HC-04", "PH-25")
def test_a_value_is_frozen_slotted_and_keyword_only(value: Any) -> None:
    name = value.__struct_fields__[0]

    with pytest.raises(AttributeError):
        setattr(value, name, "other")
    with pytest.raises(AttributeError):
        value.something_else = 1
    assert not hasattr(value, "__dict__")
    with pytest.raises(TypeError):
        type(value)("positional")


@pytest.mark.parametrize(
    "given", [{"arguments": {"amount": 5}}, {"arguments_json": None}, {"arguments_json": {"amount": 5}}]
)
def test_a_call_with_arguments_that_are_no_text_is_an_error_that_names_arguments_json(given: Any) -> None:
    with pytest.raises(TypeError, match="arguments_json"):
        ToolCall(id="c-1", name="pay", **given)


def test_a_call_is_encoded_and_shown_without_what_it_does_not_have() -> None:
    call = ToolCall(id="c-1", name="pay", arguments_json="{}")

    assert repr(call) == "ToolCall(id='c-1', name='pay', arguments_json='{}')"
    assert "arguments" not in msgspec.to_builtins(call)
    assert msgspec.json.decode(msgspec.json.encode(call), type=ToolCall) == call


def test_every_event_carries_its_time_session_and_tenant() -> None:
    kinds = [var for var in vars(events).values() if isinstance(var, type) and issubclass(var, Event)]

    assert len(kinds) > 5
    for kind in kinds:
        fields: Any = kind.__struct_fields__
        assert fields[:3] == ("at", "session_id", "tenant_id")
        assert kind.__struct_config__.frozen


@pytest.mark.proves("PH-25", "GC-10", "PH-D18")
def test_a_call_has_the_ids_that_its_provider_gave_it() -> None:
    call = ToolCall(id="call_1", name="pay", arguments_json='{"amount":1}', response_id="resp_1", item_id="item_1")

    assert (call.id, call.name, call.arguments_json) == ("call_1", "pay", '{"amount":1}')
    assert (call.response_id, call.item_id) == ("resp_1", "item_1")
    assert ToolCall(id="c", name="n", guideline_ids=("g-1", "g-2")).guideline_ids == ("g-1", "g-2")


@pytest.mark.proves("PH-25")
def test_a_call_needs_only_its_id_and_its_name() -> None:
    call = ToolCall(id="call_1", name="pay")

    assert (call.arguments_json, call.response_id, call.item_id, call.guideline_ids) == ("", None, None, ())


@pytest.mark.proves("PH-D18")
def test_no_value_has_one_name_for_the_phone_call_and_the_tool_call() -> None:
    names = {type(value).__name__: set(value.__struct_fields__) for value in VALUES}

    assert "session_id" in names["ToolContext"]
    assert "call_id" not in names["ToolContext"] | names["ToolCall"]
    assert "session_id" not in names["ToolCall"] | names["ToolResult"]


@pytest.mark.proves("HC-04", "PH-51", "GC-27")
def test_a_result_has_an_output_or_an_error() -> None:
    good, bad = ToolResult(output={"a": 1}), ToolResult(error=Failure(code="no_stock", message="None left."))

    assert (good.output, good.error, good.ok) == ({"a": 1}, None, True)
    assert (bad.output, bad.ok) == (None, False)
    assert (good.call_id, good.tool_name, good.metadata, good.context, good.control) == ("", "", {}, None, None)
    assert good.duration_ms == 0


@pytest.mark.proves("HC-04")
def test_a_text_for_an_error_becomes_a_failure() -> None:
    assert ToolResult(error="boom").error == Failure(code="tool_execution_failed", message="boom", retryable=False)


@pytest.mark.parametrize("wrong", [5, ValueError("boom"), ToolError("boom"), {"code": "x"}])
def test_any_other_error_is_refused_where_it_is_written(wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"is a Failure or a str, not {type(wrong).__name__}"):
        ToolResult(error=wrong)


@pytest.mark.proves("GC-29")
def test_control_says_nothing_for_the_whole_session_by_default() -> None:
    assert (Control().mode, Control().lifespan) == (None, "session")
    assert (Control(mode="auto").mode, Control(mode="manual", lifespan="response").lifespan) == ("auto", "response")


def test_results_do_not_share_their_metadata() -> None:
    one, other = ToolResult(), ToolResult()

    assert one.metadata is not other.metadata


class Shade(StrEnum):
    RED = "red"


class OldShade(str, Enum):  # noqa: UP042  # its str() is not its text
    RED = "red"


class Text(str):
    pass


class Balance(BaseModel):
    amount: float
    currency: str = "EUR"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        ('{"not": "touched"}', '{"not": "touched"}'),
        ("Grüße 👋", "Grüße 👋"),
        (Text("as it is"), "as it is"),
        (Shade.RED, "red"),
        (OldShade.RED, "red"),
        (None, "null"),
        (True, "true"),
        (12, "12"),
        ([1, {"a": "ü"}], '[1,{"a":"ü"}]'),
        (Balance(amount=1.5), '{"amount":1.5,"currency":"EUR"}'),
        (float("nan"), '"NaN"'),
        ([float("inf")], '["Infinity"]'),
        (b"bytes", '"bytes"'),
        ("half \ud800", "half ?"),
        (Text("half \ud800"), "half ?"),
        ({"half \ud800": ["\udfff"]}, '{"half ?":["?"]}'),
    ],
)
@pytest.mark.proves("PH-52")
def test_the_model_reads_a_text_as_it_is_and_anything_else_as_compact_json(output: object, text: str) -> None:
    assert ToolResult(output=output).for_model() == text


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (ToolResult(error="boom"), {"error": "tool_execution_failed", "tool": "", "message": "boom"}),
        (
            ToolResult(error=Failure(code="no_stock", message="None left.", retryable=True), tool_name="buy"),
            {"error": "no_stock", "tool": "buy", "message": "None left."},
        ),
        (
            ToolResult(output="its own", error=Failure(message="half \ud800"), tool_name="\ud800"),
            {"error": "tool_execution_failed", "tool": "?", "message": "half ?", "output": "its own"},
        ),
    ],
)
@pytest.mark.proves("PH-53")
def test_every_failure_has_one_form_for_the_model(result: ToolResult, told: dict[str, str]) -> None:
    assert result.for_model() == json.dumps({"ok": False, **told}, separators=(",", ":"))


@pytest.mark.proves("GC-28")
def test_metadata_and_context_reach_no_model() -> None:
    private = {"customer": "Ann Secret"}
    for result in (
        ToolResult(output="done", metadata=private, context=private),
        ToolResult(error="failed", metadata=private, context=private),
    ):
        assert "Secret" not in result.for_model()


def looped() -> Any:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def deep(bottom: Any) -> Any:
    for _ in range(100_000):
        bottom = [bottom]
    return bottom


@pytest.mark.parametrize(
    "output",
    [
        object(),
        {"a": [object()]},
        b"\xff\xfe",
        looped(),
        ["\ud800", looped()],
        deep(1),
        deep("\ud800"),
        lambda: 1,
        ToolResult(output=1),
        (1 / 0 for _ in "x"),
    ],
    ids=[
        "object",
        "nested",
        "bytes",
        "ring",
        "ring and half",
        "deep",
        "deep and half",
        "lambda",
        "result",
        "generator",
    ],
)
@pytest.mark.proves("PH-52")
def test_what_is_no_json_is_reported_as_a_failure_and_never_raised(output: Any) -> None:
    told = json.loads(ToolResult(output=output, tool_name="odd").for_model())

    assert told == {
        "ok": False,
        "error": "tool_execution_failed",
        "tool": "odd",
        "message": "The tool returned a value that cannot be written as JSON.",
    }


texts = st.text(st.characters(codec=None) | st.sampled_from(["\ud800", "\udfff", "\x00", "\x7f"]))
leaves = st.one_of(
    texts,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(),
    st.decimals(),
    st.complex_numbers(),
    st.datetimes(),
    st.uuids(),
    st.sets(st.integers()),
    st.builds(object),
    st.sampled_from([Shade.RED, OldShade.RED, object, looped(), ...]),
)
keys = texts | st.integers() | st.none() | st.booleans() | st.floats() | st.tuples(texts)
anything = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(keys, inner)
        | st.tuples(inner, inner)
        | st.builds(lambda value: Balance.model_construct(amount=value), inner)
    ),
    max_leaves=8,
)


@given(output=anything)
@pytest.mark.proves("PH-52")
def test_whatever_a_tool_returns_the_model_gets_text_that_can_be_sent(output: Any) -> None:
    text = ToolResult(output=output).for_model()

    assert type(text) is str
    text.encode("utf-8")
    if not isinstance(output, str):
        json.loads(text, parse_constant=pytest.fail)


@given(code=texts, message=texts, name=texts)
@pytest.mark.proves("PH-53")
def test_whatever_a_failure_says_it_has_its_form(code: str, message: str, name: str) -> None:
    result = ToolResult(error=Failure(code=code, message=message), tool_name=name)

    assert list(json.loads(result.for_model().encode())) == ["ok", "error", "tool", "message"]


@given(output=anything)
async def test_what_a_handler_returns_is_reported_under_the_id_of_its_call(output: Any) -> None:
    @tool(read_only=True, inline=True)
    def answer() -> Any:
        return output

    context = ToolContext(session_id="s-1", call=ToolCall(id="call_1", name="answer"))
    result = await answer.execute({}, context)

    assert (result.call_id, result.tool_name) == ("call_1", "answer")
    result.for_model().encode()
