"""Writes one log record per event, with structured fields and without argument values."""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec import Struct
from pydantic_core import from_json

from handrail.core import events
from handrail.core.log import NAME as HANDRAIL
from handrail.core.log import build_safe_exc_info
from handrail.core.redact import Redactor
from handrail.core.text import compact_json
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import ToolNotFoundError, shorten
from handrail.monitor.calls import CallCounter
from handrail.monitor.severity import find_level

NAME: Final = f"{HANDRAIL}.events"

_SEVERITIES: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_MAX_CHARS = 200
"""Of a name or an id."""
_MAX_NAMES = 50
"""In one list."""


class LogMessage(Struct, frozen=True, kw_only=True):
    """The message of a log record. As text it is a summary for people, and the fields as JSON."""

    event: str
    level: int
    fields: dict[str, Any]

    def __str__(self) -> str:
        return f"{summarize_event(self.event, self.fields)} {compact_json(self.fields)}"


class Log:
    """A listener that writes every event to a logger, by default `handrail.events`.

    `record.event` is the event's name, and every field is an attribute of the record. No field has the value of an
    argument, an output, or a text that a handler wrote.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        redactor: Redactor | None = None,
        phone_names: bool = False,
    ) -> None:
        """With `phone_names`, what an executor does is written under the names that phone agents use for it."""
        self._logger = logger if logger is not None else logging.getLogger(NAME)
        self._phone_names = phone_names
        self._redactor = redactor or Redactor()
        self._counter = CallCounter()
        self._builders: dict[type[Any], Callable[[Any], LogMessage]] = {
            events.CallAccepted: self._build_accepted,
            events.CallStarted: self._build_started,
            events.CallFinished: self._build_finished,
            events.CallCancelled: self._build_call_cancelled,
            events.CallIgnored: self._build_ignored,
            events.Cancelling: self._build_cancelling,
            events.Cancellation: self._build_cancellation,
            events.DecisionMade: self._build_decision_made,
            events.CircuitBreakerChanged: self._build_circuit_breaker_changed,
            events.Progress: self._build_progress,
            events.ToolsBuilt: self._build_tools_built,
            events.TurnPlanned: self._build_turn_planned,
            events.LogEvent: self._build_log_event,
            events.ApprovalRequested: self._build_approval,
            events.ApprovalDecided: self._build_approval,
            events.ApprovalUsed: self._build_approval,
            events.TurnStarted: self._build_turn_started,
            events.TurnFinished: self._build_turn_finished,
            events.ModelCalled: self._build_model_called,
            events.ResultSpoken: self._build_result_spoken,
            events.PhoneCallEnded: self._build_phone_call_ended,
        }

    def __call__(self, event: events.Event) -> None:
        """Write one event."""
        self._counter.count(event)
        if not self._logger.isEnabledFor(_find_level(event)):
            return
        message = self._builders.get(type(event), self._build_other)(event)
        fields = {name: value for name, value in message.fields.items() if value is not None} | _find_trace_ids()
        for name in names_on_the_phone(message.event, fields) if self._phone_names else (message.event,):
            named = LogMessage(event=name, level=message.level, fields=fields)
            self._logger.log(message.level, named, extra={"event": name, **fields})

    # One method for each type of event.

    def _build_accepted(self, event: events.CallAccepted) -> LogMessage:
        return _build("call_accepted", logging.DEBUG, self._about(event, event.call), **self._state(event))

    def _build_started(self, event: events.CallStarted) -> LogMessage:
        return _build(
            "call_started",
            logging.DEBUG,
            self._about(event, event.call),
            agent_id=_shorten(event.agent_id),
            dependencies=self._names(event.dependencies),
            **self._state(event),
        )

    def _state(self, event: events.CallAccepted | events.CallStarted) -> dict[str, Any]:
        pending, active = self._counter.get(event.session_id)
        return {"argument_keys": self._argument_keys(event.call), "pending": pending, "active": active}

    def _build_finished(self, event: events.CallFinished) -> LogMessage:
        result = event.result
        return _build(
            "call_finished",
            _find_level(event),
            self._about(event, event.call),
            ok=result.ok,
            error=self._redactor.value(_describe_error(event.call, result)),
            output_length=len(result.for_model()),
            media=[self._redactor.value(part) for part in result.media] or None,
            duration_ms=round(result.duration_ms, 3),
            slow=event.slow,
            origin=None if result.origin == "run" else result.origin,
            recorded=None if result.recorded else False,
            silent=True if result.silent else None,
            **self._decision(event.decision),
        )

    def _build_call_cancelled(self, event: events.CallCancelled) -> LogMessage:
        return _build("call_cancelled", logging.INFO, self._about(event, event.call), reason=self._text(event.reason))

    def _build_ignored(self, event: events.CallIgnored) -> LogMessage:
        return _build("call_ignored", logging.INFO, self._about(event, event.call), reason=self._text(event.reason))

    def _build_cancelling(self, event: events.Cancelling) -> LogMessage:
        return _build(
            "cancelling", logging.INFO, _ids(event), tracked=event.tracked, cancellable=event.cancellable
        )  # fmt: skip

    def _build_cancellation(self, event: events.Cancellation) -> LogMessage:
        skipped = event.reason == "missing_response_id"
        return _build(
            "cancellation_skipped" if skipped else "cancellation",
            logging.WARNING if skipped or (event.scope == "session" and event.remaining) else logging.INFO,
            _ids(event),
            scope=event.scope,
            response_id=_shorten(event.response_id),
            reason=self._text(event.reason),
            cancelled=event.cancelled,
            remaining=event.remaining,
            pending=event.pending,
        )

    def _build_decision_made(self, event: events.DecisionMade) -> LogMessage:
        return _build(
            "decision_made",
            logging.INFO,
            self._about(event, event.call),
            observed=event.observed,
            **self._decision(event.decision),
        )

    def _build_circuit_breaker_changed(self, event: events.CircuitBreakerChanged) -> LogMessage:
        level = logging.WARNING if event.state == "open" else logging.INFO
        return _build(
            "circuit_breaker_changed", level, _ids(event), tool=self._text(event.tool_name), state=event.state
        )

    def _build_progress(self, event: events.Progress) -> LogMessage:
        # Without the message: the handler wrote it, and it may quote a value.
        return _build(
            "progress",
            logging.DEBUG,
            _ids(event),
            call_id=_shorten(event.call_id),
            tool=self._text(event.tool_name),
            fraction=event.fraction,
        )

    def _build_tools_built(self, event: events.ToolsBuilt) -> LogMessage:
        return _build(
            "tool_build_finished",
            logging.WARNING if event.failed else logging.INFO,
            _ids(event),
            tool_count=len(event.tool_names),
            tool_names=self._names(event.tool_names),
            tool_choice=None if event.tool_choice is None else self._text(event.tool_choice),
            failed=self._names(event.failed),
        )

    def _build_log_event(self, event: events.LogEvent) -> LogMessage:
        about = _ids(event) if event.call is None else self._about(event, event.call)
        fields = {name: self._field(value) for name, value in event.fields.items() if name not in about}
        return _build(event.name, _SEVERITIES[event.severity], about, **fields)

    def _build_result_spoken(self, event: events.ResultSpoken) -> LogMessage:
        return _build(
            "result_spoken",
            logging.DEBUG,
            _ids(event),
            call_id=_shorten(event.call_id),
            tool=self._text(event.tool_name),
            seconds=round(event.seconds, 3),
        )

    def _build_phone_call_ended(self, event: events.PhoneCallEnded) -> LogMessage:
        return _build(
            "phone_call_ended",
            logging.ERROR if event.unanswered or event.never_spoken else logging.INFO,
            _ids(event),
            reason=self._text(event.reason),
            seconds=round(event.seconds, 3),
            tool_calls=event.tool_calls,
            unanswered=event.unanswered,
            never_spoken=event.never_spoken,
            cut_off=event.cut_off,
            usage=dict(event.usage),
        )

    def _field(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list | tuple):
            return self._names(str(one) for one in cast(Iterable[Any], value)) or []
        return self._redactor.value(value)

    def _build_turn_planned(self, event: events.TurnPlanned) -> LogMessage:
        return _build(
            "turn_planned",
            logging.INFO,
            _ids(event),
            turn=event.turn,
            guideline_ids=self._names(event.guideline_ids),
            call_ids=self._names(event.call_ids),
            model_calls=event.model_calls,
            iterations=event.iterations,
        )

    def _build_approval(self, event: Any) -> LogMessage:
        # Without the token: whoever has it can decide.
        return _build(
            _to_snake_case(type(event).__name__),
            logging.INFO,
            _ids(event),
            tool=self._text(event.tool_name),
            by=event.by or None,
            who=self._text(getattr(event, "who", "")) or None,
            outcome=getattr(event, "outcome", None),
            reason=self._text(getattr(event, "reason", "")) or None,
            arguments_digest=event.arguments_digest or None,
            call_id=_shorten(getattr(event, "call_id", None)),
            seconds=getattr(event, "seconds", None),
        )

    def _build_turn_started(self, event: events.TurnStarted) -> LogMessage:
        return _build("turn_started", logging.DEBUG, _ids(event), turn=event.turn, agent_id=_shorten(event.agent_id))

    def _build_turn_finished(self, event: events.TurnFinished) -> LogMessage:
        return _build(
            "turn_finished",
            logging.WARNING if event.stop_reason == "error" else logging.INFO,
            _ids(event),
            turn=event.turn,
            stop_reason=event.stop_reason,
            duration_ms=round(event.duration_ms, 3),
            model_calls=event.model_calls,
            tool_calls=event.tool_calls,
        )

    def _build_model_called(self, event: events.ModelCalled) -> LogMessage:
        return _build(
            "model_called",
            logging.INFO if event.error is None else logging.ERROR,
            _ids(event),
            provider=self._text(event.provider),
            model=self._text(event.model) or None,
            turn=event.turn,
            duration_ms=round(event.duration_ms, 3),
            input_tokens=event.input_tokens,
            output_tokens=event.output_tokens,
            cached_tokens=event.cached_tokens,
            cost=event.cost,
            finish_reason=event.finish_reason or None,
            error=None if event.error is None else {"code": shorten(event.error)},
        )

    def _build_other(self, event: events.Event) -> LogMessage:
        """Build the message of any other event: its name, ids and numbers."""
        own = {name: getattr(event, name) for name in event.__struct_fields__ if name != "at"}
        numbers = {name: value for name, value in own.items() if isinstance(value, int | float)}
        return _build(_to_snake_case(type(event).__name__), logging.INFO, _ids(event), **numbers)

    # Fields that several events have.

    def _about(self, event: events.Event, call: ToolCall) -> dict[str, Any]:
        return {
            **_ids(event),
            "call_id": _shorten(call.id),
            "response_id": _shorten(call.response_id),
            "item_id": _shorten(call.item_id),
            "tool": self._text(call.name),
            "guideline_ids": self._names(call.guideline_ids),
        }

    def _decision(self, decision: Decision | None) -> dict[str, Any]:
        if decision is None:
            return {}
        # The reason of a permission check is written for the model and may quote the arguments.
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
        return [self._text(name) for name, _ in zip(names, range(_MAX_NAMES), strict=False)] or None

    def _text(self, text: str) -> str:
        return self._redactor.text(shorten(text, _MAX_CHARS))


_PHONE_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "call_accepted": ("tool_invocation_scheduled",),
    "call_started": (
        "tool_executor_execute_started",
        "tool_executor_arguments_parsed",
        "tool_executor_dependencies_prepared",
    ),
    "call_cancelled": ("tool_cancelled_for_response",),
    "cancelling": ("tool_cancel_all_started",),
    "cancellation_skipped": ("tool_cancel_for_response_skipped_missing_response_id",),
}


def names_on_the_phone(event: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What the phone agent's log calls one of our log events; its own name if it has no other."""
    match event:
        case "call_finished":
            error: Mapping[str, Any] = fields.get("error") or {}
            if error.get("code") == "tool_not_found":
                return ("tool_not_found",)
            failed = error.get("code") in ("tool_execution_failed", "outcome_unknown", "tool_timeout")
            return ("tool_executor_execute_finished", *(("tool_execution_failed",) if failed else ()))
        case "call_ignored":
            return (f"tool_invocation_ignored_{fields['reason']}",)
        case "cancellation":
            return (
                "tool_cancel_all_finished" if fields["scope"] == "session" else "tool_cancel_for_response_finished",
            )
        case _:
            return _PHONE_NAMES.get(event, (event,))


def _find_level(event: events.Event) -> int:
    """Return the level of frequent events, and CRITICAL for others, whose level their message has."""
    if isinstance(event, events.CallAccepted | events.CallStarted | events.Progress):
        return logging.DEBUG
    if not isinstance(event, events.CallFinished):
        return logging.CRITICAL
    if not event.result.recorded:  # The effect happened, but the ledger has no record of it.
        return logging.ERROR
    level = find_level(event.result.error)
    return max(level, logging.WARNING) if event.slow else level


def _build(event: str, level: int, about: Mapping[str, Any], **fields: Any) -> LogMessage:
    return LogMessage(event=event, level=level, fields={**about, **fields})


def _ids(event: events.Event) -> dict[str, Any]:
    return {
        "session_id": _shorten(event.session_id) or None,
        "tenant_id": _shorten(event.tenant_id),
        "customer_id": _shorten(event.customer_id),
        "sip_call_id": _shorten(event.sip_call_id),
    }


def _shorten(text: str | None) -> str | None:
    return None if text is None else shorten(text, _MAX_CHARS)


def _describe_error(call: ToolCall, result: ToolResult) -> dict[str, Any] | None:
    """Describe a failure without its message, which is written for the model and may quote the arguments."""
    failure = result.error
    if failure is None:
        return None
    if failure.code == "tool_not_found":
        return ToolNotFoundError(call.name).to_log_dict()
    return {"code": shorten(failure.code), "retryable": failure.retryable}


def _find_trace_ids() -> dict[str, str]:
    """The ids of the current OpenTelemetry span, if the program uses OpenTelemetry."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def summarize_event(event: str, fields: Mapping[str, Any]) -> str:
    """Summarize an event in a few words: `call finished: pay, permission_denied, 1.5 ms`."""
    error: Any = fields.get("error")
    code = cast(Mapping[str, Any], error).get("code") if isinstance(error, Mapping) else error
    outcome = code or ("ok" if fields.get("ok") is True else None)
    duration = fields.get("duration_ms")
    parts = (
        *(fields.get(name) for name in ("tool", "provider", "outcome", "stop_reason", "reason")),
        outcome,
        None if duration is None else f"{duration} ms",
    )
    details = ", ".join(str(part) for part in parts if part)
    return event.replace("_", " ") + (f": {details}" if details else "")


def _to_snake_case(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


_STANDARD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: `time`, `level`, `logger`, `message`, then `event` and its fields.

    It also formats records of other loggers: their message is redacted by pattern, their fields by name, too.
    """

    def __init__(self, *, redactor: Redactor | None = None) -> None:
        super().__init__()
        self._redactor = redactor or Redactor()

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "logger": record.name}
        own = {name: value for name, value in record.__dict__.items() if name not in _STANDARD_FIELDS}
        if record.name == NAME or isinstance(record.msg, LogMessage):
            line["message"] = summarize_event(str(own.get("event", "")), own)
            line.update(own)
        else:
            line["message"] = self._redactor.text(record.getMessage())
            line.update(self._redactor.value(own))
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self._format_exception(record)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return compact_json(line)

    def _format_exception(self, record: logging.LogRecord) -> str:
        info = cast(Any, record.exc_info)
        if record.name != HANDRAIL:  # That logger redacts already.
            info = build_safe_exc_info(info[1], texts=True, redactor=self._redactor)
        return self.formatException(info)
