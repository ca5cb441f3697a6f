"""Walking the directories below a path, sorted by name, without following links."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from handrail.builtins.glob import Glob, GlobState
from handrail.builtins.output import ToolOutput
from handrail.builtins.workspace import EntryKind, WorkspacePath
from handrail.errors import ToolError

_MAX_DEPTH: Final = 100
"""The most directory levels: each level is opened again from the top."""


class WalkEntry(NamedTuple):
    """An entry whose path matches."""

    path: WorkspacePath
    kind: EntryKind


class DirectoryWalk:
    """One walk, and what it skipped. A walk that starts at a file yields only that file."""

    def __init__(self, start: WorkspacePath, glob: Glob, *, max_entries: int) -> None:
        self._start = start
        self._glob = glob
        self._max_entries = max_entries
        self._left = max_entries
        self._stopped = False
        self._unreadable = 0
        self._too_deep = 0

    def __iter__(self) -> Iterator[WalkEntry]:
        glob = self._glob
        if (kind := self._start.get_kind()) != "folder":
            yield WalkEntry(self._start, kind)
            return
        ahead = self._scan(self._start, glob.start())
        while ahead:
            path, kind, state = ahead.pop()
            if glob.is_match(state):
                yield WalkEntry(path, kind)
            if kind != "folder" or not glob.can_continue(state):
                continue
            if len(path.parts) - len(self._start.parts) >= _MAX_DEPTH:
                self._too_deep += 1
                continue
            try:
                ahead += self._scan(path, state)
            except ToolError:  # not readable, deleted, or replaced by a link since it was listed
                self._unreadable += 1

    def add_notices(self, output: ToolOutput) -> None:
        """Add a notice for what this walk did not see."""
        if self._stopped:
            output.add_notice(f"Stopped after {self._max_entries} entries. Start from a directory further down.")
        if self._unreadable:
            output.add_notice(f"Directories that could not be read: {self._unreadable}.")
        if self._too_deep:
            output.add_notice(f"Directories left out because they are more than {_MAX_DEPTH} deep: {self._too_deep}.")

    def _scan(self, path: WorkspacePath, state: GlobState) -> list[tuple[WorkspacePath, EntryKind, GlobState]]:
        """The entries that can still lead to a match, in reverse order."""
        entries = path.scan(self._left + 1)
        if len(entries) > self._left:
            self._stopped = True
            entries = entries[: self._left]
        self._left -= len(entries)
        after = [(entry, self._glob.advance(state, entry.name)) for entry in entries]
        return [(path.child(entry.name), entry.kind, state) for entry, state in reversed(after) if state]
