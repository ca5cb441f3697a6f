"""One line of the standard log for every fact: a name, a level that means something, and fields without values."""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec import Struct
from pydantic_core import from_json

from handrail.core import events
from handrail.core.log import NAME as HANDRAIL
from handrail.core.log import careful
from handrail.core.redact import Redactor
from handrail.core.text import compact_json
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import ToolNotFoundError, shorten
from handrail.monitor.calls import Counts
from handrail.monitor.severity import level_of

NAME: Final = f"{HANDRAIL}.events"

_SEVERITIES: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_LONG = 200
_MOST = 50
"""Of names in one line."""


class Line(Struct, frozen=True, kw_only=True):
    """What is written about one event. As text it is the name and the fields as JSON."""

    event: str
    level: int
    fields: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.event} {compact_json(self.fields)}"


class Log:
    """Writes every event to a logger, `handrail.events` unless it is given another.

    A record has the name of the fact as `event`, and every field as an attribute of its own. No field holds the value
    of an argument, an output, or the words of a handler.
    """

    def __init__(self, logger: logging.Logger | None = None, *, redactor: Redactor | None = None) -> None:
        self._logger = logger if logger is not None else logging.getLogger(NAME)
        self._redactor = redactor or Redactor()
        self._counts = Counts()
        self._lines: dict[type[Any], Callable[[Any], Line]] = {
            events.CallAccepted: self._accepted,
            events.CallStarted: self._started,
            events.CallFinished: self._finished,
            events.CallCancelled: self._call_cancelled,
            events.CallIgnored: self._ignored,
            events.Cancelling: self._cancelling,
            events.Cancellation: self._cancellation,
            events.DecisionMade: self._decision_made,
            events.BreakerTurned: self._breaker_turned,
            events.Progress: self._progress,
            events.ToolsBuilt: self._tools_built,
            events.TurnPlanned: self._turn_planned,
            events.LogEvent: self._log_event,
        }

    def __call__(self, event: events.Event) -> None:
        """Write one event."""
        self._counts.see(event)
        if not self._logger.isEnabledFor(_level(event)):
            return
        line = self._lines.get(type(event), self._other)(event)
        fields = {name: value for name, value in line.fields.items() if value is not None}
        line = Line(event=line.event, level=line.level, fields=fields)
        self._logger.log(line.level, line, extra={"event": line.event, **fields})

    # One function for each kind of event.

    def _accepted(self, event: events.CallAccepted) -> Line:
        return _line("call_accepted", logging.DEBUG, self._about(event, event.call), **self._state(event))

    def _started(self, event: events.CallStarted) -> Line:
        return _line(
            "call_started",
            logging.DEBUG,
            self._about(event, event.call),
            agent_id=_short(event.agent_id),
            dependencies=self._names(event.dependencies),
            **self._state(event),
        )

    def _state(self, event: events.CallAccepted | events.CallStarted) -> dict[str, Any]:
        pending, active = self._counts.of(event.session_id)
        return {"argument_keys": self._argument_keys(event.call), "pending": pending, "active": active}

    def _finished(self, event: events.CallFinished) -> Line:
        result = event.result
        return _line(
            "call_finished",
            _level(event),
            self._about(event, event.call),
            ok=result.ok,
            error=self._redactor.value(_error(event.call, result)),
            output_length=len(result.for_model()),
            duration_ms=round(result.duration_ms, 3),
            slow=event.slow,
            origin=None if result.origin == "run" else result.origin,
            recorded=None if result.recorded else False,
            silent=True if result.silent else None,
            **self._decision(event.decision),
        )

    def _call_cancelled(self, event: events.CallCancelled) -> Line:
        return _line("call_cancelled", logging.INFO, self._about(event, event.call), reason=self._text(event.reason))

    def _ignored(self, event: events.CallIgnored) -> Line:
        return _line("call_ignored", logging.INFO, self._about(event, event.call), reason=self._text(event.reason))

    def _cancelling(self, event: events.Cancelling) -> Line:
        return _line(
            "cancelling", logging.INFO, _ids(event), tracked=event.tracked, cancellable=event.cancellable
        )  # fmt: skip

    def _cancellation(self, event: events.Cancellation) -> Line:
        skipped = event.reason == "missing_response_id"
        return _line(
            "cancellation_skipped" if skipped else "cancellation",
            logging.WARNING if skipped or (event.scope == "session" and event.remaining) else logging.INFO,
            _ids(event),
            scope=event.scope,
            response_id=_short(event.response_id),
            reason=self._text(event.reason),
            cancelled=event.cancelled,
            remaining=event.remaining,
            pending=event.pending,
        )

    def _decision_made(self, event: events.DecisionMade) -> Line:
        return _line(
            "decision_made",
            logging.INFO,
            self._about(event, event.call),
            observed=event.observed,
            **self._decision(event.decision),
        )

    def _breaker_turned(self, event: events.BreakerTurned) -> Line:
        level = logging.WARNING if event.state == "open" else logging.INFO
        return _line("breaker_turned", level, _ids(event), tool=self._text(event.tool_name), state=event.state)

    def _progress(self, event: events.Progress) -> Line:
        # The message is the handler's own words, and may quote what it works on.
        return _line(
            "progress",
            logging.DEBUG,
            _ids(event),
            call_id=_short(event.call_id),
            tool=self._text(event.tool_name),
            fraction=event.fraction,
        )

    def _tools_built(self, event: events.ToolsBuilt) -> Line:
        return _line(
            "tool_build_finished",
            logging.WARNING if event.failed else logging.INFO,
            _ids(event),
            tool_count=len(event.tool_names),
            tool_names=self._names(event.tool_names),
            tool_choice=None if event.tool_choice is None else self._text(event.tool_choice),
            failed=self._names(event.failed),
        )

    def _log_event(self, event: events.LogEvent) -> Line:
        about = _ids(event) if event.call is None else self._about(event, event.call)
        fields = {name: self._field(value) for name, value in event.fields.items() if name not in about}
        return _line(event.name, _SEVERITIES[event.severity], about, **fields)

    def _field(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list | tuple):
            return self._names(str(one) for one in cast(Iterable[Any], value)) or []
        return self._redactor.value(value)

    def _turn_planned(self, event: events.TurnPlanned) -> Line:
        return _line(
            "turn_planned",
            logging.INFO,
            _ids(event),
            turn=event.turn,
            guideline_ids=self._names(event.guideline_ids),
            call_ids=self._names(event.call_ids),
        )

    def _other(self, event: events.Event) -> Line:
        """An event that is not known here: its name, its ids, and its numbers."""
        own = {name: getattr(event, name) for name in event.__struct_fields__ if name != "at"}
        numbers = {name: value for name, value in own.items() if isinstance(value, int | float)}
        return _line(_snake(type(event).__name__), logging.INFO, _ids(event), **numbers)

    # What several of them have.

    def _about(self, event: events.Event, call: ToolCall) -> dict[str, Any]:
        return {
            **_ids(event),
            "call_id": _short(call.id),
            "response_id": _short(call.response_id),
            "item_id": _short(call.item_id),
            "tool": self._text(call.name),
            "guideline_ids": self._names(call.guideline_ids),
        }

    def _decision(self, decision: Decision | None) -> dict[str, Any]:
        if decision is None:
            return {}
        # What a tool's own check says is meant for the model, and may quote what the model sent.
        reason = "" if decision.rule == "permission_check" else decision.reason
        return {
            "decision": decision.action,
            "by": decision.by,
            "rule": self._text(decision.rule) or None,
            "source": self._text(decision.source) or None,
            "decision_reason": self._text(reason) or None,
        }

    def _argument_keys(self, call: ToolCall) -> list[str] | None:
        try:
            arguments = from_json(call.arguments_json or "{}")
        except ValueError:
            return None
        if not isinstance(arguments, dict):
            return None
        return self._names(sorted(cast(dict[str, Any], arguments))) or []

    def _names(self, names: Iterable[str]) -> Any:
        return [self._text(name) for name, _ in zip(names, range(_MOST), strict=False)] or None

    def _text(self, text: str) -> str:
        return self._redactor.text(shorten(text, _LONG))


def _level(event: events.Event) -> int:
    """The level of the events that there are many of; the highest for all others, whose lines say it themselves."""
    if isinstance(event, events.CallAccepted | events.CallStarted | events.Progress):
        return logging.DEBUG
    if not isinstance(event, events.CallFinished):
        return logging.CRITICAL
    if not event.result.recorded:  # It happened, and its record is missing.
        return logging.ERROR
    level = level_of(event.result.error)
    return max(level, logging.WARNING) if event.slow else level


def _line(event: str, level: int, about: Mapping[str, Any], **fields: Any) -> Line:
    return Line(event=event, level=level, fields={**about, **fields})


def _ids(event: events.Event) -> dict[str, Any]:
    return {
        "session_id": _short(event.session_id) or None,
        "tenant_id": _short(event.tenant_id),
        "sip_call_id": _short(event.sip_call_id),
    }


def _short(text: str | None) -> str | None:
    return None if text is None else shorten(text, _LONG)


def _error(call: ToolCall, result: ToolResult) -> dict[str, Any] | None:
    """What may be said of a failure: not its message, which is the model's and may quote what the model sent."""
    failure = result.error
    if failure is None:
        return None
    if failure.code == "tool_not_found":
        return ToolNotFoundError(call.name).to_log_dict()
    return {"code": shorten(failure.code), "retryable": failure.retryable}


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: `time`, `level`, `logger`, `event` or `message`, then its own fields.

    It takes the records of other loggers too; what they say is redacted by pattern, their extra fields also by name.
    """

    def __init__(self, *, redactor: Redactor | None = None) -> None:
        super().__init__()
        self._redactor = redactor or Redactor()

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "logger": record.name}
        own = {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        if record.name == NAME or isinstance(record.msg, Line):
            line.update(own)
        else:
            line["message"] = self._redactor.text(record.getMessage())
            line.update(self._redactor.value(own))
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self._exception(record)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return compact_json(line)

    def _exception(self, record: logging.LogRecord) -> str:
        info = cast(Any, record.exc_info)
        if record.name != HANDRAIL:  # That one is careful already.
            info = careful(info[1], texts=True, redactor=self._redactor)
        return self.formatException(info)
