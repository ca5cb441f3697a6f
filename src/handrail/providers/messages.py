"""A conversation as data: what any provider can be asked with, and what can be saved."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from handrail.core.text import encodable
from handrail.core.values import Failure, ToolCall, ToolResult


class Native(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an API itself said, in its own words: thoughts and their signatures must go back as they came."""

    format: str
    """The name of the module of `handrail.formats` that reads it; another API gets the neutral form."""
    items: tuple[Mapping[str, Any], ...]


class UserMessage(Struct, frozen=True, kw_only=True, tag="user"):
    """What the person in the conversation said."""

    text: str


class AssistantMessage(Struct, frozen=True, kw_only=True, tag="assistant", omit_defaults=True):
    """What the model said, and what it wants to have called."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    native: Native | None = None


class ToolMessage(Struct, frozen=True, kw_only=True, tag="tool"):
    """The answers to all calls of the message before it, in their order."""

    results: tuple[ToolResult, ...]
    """Each with what a model sees and no more: `shown(result)`."""


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


def shown(result: ToolResult) -> ToolResult:
    """A result reduced to what the model is shown of it, which is what a history keeps."""
    if (error := result.error) is not None:
        words = Failure(code=encodable(error.code), message=encodable(error.message), retryable=error.retryable)
        return ToolResult(error=words, call_id=result.call_id, tool_name=result.tool_name)
    return ToolResult(output=result.for_model(), call_id=result.call_id, tool_name=result.tool_name)
