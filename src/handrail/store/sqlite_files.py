"""Notices that a file of an SQLite database was deleted or replaced: SQLite would go on writing to the deleted one."""

import os

from handrail.errors import StoreError

FileId = tuple[int, int]
"""Device and inode of a file."""


class SqliteFiles:
    """The database file and the `-wal` that the connections of one store have open, in threads of their own."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: FileId | None = None
        self._logs: dict[object, FileId | None] = {}
        """The `-wal` of each open connection. SQLite itself deletes it only when the last connection is closed."""
        self._has_lost_log = False

    def pin(self) -> None:
        """Remember which file the database is."""
        self._file = _identify(self.path)

    def forget(self) -> None:
        """The database is closed: from now on it may be another file."""
        self._file = None
        self._has_lost_log = False

    def require_same(self) -> None:
        """Raise `StoreError` if a file of the database is not the one that was opened, and from then on."""
        if self._file is not None and _identify(self.path) != self._file:
            raise StoreError(f"the database {self.path} was deleted or replaced while it was in use.")
        if not self._has_lost_log:
            log = _identify(f"{self.path}-wal")
            self._has_lost_log = any(opened not in (None, log) for opened in list(self._logs.values()))
        if self._has_lost_log:
            raise StoreError(
                f"the file {self.path}-wal was deleted or replaced while it was in use: other processes do not see "
                "the latest writes. Close the store, which writes what it has, and look for calls that are missing."
            )

    def add(self, connection: object) -> None:
        """Remember which `-wal` a new connection has open."""
        self._logs[connection] = _identify(f"{self.path}-wal")

    def remove(self, connection: object) -> None:
        """Forget a connection that is closed."""
        self._logs.pop(connection, None)


def _identify(path: str) -> FileId | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
