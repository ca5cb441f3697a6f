"""Selects tools by name, glob, source or tag.

pay                exactly this name            mcp:github     tools of this source
get_*              names that match             openapi:*      sources that match
tag:payments       tools with this tag
"""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Generic, TypeVar

from handrail.core.tool import Tool
from handrail.errors import ConfigError

T = TypeVar("T")

Selector = Callable[[Tool[..., Any]], bool]

_MAX_TOOLS: Final = 10_000
"""For how many tools a table remembers what it found."""


def parse_selector(text: object) -> Selector:
    """Compile a selector to a predicate on tools."""
    if not isinstance(text, str) or not text.strip() or text == "tag:":
        raise ConfigError(f"A selector must be a name, a glob, a source (mcp:name) or a tag (tag:name), got {text!r}.")
    if text != text.strip():  # It would select nothing, so that a deny rule would deny nothing.
        raise ConfigError(f"A selector must have no spaces around it: {text.strip()!r}, got {text!r}.")
    if text.startswith("tag:"):
        pattern = text.removeprefix("tag:")
        return lambda tool: any(is_match(tag, pattern) for tag in tool.tags)
    if ":" in text:
        return lambda tool: is_match(tool.source, text)
    return lambda tool: is_match(tool.name, text)


def is_match(text: str, pattern: str) -> bool:
    """Whether a text equals a pattern (which may have brackets in it), or matches it as a glob."""
    return text == pattern or fnmatchcase(text, pattern)


def parse_selectors(texts: Iterable[str]) -> Selector:
    """Compile selectors to a predicate that is true if one of them matches."""
    if isinstance(texts, str):
        raise ConfigError(f"Selectors must be a list: [{texts!r}], got {texts!r}.")
    tests = [parse_selector(text) for text in texts]
    return lambda tool: any(test(tool) for test in tests)


def is_name(text: str) -> bool:
    """Whether a selector is the name of one tool, and no pattern."""
    return not any(mark in text for mark in "*?[:")


class SelectorTable(Generic[T]):
    """Values with the selectors of the tools that they are for; no selector means every tool.

    Names are looked up, and patterns are tested once for each tool: no call pays for the number of values.
    """

    __slots__ = ("_by_name", "_found", "_patterns", "_values")

    def __init__(self, entries: Iterable[tuple[Sequence[str], T]]) -> None:
        self._values: list[T] = []
        self._by_name: dict[str, list[int]] = {}
        self._patterns: list[tuple[int, Selector]] = []
        self._found: dict[tuple[Any, ...], tuple[T, ...]] = {}
        for position, (texts, value) in enumerate(entries):
            self._values.append(value)
            selects: Selector = parse_selectors(texts) if texts else lambda tool: True
            if texts and all(map(is_name, texts)):
                for name in set(texts):
                    self._by_name.setdefault(name, []).append(position)
            else:
                self._patterns.append((position, selects))

    def __bool__(self) -> bool:
        return bool(self._values)

    def find(self, tool: Tool[..., Any]) -> tuple[T, ...]:
        """The values that are for a tool, in their order."""
        if not self._values:
            return ()
        key = (tool.name, tool.source, tool.tags)
        found = self._found.get(key)
        if found is None:
            matching = (position for position, selects in self._patterns if selects(tool))
            positions = sorted((*self._by_name.get(tool.name, ()), *matching))
            if len(self._found) >= _MAX_TOOLS:  # A model can make up any number of names.
                self._found.clear()
            found = self._found[key] = tuple(self._values[position] for position in positions)
        return found
