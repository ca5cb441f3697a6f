"""A walk through the directories below a place, in the order of their names, that never passes through a link."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from handrail.builtins.answer import Answer
from handrail.builtins.glob import Glob, State
from handrail.builtins.inside import Kind, Place
from handrail.errors import ToolError

_DEEPEST: Final = 100
"""How many directories deep a walk goes: each step down is opened anew from the top."""


class Found(NamedTuple):
    """Something whose path matches."""

    place: Place
    kind: Kind


class Walk:
    """One walk, and what it had to leave out. From a file it goes nowhere else."""

    def __init__(self, start: Place, glob: Glob, *, max_entries: int) -> None:
        self._start = start
        self._glob = glob
        self._max_entries = max_entries
        self._left = max_entries
        self._stopped = False
        self._unreadable = 0
        self._too_deep = 0

    def __iter__(self) -> Iterator[Found]:
        glob = self._glob
        if (kind := self._start.kind()) != "folder":
            yield Found(self._start, kind)
            return
        ahead = self._below(self._start, glob.start())
        while ahead:
            place, kind, state = ahead.pop()
            if glob.accepts(state):
                yield Found(place, kind)
            if kind != "folder" or not glob.goes_on(state):
                continue
            if len(place.parts) - len(self._start.parts) >= _DEEPEST:
                self._too_deep += 1
                continue
            try:
                ahead += self._below(place, state)
            except ToolError:  # no right to read it, gone, or swapped for a link since it was seen
                self._unreadable += 1

    def explain(self, answer: Answer) -> None:
        """Say what this walk did not see, so that nobody takes its silence for an answer."""
        if self._stopped:
            answer.note(f"Stopped after {self._max_entries} entries. Start from a directory further down.")
        if self._unreadable:
            answer.note(f"Directories that could not be read: {self._unreadable}.")
        if self._too_deep:
            answer.note(f"Directories left out because they are more than {_DEEPEST} deep: {self._too_deep}.")

    def _below(self, place: Place, state: State) -> list[tuple[Place, Kind, State]]:
        """The entries that can still lead to a match, the last one first."""
        entries = place.scan(self._left + 1)
        if len(entries) > self._left:
            self._stopped = True
            entries = entries[: self._left]
        self._left -= len(entries)
        after = [(entry, self._glob.advance(state, entry.name)) for entry in entries]
        return [(place.child(entry.name), entry.kind, state) for entry, state in reversed(after) if state]
