"""A recorded result as JSON text. Writing one never fails: the effect took place, so must its record."""

from collections.abc import Mapping
from typing import Any

import msgspec

from handrail.core.text import compact_json
from handrail.execute.ledger import Recorded

_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)


def written(recorded: Recorded | None) -> str | None:
    """The text of a record. Metadata that cannot be written as JSON is left out."""
    if recorded is None:
        return None
    try:
        return msgspec.json.encode(recorded).decode()
    except _UNWRITABLE:
        return compact_json(
            {
                "text": recorded.text,
                "failure": recorded.failure and msgspec.to_builtins(recorded.failure),
                "control": recorded.control and msgspec.to_builtins(recorded.control),
                "metadata": _writable(recorded.metadata),
            }
        )


def read(text: str | None) -> Recorded | None:
    """The record of a text."""
    return None if text is None else msgspec.json.decode(text, type=Recorded)


def _writable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in metadata.items():
        try:
            kept[name] = msgspec.json.decode(compact_json(value))
        except _UNWRITABLE:
            continue
    return kept
