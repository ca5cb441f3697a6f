"""Builds the log message of each type of event, and its level: no values of arguments, and no texts of handlers."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from pydantic_core import from_json

from handrail.core import events
from handrail.core.redact import Redactor
from handrail.core.values import Decision, Failure, ToolCall
from handrail.errors import ToolNotFoundError, shorten
from handrail.monitor.log_record import LogMessage, build_message
from handrail.phone.events import PhoneCallEnded, ResultSpoken

_SEVERITIES: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_IDS: Final = frozenset(("session_id", "tenant_id", "customer_id", "sip_call_id"))
_CALL_FIELDS: Final = frozenset(("call_id", "response_id", "item_id", "tool", "guideline_ids"))
"""Names that say where an event belongs: none of its own fields has one of them, even if it belongs nowhere."""

_MAX_CHARS = 200
"""The most characters of a name or an id."""
_MAX_NAMES = 50
"""The most names in one list."""
_MAX_DECISIONS = 256
"""The most decisions whose fields are kept."""

Counts = tuple[int, int]
"""How many calls of a session have no result, and how many of their handlers run."""


class MessageBuilder:
    """Builds the messages of events."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._decisions: dict[int, tuple[Decision, dict[str, Any]]] = {}
        """The fields of decisions by `id`: those about read-only calls are kept, and each call has the same one."""
        self._builders: dict[type[Any], Callable[[Any], LogMessage]] = {
            events.CallCancelled: self._build_call_cancelled,
            events.CallIgnored: self._build_ignored,
            events.CallQueued: self._build_queued,
            events.CallTakenOver: self._build_taken_over,
            events.WorkerEvent: self._build_worker_event,
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
            events.DoubtResolved: self._build_doubt_resolved,
            ResultSpoken: self._build_result_spoken,
            PhoneCallEnded: self._build_phone_call_ended,
        }

    def build(self, event: events.Event, *, counts: Counts) -> LogMessage:
        """Build the message of an event: of a call that was accepted or started with the counts of its session."""
        if isinstance(event, events.CallAccepted):
            return self._build_accepted(event, counts)
        if isinstance(event, events.CallStarted):
            return self._build_started(event, counts)
        return self._builders.get(type(event), self._build_other)(event)

    # One method for each type of event.

    def _build_accepted(self, event: events.CallAccepted, counts: Counts) -> LogMessage:
        return build_message(
            "call_accepted",
            logging.DEBUG,
            self._describe_call(event, event.call),
            argument_keys=self._list_argument_keys(event.call),
            pending=counts[0],
            active=counts[1],
        )

    def _build_started(self, event: events.CallStarted, counts: Counts) -> LogMessage:
        return build_message(
            "call_started",
            logging.DEBUG,
            self._describe_call(event, event.call),
            agent_id=_shorten(event.agent_id),
            dependencies=self._clean_names(event.dependencies),
            argument_keys=self._list_argument_keys(event.call),
            pending=counts[0],
            active=counts[1],
        )

    def build_finished(self, event: events.CallFinished, level: int, output_length: int) -> LogMessage:
        """Build the message of a call that has its result."""
        # Every call has this record, so that nothing is put in that is taken out again.
        result = event.result
        fields = self._describe_call(event, event.call)
        fields["ok"] = result.error is None
        if result.error is not None:
            fields["error"] = self._redactor.beginning(_describe_error(event.call, result.error))
        fields["output_length"] = output_length
        if result.media:
            fields["media"] = [self._redactor.value(part) for part in result.media]
        fields["duration_ms"] = round(result.duration_ms, 3)
        fields["slow"] = event.slow
        if result.origin != "run":
            fields["origin"] = result.origin
        if not result.recorded:
            fields["recorded"] = False
        if result.silent:
            fields["silent"] = True
        if (decision := event.decision) is not None:
            known = self._decisions.get(id(decision))
            fields.update(self._describe_decision(decision) if known is None else known[1])
        is_success = result.error is None and not result.media and bool(event.call.name)
        return LogMessage(event="call_finished", level=level, fields=fields, is_success=is_success)

    def _build_call_cancelled(self, event: events.CallCancelled) -> LogMessage:
        return build_message(
            "call_cancelled",
            logging.INFO,
            self._describe_call(event, event.call),
            scope=event.scope,
            reason=self._clean_text(event.reason),
        )

    def _build_ignored(self, event: events.CallIgnored) -> LogMessage:
        return build_message(
            "call_ignored", logging.INFO, self._describe_call(event, event.call), reason=self._clean_text(event.reason)
        )

    def _build_queued(self, event: events.CallQueued) -> LogMessage:
        return build_message(
            "call_queued", logging.INFO, self._describe_call(event, event.call), priority=event.priority
        )

    def _build_taken_over(self, event: events.CallTakenOver) -> LogMessage:
        return build_message(
            "call_taken_over",
            logging.INFO,
            self._describe_call(event, event.call),
            previous_owner=self._clean_text(event.previous_owner),
            owner=self._clean_text(event.owner),
        )

    def _build_worker_event(self, event: events.WorkerEvent) -> LogMessage:
        # What it says of the call is in the log of the worker.
        inner = event.event
        call: ToolCall | None = getattr(inner, "call", None)
        if isinstance(inner, events.Progress):
            about = self._read_call_ids(inner)
        else:
            about = _read_ids(event) if call is None else self._describe_call(event, call)
        return build_message(
            "worker_event",
            logging.DEBUG if isinstance(inner, events.CallStarted | events.Progress) else logging.INFO,
            about,
            worker=self._clean_text(event.worker),
            kind=_to_snake_case(type(inner).__name__),
        )

    def _build_cancelling(self, event: events.Cancelling) -> LogMessage:
        return build_message(
            "cancelling", logging.INFO, _read_ids(event), tracked=event.tracked, cancellable=event.cancellable
        )  # fmt: skip

    def _build_cancellation(self, event: events.Cancellation) -> LogMessage:
        skipped = event.reason == "missing_response_id"
        return build_message(
            "cancellation_skipped" if skipped else "cancellation",
            logging.WARNING if skipped or (event.scope == "session" and event.remaining) else logging.INFO,
            _read_ids(event),
            scope=event.scope,
            response_id=_shorten(event.response_id),
            reason=self._clean_text(event.reason),
            cancelled=event.cancelled,
            remaining=event.remaining,
            pending=event.pending,
        )

    def _build_decision_made(self, event: events.DecisionMade) -> LogMessage:
        return build_message(
            "decision_made",
            logging.INFO,
            self._describe_call(event, event.call),
            observed=event.observed,
            seen={path: self._clean_text(text) for path, text in event.seen.items()} or None,
            **self._build_decision(event.decision),
        )

    def _build_circuit_breaker_changed(self, event: events.CircuitBreakerChanged) -> LogMessage:
        level = logging.WARNING if event.state == "open" else logging.INFO
        return build_message(
            "circuit_breaker_changed",
            level,
            _read_ids(event),
            tool=self._clean_text(event.tool_name),
            state=event.state,
        )

    def _build_doubt_resolved(self, event: events.DoubtResolved) -> LogMessage:
        return build_message(
            "doubt_resolved",
            logging.INFO,
            self._read_call_ids(event),
            happened=event.happened,
            who=self._clean_text(event.who),
            reason=self._clean_text(event.reason),
        )

    def _build_progress(self, event: events.Progress) -> LogMessage:
        # The message is left out: the handler wrote it, and it may quote a value.
        return build_message(
            "progress",
            logging.DEBUG,
            self._read_call_ids(event),
            fraction=event.fraction,
        )

    def _build_tools_built(self, event: events.ToolsBuilt) -> LogMessage:
        return build_message(
            "tool_build_finished",
            logging.WARNING if event.failed else logging.INFO,
            _read_ids(event),
            tool_count=len(event.tool_names),
            tool_names=self._clean_names(event.tool_names) or [],
            tool_choice=None if event.tool_choice is None else self._clean_text(event.tool_choice),
            failed=self._clean_names(event.failed),
        )

    def _build_log_event(self, event: events.LogEvent) -> LogMessage:
        about = _read_ids(event) if event.call is None else self._describe_call(event, event.call)
        taken = _IDS if event.call is None else _IDS | _CALL_FIELDS
        fields = {str(name): self._clean_field(value) for name, value in event.fields.items() if name not in taken}
        return build_message(event.name, _SEVERITIES[event.severity], about, **fields)

    def _build_result_spoken(self, event: ResultSpoken) -> LogMessage:
        return build_message(
            "result_spoken",
            logging.DEBUG,
            self._read_call_ids(event),
            seconds=round(event.seconds, 3),
        )

    def _build_phone_call_ended(self, event: PhoneCallEnded) -> LogMessage:
        return build_message(
            "phone_call_ended",
            logging.ERROR if event.unanswered or event.never_spoken else logging.INFO,
            _read_ids(event),
            reason=self._clean_text(event.reason),
            seconds=round(event.seconds, 3),
            tool_calls=event.tool_calls,
            unanswered=event.unanswered,
            never_spoken=event.never_spoken,
            cut_off=event.cut_off,
            usage=dict(event.usage),
        )

    def _read_call_ids(self, event: events.DoubtResolved | events.Progress | ResultSpoken) -> dict[str, Any]:
        """The ids of an event that names its call without having it."""
        return _read_ids(event) | {"call_id": _shorten(event.call_id), "tool": self._clean_text(event.tool_name)}

    def _clean_field(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._clean_text(value)
        if isinstance(value, list | tuple):
            return self._clean_names(str(item) for item in cast(Iterable[Any], value)) or []
        return self._redactor.beginning(value)

    def _build_turn_planned(self, event: events.TurnPlanned) -> LogMessage:
        return build_message(
            "turn_planned",
            logging.INFO,
            _read_ids(event),
            turn=event.turn,
            guideline_ids=self._clean_names(event.guideline_ids),
            call_ids=self._clean_names(event.call_ids),
            model_calls=event.model_calls,
            iterations=event.iterations,
        )

    def _build_approval(self, event: Any) -> LogMessage:
        # The token is left out: it authorizes a decision.
        return build_message(
            _to_snake_case(type(event).__name__),
            logging.INFO,
            _read_ids(event),
            tool=self._clean_text(event.tool_name),
            by=event.by or None,
            who=self._clean_text(getattr(event, "who", "")) or None,
            outcome=getattr(event, "outcome", None),
            reason=self._clean_text(getattr(event, "reason", "")) or None,
            arguments_digest=event.arguments_digest or None,
            call_id=_shorten(getattr(event, "call_id", None)),
            seconds=getattr(event, "seconds", None),
        )

    def _build_turn_started(self, event: events.TurnStarted) -> LogMessage:
        return build_message(
            "turn_started", logging.DEBUG, _read_ids(event), turn=event.turn, agent_id=_shorten(event.agent_id)
        )

    def _build_turn_finished(self, event: events.TurnFinished) -> LogMessage:
        return build_message(
            "turn_finished",
            logging.WARNING if event.stop_reason == "error" else logging.INFO,
            _read_ids(event),
            turn=event.turn,
            stop_reason=event.stop_reason,
            duration_ms=round(event.duration_ms, 3),
            model_calls=event.model_calls,
            tool_calls=event.tool_calls,
        )

    def _build_model_called(self, event: events.ModelCalled) -> LogMessage:
        return build_message(
            "model_called",
            logging.INFO if event.error is None else logging.ERROR,
            _read_ids(event),
            provider=self._clean_text(event.provider),
            model=self._clean_text(event.model) or None,
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
        return build_message(_to_snake_case(type(event).__name__), logging.INFO, _read_ids(event), **numbers)

    # Fields that several events have.

    def _describe_call(self, event: events.Event, call: ToolCall) -> dict[str, Any]:
        fields = _read_ids(event)
        fields["call_id"] = shorten(call.id, _MAX_CHARS)
        if call.response_id is not None:
            fields["response_id"] = shorten(call.response_id, _MAX_CHARS)
        if call.item_id is not None:
            fields["item_id"] = shorten(call.item_id, _MAX_CHARS)
        fields["tool"] = self._redactor.name(call.name)
        if call.guideline_ids:
            fields["guideline_ids"] = self._clean_names(call.guideline_ids)
        return fields

    def _describe_decision(self, decision: Decision) -> dict[str, Any]:
        """The fields of a decision, kept."""
        if len(self._decisions) >= _MAX_DECISIONS:
            self._decisions.clear()
        fields = self._build_decision(decision)
        self._decisions[id(decision)] = (decision, fields)  # The reference keeps the id of the object unique.
        return fields

    def _build_decision(self, decision: Decision) -> dict[str, Any]:
        # The reason of a permission check is written for the model and may quote the arguments.
        reason = "" if decision.rule == "permission_check" else decision.reason
        fields = {
            "decision": decision.action,
            "by": decision.by,
            "rule": self._clean_text(decision.rule) or None,
            "source": self._clean_text(decision.source) or None,
            "decision_reason": self._clean_text(reason) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _list_argument_keys(self, call: ToolCall) -> list[str] | None:
        try:
            arguments = from_json(call.arguments_json or "{}")
        except ValueError:
            return None
        if not isinstance(arguments, dict):
            return None
        return self._clean_names(sorted(cast(dict[str, Any], arguments))) or []

    def _clean_names(self, names: Iterable[str]) -> Any:
        return [self._clean_text(name) for name, _ in zip(names, range(_MAX_NAMES), strict=False)] or None

    def _clean_text(self, text: str) -> str:
        return self._redactor.name(text)


def _read_ids(event: events.Event) -> dict[str, Any]:
    ids: dict[str, Any] = {}
    if event.session_id:
        ids["session_id"] = shorten(event.session_id, _MAX_CHARS)
    if event.tenant_id is not None:
        ids["tenant_id"] = shorten(event.tenant_id, _MAX_CHARS)
    if event.customer_id is not None:
        ids["customer_id"] = shorten(event.customer_id, _MAX_CHARS)
    if event.sip_call_id is not None:
        ids["sip_call_id"] = shorten(event.sip_call_id, _MAX_CHARS)
    return ids


def _shorten(text: str | None) -> str | None:
    return None if text is None else shorten(text, _MAX_CHARS)


def _describe_error(call: ToolCall, failure: Failure) -> dict[str, Any]:
    """Describe a failure without its message, which is written for the model and may quote the arguments."""
    if failure.code == "tool_not_found":
        return ToolNotFoundError(call.name).to_log_dict()
    return {"code": shorten(failure.code), "retryable": failure.retryable}


def _to_snake_case(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


_PHONE_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "call_accepted": ("tool_invocation_scheduled",),
    "cancelling": ("tool_cancel_all_started",),
    "cancellation_skipped": ("tool_cancel_for_response_skipped_missing_response_id",),
}


def find_phone_names(event: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names under which a phone agent logs an event; its own name if it has no other."""
    match event:
        case "call_finished":
            error: Mapping[str, Any] = fields.get("error") or {}
            if error.get("code") == "tool_not_found":
                return ("tool_not_found",)
            failed = error.get("code") in ("tool_execution_failed", "outcome_unknown", "tool_timeout")
            return ("tool_executor_execute_finished", *(("tool_execution_failed",) if failed else ()))
        case "call_started":
            prepared = ("tool_executor_dependencies_prepared",) if fields.get("dependencies") else ()
            return ("tool_executor_execute_started", "tool_executor_arguments_parsed", *prepared)
        case "call_cancelled" if fields["scope"] == "response":
            return ("tool_cancelled_for_response",)
        case "call_ignored":
            return (f"tool_invocation_ignored_{fields['reason']}",)
        case "cancellation":
            return (
                "tool_cancel_all_finished" if fields["scope"] == "session" else "tool_cancel_for_response_finished",
            )
        case _:
            return _PHONE_NAMES.get(event, (event,))
