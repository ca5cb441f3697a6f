"""The messages of a conversation, as values that every provider takes and that can be saved."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from handrail.core.text import encodable
from handrail.core.values import Failure, ToolCall, ToolResult


class Native(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message in an API's own format; thoughts and their signatures must be sent back unchanged."""

    format: str
    """The module of `handrail.formats` that reads it; other APIs get the neutral message."""
    items: tuple[Mapping[str, Any], ...]


class UserMessage(Struct, frozen=True, kw_only=True, tag="user"):
    """A message of the person in the conversation."""

    text: str


class AssistantMessage(Struct, frozen=True, kw_only=True, tag="assistant", omit_defaults=True):
    """A message of the model: its text and its calls."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    native: Native | None = None


class ToolMessage(Struct, frozen=True, kw_only=True, tag="tool"):
    """The results of all calls of the message before it, in their order."""

    results: tuple[ToolResult, ...]
    """Each reduced to what a model sees: `to_history_result(result)`."""


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


def to_history_result(result: ToolResult) -> ToolResult:
    """A result reduced to what the model sees, which is what a history keeps."""
    if (error := result.error) is not None:
        failure = Failure(code=encodable(error.code), message=encodable(error.message), retryable=error.retryable)
        return ToolResult(
            error=failure, call_id=result.call_id, provider_id=result.provider_id, tool_name=result.tool_name
        )
    return ToolResult(
        output=result.text,
        media=result.media,
        call_id=result.call_id,
        provider_id=result.provider_id,
        tool_name=result.tool_name,
    )
