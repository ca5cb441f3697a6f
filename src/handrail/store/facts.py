"""An event as a row of the audit: ids, names, codes and counts; values only where somebody asked for them."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec import Struct
from pydantic_core import from_json

from handrail.core.events import Event, LogEvent
from handrail.core.redact import Redactor
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.store.database import storable

_MOST_NAMES = 100
"""Of arguments, guidelines and the like in one row."""
_MOST_CHARS = 256
"""Of an id or a name: some of them are a model's words."""
_REMEMBERED = 4_096
"""How many names are looked at only once."""


class Fact(Struct, frozen=True, kw_only=True):
    """One row of the audit."""

    writer: str
    """The process that wrote it."""
    number: int
    """Counts the events of a writer, from 0, without gaps."""
    at: float
    kind: str
    """The name of the event, as in the log: `call_finished`."""
    session_id: str
    tenant_id: str | None = None
    call_id: str | None = None
    tool: str | None = None
    response_id: str | None = None
    item_id: str | None = None
    guideline_ids: tuple[str, ...] = ()
    argument_keys: tuple[str, ...] | None = None
    """The names of the arguments; None if their text was no JSON object."""
    action: str | None = None
    """What was decided: allow, ask or deny."""
    by: str | None = None
    rule: str | None = None
    source: str | None = None
    reason: str | None = None
    ok: bool | None = None
    error: str | None = None
    """The code of the failure."""
    duration_ms: float | None = None
    output_length: int | None = None
    """Characters of the text that the model reads."""
    detail: Mapping[str, Any] = {}
    """Numbers, flags and names that only this kind of event has."""
    arguments: Any = None
    """Redacted; only with `audit_values`."""
    output: str | None = None
    """Redacted; only with `audit_values`."""


_COLUMNS = dict.fromkeys(name for name in Fact.__struct_fields__ if name not in ("writer", "number"))
_ENVELOPE = frozenset(Event.__struct_fields__)
_TEXTS = {
    "call_id": "call_id",
    "response_id": "response_id",
    "tool_name": "tool",
    "reason": "reason",
    "state": "reason",
}
"""Texts of events that have a column."""
_DETAILS = ("agent_id", "scope", "tool_names", "tool_choice", "failed", "call_ids", "dependencies")
"""Names in events that have none, and are no one's words."""


def kind_of(event: type[Event]) -> str:
    """The name of a kind of event."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", event.__name__).lower()


class Facts:
    """Makes rows of events."""

    def __init__(self, *, redactor: Redactor, values: bool) -> None:
        self._redactor = redactor
        self._values = values
        self._kinds: dict[type[Event], str] = {}
        self._names: dict[str, str] = {}

    def of(self, event: Event) -> dict[str, Any]:
        """The row of an event, but for its writer and number."""
        kind = type(event)
        row: dict[str, Any] = _COLUMNS.copy()
        row["at"] = _number(event.at) or 0.0
        row["kind"] = self._kinds.get(kind) or self._kinds.setdefault(kind, kind_of(kind))
        row["session_id"] = _short(event.session_id)
        row["tenant_id"] = _short(event.tenant_id)
        detail: dict[str, Any] = {}
        if event.sip_call_id is not None:
            detail["sip_call_id"] = _short(event.sip_call_id)
        if isinstance(event, LogEvent):
            row["kind"] = self._name(event.name)
            detail.update(self._redactor.value(dict(event.fields)))
            if event.call is not None:
                self._put_call(row, event.call)
            row["detail"] = detail or None
            return row
        for name in kind.__struct_fields__:
            if name not in _ENVELOPE:
                self._put(row, detail, name, getattr(event, name))
        row["detail"] = detail or None
        return row

    def _put(self, row: dict[str, Any], detail: dict[str, Any], name: str, value: Any) -> None:
        match value:
            case None:
                pass
            case ToolCall():
                self._put_call(row, value)
            case ToolResult():
                self._put_result(row, detail, value)
            case Decision():
                self._put_decision(row, value)
            case bool():
                detail[name] = value
            case int() | float():
                detail[name] = _number(value)
            case str() if name in _TEXTS:
                row[_TEXTS[name]] = self._name(value)
            case str() if name in _DETAILS:
                detail[name] = self._name(value)
            case tuple() if name == "guideline_ids":
                row[name] = self._some(cast(tuple[object, ...], value)) or None
            case tuple() if name in _DETAILS:
                detail[name] = self._some(cast(tuple[object, ...], value))
            case _ if self._values:
                detail[name] = self._redactor.value(value)
            case _:
                pass

    def _put_call(self, row: dict[str, Any], call: ToolCall) -> None:
        row["call_id"] = _short(call.id)
        row["tool"] = self._name(call.name)
        row["response_id"] = _short(call.response_id)
        row["item_id"] = _short(call.item_id)
        row["guideline_ids"] = self._some(call.guideline_ids) or None
        try:
            arguments = from_json(call.arguments_json or "{}")
        except ValueError:
            arguments = None
        if isinstance(arguments, dict):
            row["argument_keys"] = self._some(cast(dict[str, Any], arguments))
        if self._values:
            row["arguments"] = self._redactor.value(call.arguments_json if arguments is None else arguments)

    def _put_result(self, row: dict[str, Any], detail: dict[str, Any], result: ToolResult) -> None:
        text = result.for_model()
        row["ok"] = result.ok
        row["error"] = self._name(result.error.code) if result.error else None
        row["duration_ms"] = _number(result.duration_ms)
        row["output_length"] = len(text)
        if result.origin != "run":
            detail["origin"] = result.origin
        if not result.recorded:
            detail["recorded"] = False
        if result.silent:
            detail["silent"] = True
        if self._values:
            row["output"] = storable(self._redactor.text(text))

    def _put_decision(self, row: dict[str, Any], decision: Decision) -> None:
        row["action"] = decision.action
        row["by"] = decision.by
        row["rule"] = self._name(decision.rule)
        row["source"] = self._name(decision.source)
        # What a tool's own check says is meant for the model, and may quote what the model sent.
        if self._values or decision.rule != "permission_check":
            row["reason"] = self._name(decision.reason) or row["reason"]

    def _name(self, name: str) -> str:
        known = self._names.get(name)
        if known is None:
            known = storable(self._redactor.text(name)[:_MOST_CHARS])
            if len(self._names) < _REMEMBERED and len(name) <= _MOST_CHARS:
                self._names[name] = known
        return known

    def _some(self, names: Iterable[object]) -> list[str]:
        return [self._name(str(name)) for name, _ in zip(names, range(_MOST_NAMES), strict=False)]


def _short(text: str | None) -> str | None:
    return None if text is None else storable(text[:_MOST_CHARS])


def _number(number: float) -> float | None:
    """A number that both databases can hold."""
    return number if abs(number) < 2**63 else None  # Neither infinity nor NaN is.
