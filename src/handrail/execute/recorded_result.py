"""What is kept of a result, to return it again for the same call."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from msgspec import Struct
from pydantic_core import from_json

from handrail.core.media import MediaPart
from handrail.core.values import Control, Failure, ToolResult

VerifyAnswer = Literal["cannot_tell", "too_early", "failed"]
"""Why `verify` did not end a doubt: it returned None; it found nothing, but the handler could still run; it raised, or
took too long."""


class RecordedResult(Struct, frozen=True, kw_only=True, gc=False):
    """What is kept of a result, to return it again for the same call: never its `context`."""

    text: str | None = None
    """The output, redacted: a text, or JSON."""
    is_json: bool = False
    """Whether the output was no text, and is recorded as JSON."""
    failure: Failure | None = None
    control: Control | None = None
    metadata: Mapping[str, Any] = {}
    media: tuple[MediaPart, ...] = ()
    notice: str = ""
    """What the model reads before the output: the arguments that an approver changed."""
    verified: VerifyAnswer | None = None
    """What `verify` said about a call whose outcome is not known."""

    def to_result(self) -> ToolResult:
        """The result that was recorded."""
        output: Any = self.text
        if self.is_json and self.text is not None:
            with suppress(ValueError):  # An integer of thousands of digits can be written, and not be read.
                output = from_json(self.text)
        return ToolResult(
            output=output,
            error=self.failure,
            control=self.control,
            metadata=self.metadata,
            media=self.media,
            notice=self.notice,
        )
