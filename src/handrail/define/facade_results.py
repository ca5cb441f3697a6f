"""What comes of a call through `handrail.openai`: a success or a failure, and its messages for the two APIs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, TypeAlias

import pydantic
from msgspec import Struct
from typing_extensions import TypeVar

from handrail.core.values import ToolCall
from handrail.errors import ToolError

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageToolCallUnion, ChatCompletionToolMessageParam
    from openai.types.chat.chat_completion_content_part_text_param import ChatCompletionContentPartTextParam
    from openai.types.responses import ResponseFunctionToolCall
    from openai.types.responses.response_input_param import FunctionCallOutput

    ToolMessageContent: TypeAlias = str | Iterable[ChatCompletionContentPartTextParam]
else:  # `openai` is not imported at run time; Pydantic validates with this type instead.
    ToolMessageContent = str | list[dict[str, Any]]

ContextOut = TypeVar("ContextOut", infer_variance=True)

ToolErrorMessageForLLMToSee: TypeAlias = ToolError
"""Raise it in a handler to send its text to the model as the result of the call."""

ToolCallFailReason: TypeAlias = Literal["invalid_name", "invalid_arguments", "explicit_handler_error"]


class ToolHandlerResult(NamedTuple, Generic[ContextOut]):
    """What a handler returns: text for the model, and a context for the caller's own code."""

    result_content: str
    context: ContextOut


@dataclass(frozen=True, kw_only=True)
class _CallOutcome:
    call_id: str
    result_content: ToolMessageContent
    """Text for the model; Chat Completions also accepts a list of text parts."""

    # Built once, so that a caller can change the message. Not a `cached_property`, which takes a lock on Python 3.11.

    @property
    def tool_message(self) -> "ChatCompletionToolMessageParam":
        """The result as a Chat Completions message."""
        message = {"role": "tool", "tool_call_id": self.call_id, "content": self.result_content}
        return self.__dict__.setdefault("tool_message", message)

    @property
    def output_item(self) -> "FunctionCallOutput":
        """The result as a Responses item."""
        if not isinstance(self.result_content, str):
            raise AssertionError("The Responses API takes text here, not the parts of a chat message.")
        item = {"call_id": self.call_id, "type": "function_call_output", "output": self.result_content}
        return self.__dict__.setdefault("output_item", item)


@dataclass(frozen=True, kw_only=True)
class ToolCallSuccess(_CallOutcome, Generic[ContextOut]):
    """The handler ran; `context` is what it returned for the caller."""

    fail_reason: None = None
    context: ContextOut


@dataclass(frozen=True, kw_only=True)
class ToolCallFailure(_CallOutcome):
    """The call failed; the content tells the model why."""

    fail_reason: ToolCallFailReason
    context: None = None


ToolCallResult: TypeAlias = Annotated[
    ToolCallSuccess[ContextOut] | ToolCallFailure, pydantic.Discriminator("fail_reason")
]
"""The result of a call. Check `fail_reason is None` to tell the two apart; type checkers understand it."""


class StandardToolCall(Struct, frozen=True, kw_only=True):
    """A tool call of either OpenAI API."""

    id: str
    name: str
    arguments: str


AnyToolCall: TypeAlias = (
    "ChatCompletionMessageToolCallUnion | ResponseFunctionToolCall | StandardToolCall | ToolCall | Mapping[str, Any]"
)


def standardize_tool_call(call: AnyToolCall) -> StandardToolCall:
    """Convert a call of Chat Completions or Responses, an SDK object or a dict, to a `StandardToolCall`."""
    one: Any = call
    if type(one) is StandardToolCall:
        return one
    kind = getattr(one, "type", None)
    try:
        if kind == "function":
            function = one.function
            return StandardToolCall(id=one.id, name=function.name, arguments=function.arguments)
        if kind == "function_call":
            return StandardToolCall(id=one.call_id, name=one.name, arguments=one.arguments)
        if isinstance(one, ToolCall):
            return StandardToolCall(id=one.id, name=one.name, arguments=one.arguments_json or "{}")
        if "function" in one:
            function = one["function"]
            return StandardToolCall(id=one["id"], name=function["name"], arguments=function["arguments"])
        return StandardToolCall(id=one["call_id"], name=one["name"], arguments=one["arguments"])
    except (AttributeError, KeyError, TypeError) as error:
        expected = "id and function (name, arguments), or call_id, name and arguments"
        raise TypeError(f"Unsupported tool call type: {type(one).__name__}. A call has {expected}.") from error


_SUCCESS: Any = ToolCallSuccess


def build_success(call: StandardToolCall, content: str, context: ContextOut) -> ToolCallSuccess[ContextOut]:
    """Build the result of a call whose handler returned."""
    # Without the `__init__` of a frozen dataclass: 3.0 µs for a whole call instead of 3.6.
    success: Any = object.__new__(_SUCCESS)
    fields = success.__dict__
    fields["call_id"] = call.id
    fields["result_content"] = content
    fields["fail_reason"] = None
    fields["context"] = context
    return success


def build_failure(call: StandardToolCall, reason: ToolCallFailReason, text: str) -> ToolCallFailure:
    """Build the result of a call that failed."""
    return ToolCallFailure(call_id=call.id, result_content=text, fail_reason=reason)
