"""Keeps values in memory by session, within a number of entries and of bytes."""

from typing import Generic, TypeVar

from handrail.execute.scheduler import CallRef

V = TypeVar("V")


class BoundedStore(Generic[V]):
    """The newest values that were put, by session and key: at most so many, and of about so many bytes together.

    Values are kept in two halves. When the newer half is full, the older one is dropped as a whole, so that no call
    has to look for the oldest value.
    """

    __slots__ = ("_bytes", "_entries", "_max_bytes", "_max_entries", "newer", "older")

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries // 2
        self._max_bytes = max_bytes // 2
        self._entries = 0
        self._bytes = 0
        self.newer: dict[str, dict[str, V]] = {}
        """The values of each session."""
        self.older: dict[str, dict[str, V]] = {}

    def get(self, session_id: str, key: str) -> V | None:
        """The value, if it is still kept."""
        for half in (self.newer, self.older):
            values = half.get(session_id)
            if values is not None and key in values:
                return values[key]
        return None

    def put(self, ref: CallRef, value: V, size: int) -> None:
        """Keep a value of about this many bytes for a session, under a key."""
        session_id, key = ref
        if self._entries >= self._max_entries or self._bytes + size > self._max_bytes:
            self.older, self.newer = self.newer, {}
            self._entries = self._bytes = 0
            if size > self._max_bytes:
                return
        values = self.newer.get(session_id)
        if values is None:
            self.newer[session_id] = {key: value}
        else:
            values[key] = value
        self._entries += 1
        self._bytes += size

    def forget_session(self, session_id: str) -> None:
        """Forget everything of a session."""
        self.newer.pop(session_id, None)
        self.older.pop(session_id, None)
