"""The vocabulary of dispatch by hand: a call in one shape, and the two kinds of answer."""

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionToolMessageParam
from openai.types.responses import ResponseFunctionToolCall
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import BaseModel, TypeAdapter, ValidationError

from handrail import ToolCall
from handrail.define.facade_results import build_success
from handrail.openai.core import (
    StandardToolCall,
    ToolCallFailReason,
    ToolCallFailure,
    ToolCallResult,
    ToolCallSuccess,
    ToolHandlerResult,
    ToolMessageContent,
    standardize_tool_call,
)

SUCCESS = ToolCallSuccess(call_id="call_1", result_content="sun", context=1.5)
FAILURE = ToolCallFailure(call_id="call_1", result_content="no sun", fail_reason="explicit_handler_error")
PARTS = [{"type": "text", "text": "sun"}, {"type": "text", "text": "rain"}]


# Calls


@pytest.mark.proves("TC-34")
@given(id=st.text(), name=st.text(), arguments=st.text())
def test_a_call_of_any_form_has_one_shape(id: str, name: str, arguments: str) -> None:
    function = {"name": name, "arguments": arguments}
    chat = {"id": id, "type": "function", "function": function}
    responses = {"id": "fc_1", "call_id": id, "type": "function_call", **function}
    standard = StandardToolCall(id=id, name=name, arguments=arguments)

    assert standardize_tool_call(standard) is standard
    assert standardize_tool_call(chat) == standard
    assert standardize_tool_call(responses) == standard
    assert standardize_tool_call(ChatCompletionMessageFunctionToolCall.model_validate(chat)) == standard
    assert standardize_tool_call(ResponseFunctionToolCall.model_validate(responses)) == standard
    assert (standard.id, standard.name, standard.arguments) == (id, name, arguments)


def test_empty_text_means_no_arguments_in_a_call_of_ours() -> None:
    assert standardize_tool_call(ToolCall(id="c", name="now")).arguments == "{}"
    assert standardize_tool_call({"call_id": "c", "name": "now", "arguments": ""}).arguments == ""


@pytest.mark.proves("TC-34")
@pytest.mark.parametrize(
    "call",
    [
        None,
        5,
        "call",
        [],
        {},
        {"id": "c", "function": None},
        {"id": "c", "function": {"name": "now"}},
        {"function": {"name": "now", "arguments": "{}"}},
        {"id": "fc_1", "name": "now", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c", "name": "now", "input": "x"},
        ChatCompletionMessageFunctionToolCall.model_construct(id="c", type="function", function=None),
    ],
    ids=repr,
)
def test_anything_else_is_a_type_error_that_says_what_is_wanted(call: Any) -> None:
    with pytest.raises(TypeError, match=f"^Unsupported tool call type: {type(call).__name__}. A call has id and"):
        standardize_tool_call(call)


def test_a_standard_call_is_frozen() -> None:
    call = StandardToolCall(id="c", name="now", arguments="{}")
    with pytest.raises(AttributeError):
        call.id = "other"
    assert hash(call) == hash(copy.copy(call))
    assert repr(call) == "StandardToolCall(id='c', name='now', arguments='{}')"


# Answers


@pytest.mark.proves("TC-45", "TC-46", "TC-47")
def test_an_answer_says_what_it_is() -> None:
    assert (SUCCESS.fail_reason, SUCCESS.context) == (None, 1.5)
    assert (FAILURE.fail_reason, FAILURE.context) == ("explicit_handler_error", None)
    with pytest.raises(TypeError):
        ToolCallSuccess("call_1", "sun", 1.5)
    with pytest.raises(TypeError):
        ToolCallSuccess(call_id="call_1", result_content="sun")
    with pytest.raises(TypeError):
        ToolCallFailure(call_id="call_1", result_content="sun")


@pytest.mark.proves("TC-49", "TC-50")
@pytest.mark.parametrize("answer", [SUCCESS, FAILURE])
def test_an_answer_is_a_message_of_either_api(answer: Any) -> None:
    text = answer.result_content
    assert answer.tool_message == {"role": "tool", "tool_call_id": "call_1", "content": text}
    assert answer.output_item == {"type": "function_call_output", "call_id": "call_1", "output": text}
    TypeAdapter(ChatCompletionToolMessageParam).validate_python(answer.tool_message)
    TypeAdapter(FunctionCallOutput).validate_python(answer.output_item)


def test_a_message_is_made_once_so_that_a_caller_can_change_it() -> None:
    answer = dataclasses.replace(SUCCESS)
    answer.tool_message["content"] = "much sun"
    answer.output_item["output"] = "much sun"
    assert (answer.tool_message["content"], answer.output_item["output"]) == ("much sun", "much sun")
    assert answer == SUCCESS
    assert answer.result_content == "sun"


@pytest.mark.proves("TC-49", "TC-50")
def test_text_parts_go_into_a_chat_message_and_into_no_responses_item() -> None:
    answer = ToolCallSuccess(call_id="call_1", result_content=PARTS, context=None)
    assert answer.tool_message["content"] == PARTS
    TypeAdapter(ChatCompletionToolMessageParam).validate_python(answer.tool_message)
    with pytest.raises(AssertionError, match="takes text here"):
        _ = answer.output_item


def same_in_every_way(made: Any, built: Any) -> bool:
    assert vars(made).keys() - {"tool_message"} == vars(built).keys() - {"tool_message"}
    assert made.tool_message == built.tool_message
    dumps = [TypeAdapter(ToolCallSuccess[Any]).dump_python(item) for item in (made, built)]
    return (
        made == built
        and repr(made) == repr(built)
        and dataclasses.asdict(made) == dataclasses.asdict(built)
        and dumps[0] == dumps[1]
        and type(made) is type(built)
    )


@given(id=st.text(), content=st.text(), context=st.none() | st.integers() | st.text())
def test_a_result_that_is_filled_by_hand_is_like_one_that_is_built(id: str, content: str, context: Any) -> None:
    made = build_success(StandardToolCall(id=id, name="n", arguments=""), content, context)
    built = ToolCallSuccess(call_id=id, result_content=content, context=context)
    assert same_in_every_way(made, built)
    assert hash(made) == hash(built)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.context = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.call_id
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)), dataclasses.replace(made)):
        assert same_in_every_way(again, built)


@pytest.mark.parametrize("answer", [SUCCESS, FAILURE])
def test_pydantic_can_store_an_answer_and_read_it_again(answer: Any) -> None:
    class Turn(BaseModel):
        answers: list[ToolCallResult[float]]

    _ = answer.tool_message  # it is no field
    turn = Turn(answers=[answer])
    again = Turn.model_validate_json(turn.model_dump_json())
    assert again.answers == [answer]
    assert type(again.answers[0]) is type(answer)
    adapter = TypeAdapter[Any](ToolCallResult[float])
    assert adapter.validate_python(json.loads(adapter.dump_json(answer))) == answer


def test_pydantic_refuses_what_no_answer_says() -> None:
    adapter = TypeAdapter[Any](ToolCallResult[float])
    good = {"call_id": "c", "result_content": "x", "fail_reason": None, "context": 1.5}
    for bad in ({"fail_reason": "tired"}, {"context": "x"}, {"result_content": 5}, {"call_id": None}):
        with pytest.raises(ValidationError):
            adapter.validate_python(good | bad)


@pytest.mark.proves("TC-37")
def test_the_result_of_a_handler_is_a_tuple_with_names() -> None:
    result = ToolHandlerResult("sun", 1.5)
    assert result == ("sun", 1.5) == ToolHandlerResult(result_content="sun", context=1.5)
    assert (result.result_content, result.context) == tuple(result)


def test_the_names_that_are_types_can_be_used_as_types() -> None:
    assert TypeAdapter(ToolCallFailReason).validate_python("invalid_name") == "invalid_name"
    with pytest.raises(ValidationError):
        TypeAdapter(ToolCallFailReason).validate_python("tired")
    assert TypeAdapter(ToolMessageContent).validate_python("sun") == "sun"
    assert TypeAdapter(ToolMessageContent).validate_python(PARTS) == PARTS
