"""Handrail's logger, which writes exceptions without their texts, because those often quote values."""

import logging
import os
import sys
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import TracebackType
from typing import Any, Final, cast

from handrail.core.redact import Redactor
from handrail.errors import shorten

NAME: Final = "handrail"
WITHHELD: Final = "(text withheld, it may quote values; HANDRAIL_DEBUG=1 shows it, redacted)"

_MAX_EXCEPTIONS = 50
"""The most exceptions that are shown for one: itself, its causes, and the members of groups."""
_MAX_TEXT_CHARS = 500
"""The most characters that are shown of an exception's text."""

SHOW_TEXTS: Final[ContextVar[bool]] = ContextVar("handrail_show_texts", default=False)
"""True while an executor with `debug=True` runs a call: other executors of the process are not concerned."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class CarefulLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that writes only the type and the frames of an exception, because its text often quotes a value.

    With HANDRAIL_DEBUG=1, with `Executor(debug=True)`, or if the logger's level is DEBUG, the text is written, too,
    redacted by pattern.
    """

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        error = _find_exception(kwargs.get("exc_info"))
        kwargs["exc_info"] = build_safe_exc_info(error, texts=self._can_show_texts()) if error is not None else None
        return msg, kwargs

    def _can_show_texts(self) -> bool:
        return SHOW_TEXTS.get() or os.environ.get("HANDRAIL_DEBUG") == "1" or self.isEnabledFor(logging.DEBUG)


def build_safe_exc_info(error: BaseException, *, texts: bool, redactor: Redactor | None = None) -> ExcInfo:
    """Build an `exc_info` that is safe to log: types, frames and causes, and redacted texts only with `texts`."""
    shown = _SafeCopier(redactor or _redactor() if texts else None).copy(error)
    return type(shown), shown, error.__traceback__


class _SafeCopier:
    """Copies exceptions so that a traceback shows the same names and frames, without their values."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        self._left = _MAX_EXCEPTIONS

    def copy(self, error: BaseException) -> BaseException:
        self._left -= 1
        kind, text = type(error), self._text(error)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        if isinstance(error, BaseExceptionGroup) and self._left > 0:
            group = cast(BaseExceptionGroup[BaseException], error)
            parts = [self.copy(member) for member in group.exceptions if self._left > 0]
            shown: BaseException = type(kind.__name__, (BaseExceptionGroup,), names)(text, parts)
        else:
            shown = type(kind.__name__, (Exception,), names)(text)
        shown.__traceback__ = error.__traceback__
        if error.__cause__ is not None and self._left > 0:
            shown.__cause__ = self.copy(error.__cause__)
        elif error.__context__ is not None and not error.__suppress_context__ and self._left > 0:
            shown.__context__ = self.copy(error.__context__)
        return shown

    def _text(self, error: BaseException) -> str:
        if self._redactor is None:
            return WITHHELD
        return shorten(self._redactor.text(_get_text(error)[: 4 * _MAX_TEXT_CHARS]), _MAX_TEXT_CHARS)


def _get_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # an exception whose __str__ raises
        return ""


def _find_exception(exc_info: Any) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        return cast(ExcInfo, exc_info)[1]
    # As logging does: any true value means the exception that is being handled.
    return sys.exception() if exc_info else None


def quiet_library(*names: str) -> None:
    """Keep libraries that log arguments at DEBUG from it, as SQLAlchemy does itself, unless somebody has set a level.

    A root logger at DEBUG is for the application's own messages, and none of these redacts anything.
    """
    for name in names:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)


@cache
def _redactor() -> Redactor:
    return Redactor()


log: Final = CarefulLogger(logging.getLogger(NAME))


@contextmanager
def silence_log() -> Generator[None]:
    """Log nothing while the block lasts: for commands that play faults, whose errors are what is wanted."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
