"""The messages of a conversation, as values that every provider takes and that can be saved."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from handrail.core.text import encodable
from handrail.core.values import Failure, ToolCall, ToolResult


class Native(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message in an API's own format; thoughts and their signatures must be sent back unchanged."""

    format: str
    """The module of `handrail.formats` that reads it; other APIs get the neutral message."""
    items: tuple[Mapping[str, Any], ...]


class UserMessage(Struct, frozen=True, kw_only=True, tag="user", omit_defaults=True):
    """A message of the person in the conversation."""

    text: str
    """What a model reads."""
    typed: str | None = None
    """What the person wrote themselves, if `text` also has what they pasted or forwarded; None: all of it."""
    quoted: tuple[str, ...] = ()
    """What they pasted or forwarded: the source of no value."""

    @property
    def own_words(self) -> str:
        """What the person wrote themselves."""
        return self.text if self.typed is None else self.typed


class AssistantMessage(Struct, frozen=True, kw_only=True, tag="assistant", omit_defaults=True):
    """A message of the model: its text and its calls."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    native: Native | None = None


class ToolMessage(Struct, frozen=True, kw_only=True, tag="tool"):
    """The results of all calls of the message before it, in their order."""

    results: tuple[ToolResult, ...]
    """Each reduced to what a model sees: `to_history_result(result)`."""


def build_user_message(text: str, quoted: Iterable[str] = ()) -> UserMessage:
    """A message with what the person typed, and after it what they pasted or forwarded."""
    parts = tuple(encodable(part) for part in quoted)
    typed = encodable(text)
    if not parts:
        return UserMessage(text=typed)
    pasted = "\n\n".join(f"[Pasted or forwarded by the person, not written by them:]\n{part}" for part in parts)
    return UserMessage(text=f"{typed}\n\n{pasted}", typed=typed, quoted=parts)


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
        form=None if result.notice else "text" if isinstance(result.output, str) else "data",
        media=result.media,
        call_id=result.call_id,
        provider_id=result.provider_id,
        tool_name=result.tool_name,
    )
