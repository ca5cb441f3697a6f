"""Builds the records that `Log` hands to its logger."""

import asyncio
import logging
import os
import threading
from typing import Any, Final

from msgspec import Struct

from handrail.monitor.log_message import LogMessage

_HAS_TASK_NAME: Final = hasattr(logging.makeLogRecord({}), "taskName")


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
