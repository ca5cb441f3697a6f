"""Recorded results as JSON: what is written of a result, and read again."""

from collections.abc import Mapping
from typing import Any

import msgspec

from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.core.values import Failure
from handrail.execute.recorded_result import RecordedResult

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
