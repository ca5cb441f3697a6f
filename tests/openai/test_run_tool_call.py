"""Running one call: what goes into a handler, what comes out, and what the model reads when something is wrong.

Every test runs against `core` and against `aio`.
"""

import json
from typing import Any, get_args

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageCustomToolCall, ChatCompletionMessageFunctionToolCall
from openai.types.responses import ResponseFunctionToolCall

from handrail import ToolCall
from handrail.openai import core
from tests.openai.facades import AIO, CORE, Facade

ARGUMENTS = '{"city": "Oslo", "days": 2}'


def forecast_of(facade: Facade, handle: Any = None, **members: Any) -> Any:
    """A tool class named `forecast`."""

    def answer(self: Any, context: Any) -> Any:
        return f"{self.city}: sun for {self.days} days", context

    fields = {"__annotations__": {"city": str, "days": int, "hour": int}, "hour": 12}
    body = {"__module__": __name__, **fields, **members}
    return type("forecast", (facade.LLMFunctionTool,), {**body, "model_tool_handler": facade.handler(handle or answer)})


def call_of(arguments: Any = ARGUMENTS, *, name: str = "forecast", id: str = "call_1") -> core.StandardToolCall:
    return core.StandardToolCall(id=id, name=name, arguments=arguments)


def raising(error: BaseException) -> Any:
    def handle(self: Any, context: Any) -> Any:
        raise error

    return handle


def returning(value: Any) -> Any:
    return lambda self, context: value


def run(facade: Facade, tool: Any, call: Any = None, context: Any = None) -> Any:
    return facade.wait(tool.model_tool_run_tool_call(call_of() if call is None else call, context))


FUNCTION = {"name": "forecast", "arguments": ARGUMENTS}
FORMS: dict[str, Any] = {
    "chat": ChatCompletionMessageFunctionToolCall.model_validate(
        {"id": "call_1", "type": "function", "function": FUNCTION}
    ),
    "responses": ResponseFunctionToolCall.model_validate(
        {"id": "fc_1", "call_id": "call_1", "type": "function_call", "status": "completed", **FUNCTION}
    ),
    "standard": call_of(),
    "ours": ToolCall(id="call_1", name="forecast", arguments_json=ARGUMENTS),
    "chat dict": {"id": "call_1", "type": "function", "function": FUNCTION},
    "chat dict without a type": {"id": "call_1", "function": FUNCTION},
    "responses dict": {"id": "fc_1", "call_id": "call_1", "type": "function_call", **FUNCTION},
    "responses dict without an id": {"call_id": "call_1", **FUNCTION},
}


@pytest.mark.proves("TC-33", "TC-45")
@pytest.mark.parametrize("form", FORMS)
def test_a_call_of_any_form_is_validated_run_and_gets_a_result(facade: Facade, form: str) -> None:
    result = run(facade, forecast_of(facade), FORMS[form], context="mine")

    assert result == facade.ToolCallSuccess(
        call_id="call_1", result_content="Oslo: sun for 2 days", fail_reason=None, context="mine"
    )
    assert type(result) is facade.ToolCallSuccess


def test_an_object_that_is_no_call_of_a_function_is_a_type_error(facade: Facade) -> None:
    custom = ChatCompletionMessageCustomToolCall.model_validate(
        {"id": "call_1", "type": "custom", "custom": {"name": "forecast", "input": "Oslo"}}
    )
    with pytest.raises(TypeError, match=r"^Unsupported tool call type: ChatCompletionMessageCustomToolCall"):
        run(facade, forecast_of(facade), custom)


@pytest.mark.proves("TC-35")
def test_the_handler_gets_the_arguments_as_self_and_the_very_context(facade: Facade) -> None:
    seen: list[Any] = []
    tool = forecast_of(facade, lambda self, context: (seen.append((self, context)), ("", None))[1])
    context = object()

    run(facade, tool, context=context)

    [(instance, got)] = seen
    assert type(instance) is tool
    assert (instance.city, instance.days) == ("Oslo", 2)
    assert got is context


@pytest.mark.proves("TC-36", "TC-37")
@pytest.mark.parametrize(
    "returned",
    [("sun", 1.5), core.ToolHandlerResult("sun", 1.5), core.ToolHandlerResult[float]("sun", context=1.5)],
    ids=["tuple", "result", "typed result"],
)
def test_a_handler_returns_a_tuple_or_a_result(facade: Facade, returned: Any) -> None:
    result = run(facade, forecast_of(facade, returning(returned)))
    assert (result.result_content, result.context, result.fail_reason) == ("sun", 1.5, None)


@pytest.mark.proves("TC-38")
@pytest.mark.parametrize("returned", [None, "sun", ["sun", 1], ("sun",), ("sun", 1, 2), {"sun": 1}, 5])
def test_a_handler_that_returns_anything_else_is_a_type_error_that_names_the_class(
    facade: Facade, returned: Any
) -> None:
    with pytest.raises(TypeError, match=r"^forecast handler must return ToolHandlerResult or a tuple"):
        run(facade, forecast_of(facade, returning(returned)))


def test_an_override_may_take_another_form_from_the_handler(facade: Facade) -> None:
    def from_text(cls: Any, result: Any) -> Any:
        return facade.ToolHandlerResult(result, None)

    tool = forecast_of(facade, returning("just a text"), model_tool_validate_handler_result=classmethod(from_text))
    assert run(facade, tool).result_content == "just a text"


@pytest.mark.proves("TC-39")
def test_a_class_without_a_handler_can_be_sent_and_not_run(facade: Facade) -> None:
    class lookup(facade.LLMFunctionTool):
        city: str

    assert lookup.model_tool_definition("responses")["name"] == "lookup"
    assert run(facade, lookup, call_of("{}", name="lookup")).fail_reason == "invalid_arguments"
    with pytest.raises(NotImplementedError, match=r"^lookup\.model_tool_handler\(\)$"):
        run(facade, lookup, call_of('{"city": "Oslo"}', name="lookup"))


@pytest.mark.proves("TC-40")
def test_how_a_call_becomes_an_instance_can_be_overridden(facade: Facade) -> None:
    seen: list[Any] = []

    def validate(cls: Any, name: str, arguments: str) -> Any:
        seen.append((name, arguments))
        return cls(city="Bergen", days=3)

    tool = forecast_of(facade, model_tool_validate_tool_call=classmethod(validate))

    result = run(facade, tool, call_of("no JSON", name="any name"))

    assert result.result_content == "Bergen: sun for 3 days"
    assert seen == [("any name", "no JSON")]


@pytest.mark.proves("TC-40")
def test_a_call_becomes_an_instance_of_the_class() -> None:
    tool = forecast_of(CORE)
    assert tool.model_tool_validate_tool_call("forecast", ARGUMENTS) == tool(city="Oslo", days=2)


def test_a_call_of_another_name_is_a_mistake_of_the_caller(facade: Facade) -> None:
    tool = forecast_of(facade)
    run(facade, tool)
    child = type("child", (tool,), {"__module__": __name__})
    for asked, other in [(tool, "child"), (child, "forecast")]:
        with pytest.raises(AssertionError, match=f"A call of `{other}` was given to `{asked.__name__}`"):
            run(facade, asked, call_of(name=other))


BAD_ARGUMENTS = {
    "no text": "",
    "a space": " ",
    "no JSON": "{city: Oslo}",
    "half of it": '{"city": "Os',
    "a list": '["Oslo", 2]',
    "null": "null",
    "a number": "5",
    "a text": '"Oslo"',
    "a wrong type": '{"city": "Oslo", "days": "two"}',
    "one missing": '{"city": "Oslo"}',
    "all missing": "{}",
    "null for a value": '{"city": null, "days": 2}',
    "not a number": '{"city": "Oslo", "days": NaN}',
    "a lone surrogate, escaped": '{"city": "\\ud800", "days": 2}',
    "a lone surrogate": '{"city": "\ud800", "days": 2}',
    "control characters": '{"city": "\x00\x1b", "days": 2}',
    "one megabyte of nesting": "[" * 1_000_000,
    "objects in objects": '{"city":' * 100_000,
    "what some servers send": None,
    "already an object": {"city": "Oslo", "days": 2},
}


@pytest.mark.proves("TC-41", "TC-42", "TC-46", "TC-D2")
@pytest.mark.parametrize("kind", BAD_ARGUMENTS)
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_bad_arguments_get_the_validation_error_and_run_nothing(facade: Facade, kind: str, strict: bool) -> None:
    arguments = BAD_ARGUMENTS[kind]
    tool = forecast_of(facade, raising(AssertionError("it ran")), model_tool_strict=strict)
    with pytest.raises(pydantic.ValidationError) as error:
        tool.model_validate_json(arguments)

    result = run(facade, tool, call_of(arguments))

    assert result == facade.ToolCallFailure(
        call_id="call_1", result_content=str(error.value), fail_reason="invalid_arguments"
    )
    assert type(result) is facade.ToolCallFailure
    assert result.context is None
    json.dumps(result.tool_message, ensure_ascii=False).encode()


@pytest.mark.proves("TC-42")
def test_the_words_for_bad_arguments_can_be_overridden(facade: Facade) -> None:
    def words(cls: Any, err: pydantic.ValidationError) -> str:
        return f"{cls.__name__} has {err.error_count()} faults"

    tool = forecast_of(facade, model_tool_format_invalid_arguments_error=classmethod(words))
    assert run(facade, tool, call_of("{}")).result_content == "forecast has 2 faults"


@pytest.mark.proves("TC-43", "TC-44", "TC-46")
@pytest.mark.parametrize(
    ("given", "text"),
    [(("No forecast.",), "No forecast."), ((), ""), ((5,), "5"), ((None,), "None"), ((ValueError("deep"),), "deep")],
)
def test_an_explicit_error_is_read_by_the_model(facade: Facade, given: tuple[Any, ...], text: str) -> None:
    def deeper() -> None:
        raise facade.ToolErrorMessageForLLMToSee(*given)

    result = run(facade, forecast_of(facade, lambda self, context: deeper()))

    assert result == facade.ToolCallFailure(
        call_id="call_1", result_content=text, fail_reason="explicit_handler_error", context=None
    )


@pytest.mark.proves("TC-43")
def test_a_child_of_the_explicit_error_is_one_too_however_it_is_made(facade: Facade) -> None:
    class Closed(facade.ToolErrorMessageForLLMToSee):
        def __init__(self, place: str) -> None:  # it does not call super().__init__()
            self.place = place

    class Own(facade.ToolErrorMessageForLLMToSee):
        def __str__(self) -> str:
            return "in its own words"

    assert run(facade, forecast_of(facade, raising(Closed("Oslo")))).result_content == "Oslo"
    assert run(facade, forecast_of(facade, raising(Own("x")))).result_content == "in its own words"


@pytest.mark.proves("TC-44")
def test_the_words_of_an_explicit_error_can_be_overridden(facade: Facade) -> None:
    def words(cls: Any, err: Exception) -> str:
        return f"{cls.__name__}: {err}"

    error = facade.ToolErrorMessageForLLMToSee("closed")
    tool = forecast_of(facade, raising(error), model_tool_format_explicit_error=classmethod(words))
    assert run(facade, tool).result_content == "forecast: closed"


class Unexpected(Exception):
    """An error that nobody here knows."""


def validation_error() -> pydantic.ValidationError:
    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(int).validate_python("x")
    return caught.value


@pytest.mark.proves("TC-D1")
@pytest.mark.parametrize(
    "error",
    [Unexpected("boom"), ValueError("boom"), KeyError("boom"), AssertionError("boom"), validation_error()],
    ids=lambda error: type(error).__name__,
)
def test_any_other_error_of_a_handler_reaches_the_caller_as_it_was_raised(facade: Facade, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        run(facade, forecast_of(facade, raising(error)))
    assert caught.value is error


@pytest.mark.proves("TC-D1")
@pytest.mark.parametrize("hook", ["model_tool_format_invalid_arguments_error", "model_tool_format_explicit_error"])
def test_an_error_of_a_hook_reaches_the_caller(facade: Facade, hook: str) -> None:
    def broken(cls: Any, err: Any) -> str:
        raise Unexpected("in the hook")

    handle = raising(facade.ToolErrorMessageForLLMToSee("x"))
    tool = forecast_of(facade, handle, **{hook: classmethod(broken)})
    with pytest.raises(Unexpected, match="in the hook"):
        run(facade, tool, call_of("{}" if "invalid" in hook else ARGUMENTS))


@pytest.mark.proves("TC-47")
def test_there_are_three_reasons_to_fail() -> None:
    assert set(get_args(core.ToolCallFailReason)) == {"invalid_name", "invalid_arguments", "explicit_handler_error"}


@pytest.mark.proves("TC-51")
def test_the_context_of_a_handler_is_in_nothing_that_a_model_reads(facade: Facade) -> None:
    secret = "for the caller only"
    result = run(facade, forecast_of(facade, returning(("sun", secret))))
    assert result.context is secret
    assert secret not in json.dumps([result.tool_message, result.output_item])


HOSTILE = st.text(st.characters(exclude_categories=()))
"""Any text, with lone surrogates and control characters in it."""
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | HOSTILE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["city", "days", "x"]), inner),
    max_leaves=8,
)
GROUPS: dict[str, Any] = {
    name: facade.LLMFunctionToolGroup.from_list(
        [forecast_of(facade), forecast_of(facade, model_tool_strict=True, model_tool_custom_name="strict")]
    )
    for name, facade in (("core", CORE), ("aio", AIO))
}


@pytest.mark.proves("TC-47", "TC-D2")
@given(arguments=HOSTILE | ANYTHING.map(json.dumps), name=st.sampled_from(["forecast", "strict"]) | HOSTILE)
def test_whatever_a_model_sends_gets_a_result_under_its_id_in_words_that_can_be_sent(arguments: str, name: str) -> None:
    call = call_of(arguments, name=name)
    for facade, group in ((CORE, GROUPS["core"]), (AIO, GROUPS["aio"])):
        result = facade.wait(group.run_tool_call(call, None))

        assert result.call_id == "call_1"
        assert result.fail_reason in ({None, "invalid_arguments"} if name in group else {"invalid_name"})
        json.dumps(result.tool_message, ensure_ascii=False).encode()
