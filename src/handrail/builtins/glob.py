"""Glob patterns: `*`, `?` and `[a-z]` within a name, `**` for any number of directories, `{a,b}` for either."""

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

from handrail.errors import ToolError, shorten

_MAX_CHARS: Final = 1_000
_MAX_BRANCHES: Final = 64
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
    return Glob(branches=tuple(_parse_steps(branch, argument) for branch in _expand_braces(pattern, argument)))


def _parse_steps(pattern: str, argument: str) -> tuple[GlobStep, ...]:
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if pattern.startswith("/") or ".." in names:
        raise ToolError(
            f"`{argument}` must be relative to the directory that is searched, without `..`, not `{shorten(pattern)}`."
        )
    if not names or names[-1] == "**":
        names.append("*")
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
