"""The record of an event: its level, the names of its fields, its text, its line of JSON, and the record itself."""

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.json import Encoder

from handrail.core.events import CallFinished
from handrail.core.log import NAME as HANDRAIL
from handrail.core.log import build_safe_exc_info
from handrail.core.redact import Redactor
from handrail.core.secret_patterns import MAX_PIECE
from handrail.core.text import compact_json
from handrail.core.values import Failure
from handrail.errors import Code

NAME: Final = f"{HANDRAIL}.events"

_SUMMARIZED: Final = ("tool", "provider", "outcome", "stop_reason", "reason")
"""The fields that a summary has first."""
_UNUSUAL: Final = (*_SUMMARIZED[1:], "error")
"""Fields of a summary that the record of a call that succeeded does not have."""


class LogMessage(Struct, frozen=True, kw_only=True):
    """The message of a log record; as text, a summary and the fields as JSON."""

    event: str
    level: int
    fields: dict[str, Any]
    is_success: bool = False
    """Whether a call has succeeded: then the fields are texts, flags and finite numbers."""

    def __str__(self) -> str:
        return f"{summarize_event(self.event, self.fields)} {compact_json(self.fields)}"


def summarize_event(event: str, fields: Mapping[str, Any]) -> str:
    """Summarize an event in a few words: `call finished: pay, permission_denied, 1.5 ms`."""
    words = event.replace("_", " ")
    tool, duration = fields.get("tool"), fields.get("duration_ms")
    if tool and duration is not None and fields.get("ok") is True and fields.keys().isdisjoint(_UNUSUAL):
        return f"{words}: {tool}, ok, {duration} ms"  # Most records are those of calls that succeeded.
    error: Any = fields.get("error")
    details = [str(part) for name in _SUMMARIZED if (part := fields.get(name))]
    code = cast(Mapping[str, Any], error).get("code") if error and isinstance(error, Mapping) else error
    if code:
        details.append(str(code))
    elif fields.get("ok") is True:
        details.append("ok")
    if duration is not None:
        details.append(f"{duration} ms")
    return f"{words}: {', '.join(details)}" if details else words


LEVELS: Final[dict[Code, int]] = {
    # Normal: the call waits, or was cancelled.
    "approval_required": logging.INFO,
    "cancelled": logging.INFO,
    "in_progress": logging.INFO,
    # The call was refused.
    "tool_not_found": logging.WARNING,
    "tool_args_parse_error": logging.WARNING,
    "invalid_arguments": logging.WARNING,
    "permission_denied": logging.WARNING,
    "refused_by_hook": logging.WARNING,
    "rate_limited": logging.WARNING,
    "duplicate_call": logging.WARNING,
    # Something is broken.
    "unavailable": logging.ERROR,
    "tool_timeout": logging.ERROR,
    "outcome_unknown": logging.ERROR,
    "tool_execution_failed": logging.ERROR,
}


def find_level(failure: Failure | None) -> int:
    """Return the level of a result; a code that a tool defines itself is a warning."""
    return logging.INFO if failure is None else _BY_CODE.get(failure.code, logging.WARNING)


def find_result_level(event: CallFinished) -> int:
    """Return the level of a call that has its result."""
    result = event.result
    if not result.recorded:  # The effect happened, but the ledger has no record of it.
        return logging.ERROR
    level = logging.INFO if result.error is None else find_level(result.error)
    return max(level, logging.WARNING) if event.slow else level


_BY_CODE: Final[dict[str, int]] = {**LEVELS}


_ENCODE_PLAIN: Final = Encoder().encode
"""Writes texts, flags and finite numbers as `compact_json` does, in half of the time."""
_HAS_TASK_NAME: Final = hasattr(logging.makeLogRecord({}), "taskName")
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__)
"""The attributes of every record."""
_OWN_FIELDS_FROM: Final = len(_STANDARD) + 1
"""As many attributes of a record of an event come before its fields: those of every record, and its name."""
STANDARD_FIELDS: Final = _STANDARD | {"message", "asctime", "taskName"}
RESERVED_FIELDS: Final = STANDARD_FIELDS | {"event", "time", "level", "logger", "exception", "stack"}
"""Names that a record or a line of JSON has itself."""


def build_message(event: str, level: int, about: Mapping[str, Any], /, **fields: Any) -> LogMessage:
    """Build the message of an event. A field that is named like what every record or line has is written `name_`."""
    every = {**about, **fields}
    return LogMessage(
        event=event,
        level=level,
        fields={
            f"{name}_" if name in RESERVED_FIELDS else name: value for name, value in every.items() if value is not None
        },
    )


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: `time`, `level`, `logger`, `message`, then `event` and its fields.

    It also formats records of other loggers: their message is redacted by pattern, their fields by name, too.
    """

    def __init__(self, *, redactor: Redactor | None = None) -> None:
        super().__init__()
        self._redactor = redactor or Redactor()
        self._second = (-1, "")
        """The last second that was written, and its text."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        message = record.msg
        if type(message) is LogMessage and message.is_success and _is_unchanged(record, message):
            return self._format_success(record, message)
        line: dict[str, Any] = {
            "time": self._format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": "",  # Its place: what it says is read from the fields.
        }
        if isinstance(message, LogMessage) or record.name == NAME:
            line.update(_find_own_fields(record))
            line["message"] = summarize_event(str(line.get("event", "")), line)
        else:
            line["message"] = self._redactor.beginning(record.getMessage())
            line |= self._redactor.arguments(_find_own_fields(record), max_chars=MAX_PIECE)
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self._format_exception(record)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return compact_json(line)

    def _format_success(self, record: logging.LogRecord, message: LogMessage) -> str:
        """The same line for less: most records are of calls that succeeded, and are as they were built."""
        fields = message.fields
        duration = _ENCODE_PLAIN(fields["duration_ms"]).decode()
        head = {
            "time": self._format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": f"call finished: {fields['tool']}, ok, {duration} ms",
            "event": message.event,
        }
        return (_ENCODE_PLAIN(head)[:-1] + b"," + _ENCODE_PLAIN(fields)[1:]).decode()

    def _format_time(self, created: float) -> str:
        second = int(created)
        micros = round((created - second) * 1_000_000)
        known, text = self._second
        if second == known and 0 <= micros < 1_000_000:
            return f"{text}.{micros // 1000:03}Z"
        whole = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")[:-6]
        if second >= 0 and micros < 1_000_000:
            self._second = (second, whole[:-4])
        return f"{whole}Z"

    def _format_exception(self, record: logging.LogRecord) -> str:
        info = cast(Any, record.exc_info)
        if record.name != HANDRAIL:  # That logger has already redacted it.
            info = build_safe_exc_info(info[1], texts=True, redactor=self._redactor)
        return self.formatException(info)


def _is_unchanged(record: logging.LogRecord, message: LogMessage) -> bool:
    """Whether a record is as `Log` built it: a filter may have changed a field, or added one."""
    attributes, fields = record.__dict__, message.fields
    if len(attributes) != _OWN_FIELDS_FROM + len(fields) or record.exc_info or record.stack_info:
        return False
    try:
        for name, value in fields.items():
            if attributes[name] is not value:
                return False
        return attributes["event"] is message.event
    except KeyError:
        return False


def _find_own_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The attributes that not every record has."""
    return {name: value for name, value in record.__dict__.items() if name not in STANDARD_FIELDS}


class RecordOrigin(Struct, frozen=True):
    """Where an event was emitted."""

    thread: threading.Thread
    task_name: str | None


class RecordBuilder:
    """Builds records of one logger.

    Unless somebody replaced the class of records, a record is a copy of the first one, with what differs: the place in
    the code is the same for all, so that nobody has to look for it. It takes half of the time of a new one.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._is_plain = type(logger).makeRecord is logging.Logger.makeRecord
        """Whether the logger only copies the fields, after it has looked at each of them."""
        self._process = 0
        self._first: dict[str, Any] = {}
        self._start = 0.0
        """When `logging` was loaded."""

    def build(self, message: LogMessage, at: float, origin: RecordOrigin | None = None) -> logging.LogRecord:
        """Build the record of an event that was emitted at a time, here or elsewhere."""
        if not self._is_plain:
            return self._make(message, {"event": message.event, **message.fields})
        if logging.getLogRecordFactory() is not logging.LogRecord:
            record = self._make(message)
            record.__dict__["event"] = message.event
            record.__dict__.update(message.fields)
            return record
        if self._process != os.getpid():
            self._make_first()
        level = message.level
        attributes = self._first.copy()
        attributes["msg"] = message
        attributes["levelno"] = level
        attributes["levelname"] = logging.getLevelName(level)
        attributes["created"] = at
        attributes["msecs"] = int(at % 1 * 1000) + 0.0
        attributes["relativeCreated"] = (at - self._start) * 1000
        if logging.logThreads:
            thread = threading.current_thread() if origin is None else origin.thread
            attributes["thread"] = thread.ident
            attributes["threadName"] = thread.name
        if _HAS_TASK_NAME:
            attributes["taskName"] = _find_task_name() if origin is None else origin.task_name
        attributes["event"] = message.event
        attributes.update(message.fields)
        record = logging.LogRecord.__new__(logging.LogRecord)
        record.__dict__ = attributes
        return record

    def _make_first(self) -> None:
        first = self._make(LogMessage(event="", level=logging.INFO, fields={}))
        self._start = first.created - first.relativeCreated / 1000
        self._first = first.__dict__
        self._process = os.getpid()

    def _make(self, message: LogMessage, extra: dict[str, Any] | None = None) -> logging.LogRecord:
        logger = self._logger
        return logger.makeRecord(logger.name, message.level, __file__, 0, message, (), None, extra=extra)


def find_origin() -> RecordOrigin:
    """Where the current code runs."""
    return RecordOrigin(threading.current_thread(), _find_task_name() if _HAS_TASK_NAME else None)


def _find_task_name() -> str | None:
    if not getattr(logging, "logAsyncioTasks", True):
        return None
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else task.get_name()
