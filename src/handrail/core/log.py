"""Handrail's own logger: what breaks is written with its type and its frames, never with the values that it quotes."""

import logging
import os
import sys
from collections.abc import MutableMapping
from functools import cache
from types import TracebackType
from typing import Any, Final, cast

from handrail.core.redact import Redactor
from handrail.errors import shorten

NAME: Final = "handrail"
WITHHELD: Final = "(text withheld, it may quote values; HANDRAIL_DEBUG=1 shows it, redacted)"

_MOST = 50
"""How many exceptions are shown of one, with its causes and what it is a group of."""
_TEXT = 500
"""How many characters of an exception's text are shown."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class CarefulLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger for code that handles other people's data.

    The text of an exception often quotes a value, so only its type and its frames are written. The text is written,
    too, redacted by pattern, with HANDRAIL_DEBUG=1, with `Executor(debug=True)`, or if the logger's level is DEBUG.
    """

    show_texts = False
    """Set by `Executor(debug=True)`, for the whole process."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        error = _given(kwargs.get("exc_info"))
        kwargs["exc_info"] = careful(error, texts=self._can_show_texts()) if error is not None else None
        return msg, kwargs

    def _can_show_texts(self) -> bool:
        return self.show_texts or os.environ.get("HANDRAIL_DEBUG") == "1" or self.isEnabledFor(logging.DEBUG)


def careful(error: BaseException, *, texts: bool, redactor: Redactor | None = None) -> ExcInfo:
    """What may be logged of an exception: its type, its frames and its causes; its text only if asked for."""
    shown = _Stand(redactor or _redactor() if texts else None).in_for(error)
    return type(shown), shown, error.__traceback__


class _Stand:
    """Makes exceptions that look like others in a traceback, and hold nothing of them but names and frames."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        self._left = _MOST

    def in_for(self, error: BaseException) -> BaseException:
        self._left -= 1
        kind, text = type(error), self._text(error)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        if isinstance(error, BaseExceptionGroup) and self._left > 0:
            group = cast(BaseExceptionGroup[BaseException], error)
            parts = [self.in_for(one) for one in group.exceptions if self._left > 0]
            shown: BaseException = type(kind.__name__, (BaseExceptionGroup,), names)(text, parts)
        else:
            shown = type(kind.__name__, (Exception,), names)(text)
        shown.__traceback__ = error.__traceback__
        if error.__cause__ is not None and self._left > 0:
            shown.__cause__ = self.in_for(error.__cause__)
        elif error.__context__ is not None and not error.__suppress_context__ and self._left > 0:
            shown.__context__ = self.in_for(error.__context__)
        return shown

    def _text(self, error: BaseException) -> str:
        return WITHHELD if self._redactor is None else shorten(self._redactor.text(_text_of(error)), _TEXT)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # an exception that cannot even say what it is
        return ""


def _given(exc_info: Any) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        return cast(ExcInfo, exc_info)[1]
    # As logging does: any true value means the exception that is being handled.
    return sys.exception() if exc_info else None


@cache
def _redactor() -> Redactor:
    return Redactor()


log: Final = CarefulLogger(logging.getLogger(NAME))
