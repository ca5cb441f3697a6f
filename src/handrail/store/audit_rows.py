"""Turns events into rows of the audit: ids, names, codes and counts; argument values only on request."""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, cast

from msgspec import Struct
from pydantic_core import from_json

from handrail.core.events import CallFinished, CallStarted, Event, LogEvent
from handrail.core.redact import Redactor, cut_text, is_longer
from handrail.core.secret_patterns import MAX_PIECE
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.store.database import to_storable

_MAX_NAMES = 100
"""Of arguments, guidelines and so on in one row."""
_MAX_CHARS = 256
"""Of an id or a name: a model chooses some of them."""
_MAX_VALUE_CHARS = 100_000
"""Of the arguments and of the output that a row has with `audit_values`: they are cut before they are redacted."""
_MAX_CACHED = 4_096
"""Redacted names in the cache."""
_MAX_DECISIONS = 256
"""Decisions whose columns are kept."""


class AuditRow(Struct, frozen=True, kw_only=True):
    """One row of the audit."""

    writer: str
    """The process that wrote it."""
    number: int
    """Numbers the events of a writer from 0, without gaps."""
    at: float
    kind: str
    """The name of the event: `call_finished`."""
    session_id: str
    tenant_id: str | None = None
    call_id: str | None = None
    tool: str | None = None
    response_id: str | None = None
    item_id: str | None = None
    guideline_ids: tuple[str, ...] = ()
    argument_keys: tuple[str, ...] | None = None
    """The names of the arguments; None if they are not a JSON object."""
    action: str | None = None
    """The decision: allow, ask or deny."""
    by: str | None = None
    rule: str | None = None
    source: str | None = None
    reason: str | None = None
    ok: bool | None = None
    error: str | None = None
    """The error code."""
    duration_ms: float | None = None
    output_length: int | None = None
    """In characters, as the model reads it."""
    detail: Mapping[str, Any] = {}
    """Numbers, flags and names that only this type of event has."""
    arguments: Any = None
    """Redacted; only with `audit_values`."""
    output: str | None = None
    """Redacted; only with `audit_values`."""
    customer_id: str | None = None
    erased_at: float | None = None
    """When the values of its customer were erased: ids, names, codes and counts are left."""


_COLUMNS = dict.fromkeys(name for name in AuditRow.__struct_fields__ if name not in ("writer", "number"))
_ENVELOPE = frozenset(Event.__struct_fields__)
_TEXTS = {
    "call_id": "call_id",
    "response_id": "response_id",
    "tool_name": "tool",
    "reason": "reason",
    "state": "reason",
    "by": "by",
    "error": "error",
}
"""Text fields of events that have a column."""
_NOT_SLOW: Mapping[str, Any] = {"slow": False}
_NO_DEPENDENCIES: Mapping[str, Any] = {"dependencies": ()}
"""The details of most calls."""
_DETAILS = (
    "token",
    "who",
    "outcome",
    "arguments_digest",
    "provider",
    "model",
    "finish_reason",
    "stop_reason",
    "agent_id",
    "scope",
    "tool_names",
    "tool_choice",
    "failed",
    "call_ids",
    "dependencies",
    "trace",
    "happened",
    "previous_owner",
    "owner",
)
"""Other fields that are names, and written by neither a model nor a user."""


def find_kind(event: type[Event]) -> str:
    """Return the name of a type of event."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", event.__name__).lower()


class SparseRow(Struct, frozen=True):
    """The columns of a row that have a value; those that several rows have in common are not copied."""

    writer: str
    number: int
    parts: tuple[Mapping[str, Any], ...]

    def fill(self) -> dict[str, Any]:
        """All columns, as a statement needs them."""
        row = fill_row(self.parts)
        row["writer"] = self.writer
        row["number"] = self.number
        return row


def fill_row(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All columns of a row but its writer and its number."""
    row: dict[str, Any] = _COLUMNS.copy()
    for part in parts:
        row.update(part)
    return row


class _LongValue(Struct, frozen=True):
    """A value of a row that is redacted when the row is written: there is too much of it for the event loop."""

    redact: Callable[[], Any]


class AuditRowBuilder:
    """Builds the row of an event."""

    def __init__(self, *, redactor: Redactor, values: bool) -> None:
        self._redactor = redactor
        self._values = values
        self._kinds: dict[type[Event], str] = {}
        self._fields: dict[type[Event], tuple[str, ...]] = {}
        self._cache: dict[str, str] = {}
        self._last_call: tuple[ToolCall | None, dict[str, Any]] = (None, {})
        """The columns of the call that was seen last: most often it starts and finishes without another in between."""

        self._decisions: dict[int, tuple[Decision, dict[str, Any]]] = {}
        """The columns of decisions by `id`: those about read-only calls are kept, and each call has the same one."""

    def build(self, event: Event) -> tuple[Mapping[str, Any], ...]:
        """Build the row of an event, in parts, without its writer and number."""
        row: dict[str, Any] = {
            "at": _to_finite(event.at) or 0.0,
            "kind": self._kinds.get(type(event)) or self._find_kind(type(event)),
            "session_id": _shorten(event.session_id),
        }
        if event.tenant_id is not None:
            row["tenant_id"] = _shorten(event.tenant_id)
        if event.customer_id is not None:
            row["customer_id"] = _shorten(event.customer_id)
        detail: dict[str, Any] = {}
        if event.sip_call_id is not None:
            detail["sip_call_id"] = _shorten(event.sip_call_id)
        if isinstance(event, CallFinished):  # These two as `_put` does it: every call has them.
            self._put_result(row, detail, event.result)
            if detail or event.slow:
                row["detail"] = {**detail, "slow": event.slow}
            else:
                row["detail"] = _NOT_SLOW
            call = self._find_call_columns(event.call)
            return (call, row) if event.decision is None else (call, self._find_decision(event.decision), row)
        if isinstance(event, CallStarted):
            if event.agent_id is not None:
                detail["agent_id"] = self._redact_name(event.agent_id)
            if detail or event.dependencies:
                row["detail"] = {**detail, "dependencies": self._redact_names(event.dependencies)}
            else:
                row["detail"] = _NO_DEPENDENCIES
            return (self._find_call_columns(event.call), row)
        self._put_others(row, detail, event)
        return (row,)

    def _find_kind(self, kind: type[Event]) -> str:
        return self._kinds.setdefault(kind, find_kind(kind))

    def _put_others(self, row: dict[str, Any], detail: dict[str, Any], event: Event) -> None:
        if isinstance(event, LogEvent):
            row["kind"] = self._redact_name(event.name)
            detail |= self._redactor.arguments(event.fields, max_chars=MAX_PIECE)
            if event.call is not None:
                row.update(self._find_call_columns(event.call))
        else:
            for name in self._fields.get(type(event)) or self._find_fields(type(event)):
                self._put(row, detail, name, getattr(event, name))
        row["detail"] = detail or None

    def _find_fields(self, kind: type[Event]) -> tuple[str, ...]:
        return self._fields.setdefault(kind, tuple(name for name in kind.__struct_fields__ if name not in _ENVELOPE))

    def _put(self, row: dict[str, Any], detail: dict[str, Any], name: str, value: Any) -> None:
        match value:
            case None:
                pass
            case ToolCall():
                row.update(self._find_call_columns(value))
            case ToolResult():
                self._put_result(row, detail, value)
            case Decision():
                row.update(self._find_decision(value))
            case bool():
                detail[name] = value
            case int() | float():
                detail[name] = _to_finite(value)
            case str() if name in _TEXTS:
                row[_TEXTS[name]] = self._redact_name(value)
            case str() if name in _DETAILS:
                detail[name] = self._redact_name(value)
            case dict() if name == "seen" and value:
                seen = cast(dict[str, str], value)
                detail[name] = {self._redact_name(path): self._redact_name(text) for path, text in seen.items()}
            case tuple() if name == "guideline_ids":
                row[name] = self._redact_names(cast(tuple[object, ...], value)) or None
            case tuple() if name in _DETAILS:
                detail[name] = self._redact_names(cast(tuple[object, ...], value))
            case _ if self._values:
                detail[name] = self._redact_value(value)
            case _:
                pass

    def _find_call_columns(self, call: ToolCall) -> Mapping[str, Any]:
        last, columns = self._last_call
        if last is not call:
            columns = self._describe_call(call)
            if not self._values:  # Values are redacted again: something may be secret that was not before.
                self._last_call = (call, columns)
        return columns

    def _describe_call(self, call: ToolCall) -> dict[str, Any]:
        columns: dict[str, Any] = {
            "call_id": self._redact_name(call.id),
            "tool": self._redact_name(call.name),
            "response_id": None if call.response_id is None else self._redact_name(call.response_id),
            "item_id": None if call.item_id is None else self._redact_name(call.item_id),
            "guideline_ids": (self._redact_names(call.guideline_ids) or None) if call.guideline_ids else None,
        }
        try:
            arguments = from_json(call.arguments_json or "{}")
        except (ValueError, TypeError):  # The latter for half of a surrogate pair.
            arguments = None
        if isinstance(arguments, dict):
            columns["argument_keys"] = self._redact_names(cast(dict[str, Any], arguments))
        if self._values:
            is_text = arguments is None or len(call.arguments_json) > _MAX_VALUE_CHARS
            columns["arguments"] = self._redact_value(
                cut_text(call.arguments_json, _MAX_VALUE_CHARS) if is_text else arguments
            )
        return columns

    def _put_result(self, row: dict[str, Any], detail: dict[str, Any], result: ToolResult) -> None:
        text = result.for_model()
        row["ok"] = result.ok
        if result.error is not None:
            row["error"] = self._redact_name(result.error.code)
        row["duration_ms"] = _to_finite(result.duration_ms)
        row["output_length"] = len(text)
        if result.origin != "run":
            detail["origin"] = result.origin
        if not result.recorded:
            detail["recorded"] = False
        if result.silent:
            detail["silent"] = True
        if result.media:
            detail["media"] = [self._redactor.value(part) for part in result.media]
        if self._values:
            row["output"] = self._redact_value(cut_text(text, _MAX_VALUE_CHARS), is_text=True)

    def _find_decision(self, decision: Decision) -> Mapping[str, Any]:
        known = self._decisions.get(id(decision))
        if known is None:
            if len(self._decisions) >= _MAX_DECISIONS:
                self._decisions.clear()
            # The reference keeps the id of the object unique.
            known = self._decisions[id(decision)] = (decision, self._describe_decision(decision))
        return known[1]

    def _describe_decision(self, decision: Decision) -> dict[str, Any]:
        columns: dict[str, Any] = {
            "action": decision.action,
            "by": decision.by,
            "rule": self._redact_name(decision.rule),
            "source": self._redact_name(decision.source),
        }
        # The reason of a permission check is written for the model and may quote the arguments.
        if (self._values or decision.rule != "permission_check") and (reason := self._redact_name(decision.reason)):
            columns["reason"] = reason
        return columns

    def _redact_value(self, value: Any, *, is_text: bool = False) -> Any:
        def redact() -> Any:
            return to_storable(self._redactor.text(value)) if is_text else self._redactor.value(value)

        return _LongValue(redact) if is_longer(value, MAX_PIECE) else redact()

    async def redact_long_values(self, rows: Iterable[dict[str, Any]]) -> None:
        """Redact what is too long for `build`, which is called in the event loop: before the rows are written."""
        if not self._values:
            return
        for values in (values for row in rows for values in (row, row["detail"] or {})):
            for name, value in values.items():
                if isinstance(value, _LongValue):
                    values[name] = await self._redactor.run_aside(value.redact, is_long=True)

    def _redact_name(self, name: str) -> str:
        known = self._cache.get(name)
        if known is None:
            known = to_storable(self._redactor.text(name[: 4 * _MAX_CHARS])[:_MAX_CHARS])
            if len(self._cache) >= _MAX_CACHED:  # Ids of calls are among them: they would leave no room for names.
                self._cache.clear()
            if len(name) <= _MAX_CHARS:
                self._cache[name] = known
        return known

    def _redact_names(self, names: Iterable[object]) -> list[str]:
        return [self._redact_name(str(name)) for name in islice(names, _MAX_NAMES)]


def _shorten(text: str) -> str:
    return to_storable(text[:_MAX_CHARS])


def _to_finite(number: float) -> float | None:
    """Return a number that both databases can store, or None."""
    return number if abs(number) < 2**63 else None  # False for infinity and NaN.
