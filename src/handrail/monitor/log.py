"""Writes one log record per event, with structured fields and without argument values."""

import logging
import sys
from typing import Any, Final

from msgspec import Struct

from handrail.core import events
from handrail.core.redact import Redactor
from handrail.monitor.background import BackgroundWriter
from handrail.monitor.calls import CallCounter
from handrail.monitor.event_messages import Counts, MessageBuilder, find_phone_names
from handrail.monitor.log_record import NAME, LogMessage, RecordBuilder, RecordOrigin, find_origin, find_result_level

_OPENING: Final = (events.CallAccepted, events.CallStarted)
_NO_COUNTS: Final = (0, 0)


class _Entry(Struct, frozen=True):
    """An event that is written later, and what its record says about the moment in which it was emitted."""

    event: events.Event
    level: int
    counts: Counts
    output_length: int
    span: Any
    """The OpenTelemetry `SpanContext`, if there is one."""
    origin: RecordOrigin


class Log:
    """A listener that writes every event to a logger, by default `handrail.events`.

    `record.event` is the event's name, and every field is an attribute of the record. No field has the value of an
    argument, an output, or a text that a handler wrote. A field that is named like something that every record has, or
    every line of `JsonFormatter`, is written with an underscore: `name_`.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        redactor: Redactor | None = None,
        phone_names: bool = False,
        in_background: bool = False,
    ) -> None:
        """Write to a logger.

        Args:
            logger: By default `handrail.events`.
            redactor: What is hidden.
            phone_names: Write the events of an executor under the event names of phone agents.
            in_background: Build and write the records of calls that wait, start or succeed in a thread, a tenth of a
                second later at most. Any other event is written at once, after those that wait. A process that is
                killed loses what waits; one that exits does not.
        """
        self._logger = logger if logger is not None else logging.getLogger(NAME)
        self._phone_names = phone_names
        self._counter = CallCounter()
        self._messages = MessageBuilder(redactor or Redactor())
        self._records = RecordBuilder(self._logger)
        self._background = BackgroundWriter(self._write_entry) if in_background else None

    def __call__(self, event: events.Event) -> None:
        """Write one event."""
        counts, length = _NO_COUNTS, 0
        if type(event) is events.CallFinished:
            level = find_result_level(event)
            if self._counter.sessions:
                self._counter.count(event)
            if not self._logger.isEnabledFor(level):
                return
            length = len(event.result.for_model())  # An output may change later.
        elif type(event) in _OPENING:
            level = logging.DEBUG
            if not self._logger.isEnabledFor(level):
                return
            self._counter.count(event)  # Only their records have the counts.
            counts = self._counter.get(event.session_id)
        else:  # The level is that of the message.
            level = logging.DEBUG if type(event) is events.Progress else logging.CRITICAL
            self._counter.count(event)
            if not self._logger.isEnabledFor(level):
                return
        background = self._background
        if background is None:
            self._write(event, level, counts, length, _find_span(), None)
            return
        background.put(_Entry(event, level, counts, length, _find_span(), find_origin()))
        if level > logging.INFO:
            background.flush()

    def flush(self, timeout: float | None = None) -> bool:
        """Write the records that wait; False if that was not possible within `timeout` seconds, by default 5."""
        return self._background is None or self._background.flush(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Write the records that wait, as `flush` does, and end the thread. Later events are written at once."""
        return self._background is None or self._background.close(timeout)

    def _write_entry(self, entry: _Entry) -> None:
        if self._logger.isEnabledFor(entry.level):  # It may have been changed since.
            self._write(entry.event, entry.level, entry.counts, entry.output_length, entry.span, entry.origin)

    def _write(
        self,
        event: events.Event,
        level: int,
        counts: Counts,
        output_length: int,
        span: Any,
        origin: RecordOrigin | None,
    ) -> None:
        """Write an event of an enabled level; most have another one, which their message has."""
        if type(event) is events.CallFinished:
            message = self._messages.build_finished(event, level, output_length)
        else:
            message = self._messages.build(event, counts=counts)
            if not self._logger.isEnabledFor(message.level):
                return
        if span is not None:
            message.fields["trace_id"] = span.trace_id.to_bytes(16).hex()
            message.fields["span_id"] = span.span_id.to_bytes(8).hex()
        if not self._phone_names:
            self._logger.handle(self._records.build(message, event.at, origin))
            return
        for name in find_phone_names(message.event, message.fields):
            named = LogMessage(event=name, level=message.level, fields=message.fields)
            self._logger.handle(self._records.build(named, event.at, origin))


def _find_span() -> Any:
    """Find the current OpenTelemetry span, if the program uses OpenTelemetry: its `SpanContext`, which has the ids."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or (current := trace.get_current_span()) is trace.INVALID_SPAN:
        return None
    span = current.get_span_context()
    return span if span.is_valid else None
