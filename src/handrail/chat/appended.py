"""Which messages of a conversation are the same objects as in an earlier revision, without looking at any of them."""

from threading import Lock
from typing import Any, Final

from msgspec import Struct


class Appended(Struct, frozen=True, dict=True):
    """Says of one tuple that it was made by appending to others; it goes with a conversation from copy to copy.

    It has no fields, so it is neither saved nor compared. It knows nothing about messages that came about in another
    way (loaded, replaced, removed, passed by a caller): those are compared one by one.
    """

    def append(self, before: tuple[Any, ...], after: tuple[Any, ...]) -> "Appended":
        """Return what to say of `after`, which is `before` and more."""
        own = vars(self)
        line: _Line | None = own["line"] if own.get("messages") is before else None
        if line is None or not line.take(len(before), len(after)):
            line = _Line(len(after))
        made = Appended()
        vars(made).update(messages=after, line=line)
        return made

    def count_shared(self, messages: tuple[Any, ...], other: "Appended", others: tuple[Any, ...]) -> int:
        """Return how many messages the two are known to have in common, from the first one on."""
        own, its = vars(self), vars(other)
        if own.get("messages") is not messages or its.get("messages") is not others:
            return len(messages) if messages is others else 0
        return min(len(messages), len(others)) if own["line"] is its["line"] else 0


class _Line:
    """Tuples of which each is the beginning of the next one. Every position is given away once."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._lock = Lock()

    def take(self, start: int, end: int) -> bool:
        """Whether messages appended at `start` belong to this line; if another tuple has others there, they do not."""
        with self._lock:
            if self._length != start:
                return False
            self._length = end
            return True


NOTHING_APPENDED: Final = Appended()
