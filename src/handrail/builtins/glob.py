"""Glob patterns, and the walk over the paths below a directory that match one; it does not follow links.

`*`, `?` and `[a-z]` match within a name, `**` any number of directories, `{a,b}` either.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import translate
from typing import Final, NamedTuple

from handrail.builtins.workspace import EntryKind, ToolOutput, WorkspacePath
from handrail.errors import ToolError, shorten

_MAX_CHARS: Final = 1_000
_MAX_BRANCHES: Final = 64
_MAX_DEPTH: Final = 100
"""The most directory levels: each level is opened again from the top."""
_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")

GlobState = frozenset[tuple[int, int]]
"""The progress of a path: for each branch, how many steps are matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobStep:
    """The pattern for one name of a path."""

    matches: re.Pattern[str] | None
    """None is `**`: any number of names."""
    hidden: bool
    """Whether names that begin with a dot match, as in a shell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glob:
    """A pattern that is matched one directory at a time, so that a walk skips directories where nothing can match."""

    branches: tuple[tuple[GlobStep, ...], ...]

    def start(self) -> GlobState:
        return self._expand_double_stars({(branch, 0) for branch in range(len(self.branches))})

    def advance(self, state: GlobState, name: str) -> GlobState:
        """The state after one more name; an empty one means that nothing below can match."""
        after: set[tuple[int, int]] = set()
        for branch, done in state:
            steps = self.branches[branch]
            if done == len(steps) or (name.startswith(".") and not steps[done].hidden):
                continue
            matches = steps[done].matches
            if matches is None:
                after.add((branch, done))
            elif matches.match(name):
                after.add((branch, done + 1))
        return self._expand_double_stars(after)

    def is_match(self, state: GlobState) -> bool:
        """Whether a path that ends here matches."""
        return any(done == len(self.branches[branch]) for branch, done in state)

    def can_continue(self, state: GlobState) -> bool:
        """Whether something below can match."""
        return any(done < len(self.branches[branch]) for branch, done in state)

    def _expand_double_stars(self, state: set[tuple[int, int]]) -> GlobState:
        for branch, done in list(state):
            steps = self.branches[branch]
            while done < len(steps) and steps[done].matches is None:
                done += 1  # `**` may also stand for no directory at all
                state.add((branch, done))
        return frozenset(state)


def parse_glob(pattern: str, *, argument: str) -> Glob:
    """Parse a pattern; raises `ToolError` if it is not valid."""
    if not pattern or len(pattern) > _MAX_CHARS:
        raise ToolError(f"`{argument}` must be a pattern of 1 to {_MAX_CHARS} characters, such as `**/*.py`.")
    branches = dict.fromkeys(_expand_braces(pattern, argument))
    return Glob(branches=tuple(_parse_steps(branch, argument) for branch in branches))


def _parse_steps(pattern: str, argument: str) -> tuple[GlobStep, ...]:
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if pattern.startswith("/") or ".." in names:
        raise ToolError(
            f"`{argument}` must be relative to the directory that is searched, without `..`, not `{shorten(pattern)}`."
        )
    if not names or names[-1] == "**":
        names.append("*")
    # `**/**` is `**`, and takes the square of the time.
    names = [name for name, following in zip(names, [*names[1:], ""], strict=True) if (name, following) != ("**", "**")]
    return tuple(
        GlobStep(
            matches=None if name == "**" else re.compile(translate(name), re.DOTALL),
            hidden=name.startswith("."),
        )
        for name in names
    )


def _expand_braces(pattern: str, argument: str) -> list[str]:
    done: list[str] = []
    left = [pattern]
    while left:
        branch = left.pop()
        braces = _BRACES.search(branch)
        if braces is None:
            done.append(branch)
        else:
            left += [branch[: braces.start()] + choice + branch[braces.end() :] for choice in braces[1].split(",")]
        if len(done) + len(left) > _MAX_BRANCHES:
            raise ToolError(f"`{argument}` has too many alternatives; {_MAX_BRANCHES} are the most.")
    return done


class WalkEntry(NamedTuple):
    """An entry whose path matches."""

    path: WorkspacePath
    kind: EntryKind


class DirectoryWalk:
    """One walk in the order of the names, and what it skipped. A walk that starts at a file yields only that file."""

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
