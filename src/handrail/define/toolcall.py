"""The vocabulary of dispatch by hand: a call in, a success or a failure out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, TypeAlias

import pydantic
from typing_extensions import TypeVar

from handrail.core.values import ToolCall
from handrail.errors import ToolError

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageToolCallUnion, ChatCompletionToolMessageParam
    from openai.types.chat.chat_completion_content_part_text_param import ChatCompletionContentPartTextParam
    from openai.types.responses import ResponseFunctionToolCall
    from openai.types.responses.response_input_param import FunctionCallOutput

ContextOut = TypeVar("ContextOut")

ToolErrorMessageForLLMToSee: TypeAlias = ToolError
"""Raise it in a handler: the model reads its text as the result of the call."""

ToolCallFailReason: TypeAlias = Literal["invalid_name", "invalid_arguments", "explicit_handler_error"]
ToolMessageContent: TypeAlias = "str | Iterable[ChatCompletionContentPartTextParam]"


class ToolHandlerResult(NamedTuple, Generic[ContextOut]):
    """What a handler returns: text for the model, and anything for the caller's own code."""

    result_content: str
    context: ContextOut


@dataclass(frozen=True, kw_only=True)
class _Answered:
    call_id: str
    result_content: Any
    """Text for the model; Chat Completions also takes a list of text parts."""

    @cached_property
    def tool_message(self) -> "ChatCompletionToolMessageParam":
        """The answer as a Chat Completions message."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": self.result_content}

    @cached_property
    def output_item(self) -> "FunctionCallOutput":
        """The answer as a Responses item."""
        return {"call_id": self.call_id, "type": "function_call_output", "output": self.result_content}


@dataclass(frozen=True, kw_only=True)
class ToolCallSuccess(_Answered, Generic[ContextOut]):
    """The handler ran; `context` is what it returned for the caller."""

    fail_reason: None = None
    context: ContextOut


@dataclass(frozen=True, kw_only=True)
class ToolCallFailure(_Answered):
    """The model is told why the call failed."""

    fail_reason: ToolCallFailReason
    context: None = None


ToolCallResult: TypeAlias = Annotated[
    ToolCallSuccess[ContextOut] | ToolCallFailure, pydantic.Discriminator("fail_reason")
]
"""`fail_reason is None` tells the two apart, for people and for type checkers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardToolCall:
    """A call of any OpenAI API."""

    id: str
    name: str
    arguments: str


AnyToolCall: TypeAlias = (
    "ChatCompletionMessageToolCallUnion | ResponseFunctionToolCall | StandardToolCall | ToolCall | Mapping[str, Any]"
)


def standardize_tool_call(call: AnyToolCall) -> StandardToolCall:
    """A call of Chat Completions or Responses, an SDK's object or a plain dict, in one shape."""
    if type(call) is StandardToolCall:
        return call
    if isinstance(call, Mapping):
        return _from_mapping(call)
    if isinstance(call, ToolCall):
        return StandardToolCall(id=call.id, name=call.name, arguments=call.arguments_json)
    one: Any = call
    kind = getattr(one, "type", None)
    if kind == "function":
        function = one.function
        return StandardToolCall(id=one.id, name=function.name, arguments=function.arguments)
    if kind == "function_call":
        return StandardToolCall(id=one.call_id, name=one.name, arguments=one.arguments)
    raise TypeError(f"This is not a call of a function tool: {type(one).__name__}")


def _from_mapping(call: Mapping[str, Any]) -> StandardToolCall:
    try:
        if "function" in call:
            function = call["function"]
            return StandardToolCall(id=call["id"], name=function["name"], arguments=function["arguments"])
        return StandardToolCall(id=call["call_id"], name=call["name"], arguments=call["arguments"])
    except (KeyError, TypeError) as error:
        wanted = '{"id", "function": {"name", "arguments"}} or {"call_id", "name", "arguments"}'
        raise TypeError(f"This is not a call of a function tool; it needs {wanted}.") from error
