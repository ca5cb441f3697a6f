"""Writes one log record per event, with structured fields and without argument values."""

import logging
import sys
from typing import Any, Final

from msgspec import Struct

from handrail.core import events
from handrail.core.redact import Redactor
from handrail.monitor.background import BackgroundWriter
from handrail.monitor.calls import CallCounter
from handrail.monitor.event_messages import Counts, MessageBuilder
from handrail.monitor.log_message import NAME, LogMessage
from handrail.monitor.log_record import RecordBuilder, RecordOrigin, find_origin
from handrail.monitor.phone_names import find_phone_names
from handrail.monitor.severity import find_result_level

_OPENING: Final = (events.CallAccepted, events.CallStarted)
_NO_COUNTS: Final = (0, 0)


class _Entry(Struct, frozen=True):
    """An event, and what its record says about the moment in which it was emitted."""

    event: events.Event
    counts: Counts
    output_length: int
    span: Any
    """The OpenTelemetry `SpanContext`, if there is one."""
    origin: RecordOrigin | None = None


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
        self._background = BackgroundWriter(self._write) if in_background else None

    def __call__(self, event: events.Event) -> None:
        """Write one event."""
        level, counts, length = _find_level(event), _NO_COUNTS, 0
        is_enabled = self._logger.isEnabledFor(level)
        if isinstance(event, _OPENING):
            if is_enabled:  # Only their records have the counts.
                self._counter.count(event)
                counts = self._counter.get(event.session_id)
        elif self._counter:
            self._counter.count(event)
        if not is_enabled:
            return
        if isinstance(event, events.CallFinished):
            length = len(event.result.for_model())  # An output may change later.
        background = self._background
        if background is None:
            self._write(_Entry(event, counts, length, _find_span()))
            return
        background.put(_Entry(event, counts, length, _find_span(), find_origin()))
        if level > logging.INFO:
            background.flush()

    def flush(self, timeout: float | None = None) -> bool:
        """Write the records that wait; False if that was not possible within `timeout` seconds, by default 5."""
        return self._background is None or self._background.flush(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Write the records that wait, as `flush` does, and end the thread. Later events are written at once."""
        return self._background is None or self._background.close(timeout)

    def _write(self, entry: _Entry) -> None:
        message = self._messages.build(entry.event, counts=entry.counts, output_length=entry.output_length)
        if not self._logger.isEnabledFor(message.level):
            return
        if (span := entry.span) is not None:
            message.fields["trace_id"] = f"{span.trace_id:032x}"
            message.fields["span_id"] = f"{span.span_id:016x}"
        if not self._phone_names:
            self._logger.handle(self._records.build(message, entry.event.at, entry.origin))
            return
        for name in find_phone_names(message.event, message.fields):
            named = LogMessage(event=name, level=message.level, fields=message.fields)
            self._logger.handle(self._records.build(named, entry.event.at, entry.origin))


def _find_level(event: events.Event) -> int:
    """Return the level of frequent events, and CRITICAL for others, whose level their message has."""
    if isinstance(event, events.CallFinished):
        return find_result_level(event)
    return logging.DEBUG if isinstance(event, (*_OPENING, events.Progress)) else logging.CRITICAL


def _find_span() -> Any:
    """Find the current OpenTelemetry span, if the program uses OpenTelemetry: its `SpanContext`, which has the ids."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    return span if span.is_valid else None
