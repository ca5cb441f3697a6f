"""What is kept of a result, to return it again for the same call; and how it is written as JSON."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import Struct
from pydantic_core import from_json

from handrail.core.log import log
from handrail.core.media import MediaPart
from handrail.core.text import compact_json
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


_ENCODING_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)


def encode_record(recorded: RecordedResult | None) -> str | None:
    """Encode a recorded result as JSON. It never fails: metadata that is not JSON is left out."""
    if recorded is None:
        return None
    try:
        return msgspec.json.encode(recorded).decode()
    except _ENCODING_ERRORS:
        return compact_json(
            {
                "text": recorded.text,
                "is_json": recorded.is_json,
                "failure": recorded.failure and msgspec.to_builtins(recorded.failure),
                "control": recorded.control and msgspec.to_builtins(recorded.control),
                "metadata": _drop_unencodable(recorded.metadata),
                "media": msgspec.to_builtins(recorded.media),
                "notice": recorded.notice,
                "verified": recorded.verified,
            }
        )


def decode_record(text: str | None) -> RecordedResult | None:
    """Decode a recorded result."""
    return None if text is None else msgspec.json.decode(text, type=RecordedResult)


def read_record(text: str | None, *, state: str, tool: str) -> RecordedResult | None:
    """The recorded result; one that cannot be read does not hide what became of its call."""
    try:
        return decode_record(text)
    except msgspec.DecodeError:
        log.exception("the recorded result of %s cannot be read", tool)
    if state == "failed":
        return RecordedResult(failure=Failure(message=f"`{tool}` failed, and its recorded result cannot be read."))
    return RecordedResult(text=f"`{tool}` took effect, and its recorded result cannot be read.")


def _drop_unencodable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    encodable: dict[str, Any] = {}
    for name, value in metadata.items():
        try:
            encodable[name] = msgspec.json.decode(compact_json(value))
        except _ENCODING_ERRORS:
            continue
    return encodable
