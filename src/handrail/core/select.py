"""Selecting tools: by name, glob, source or tag, in one small language.

pay                exactly this name            mcp:github     tools of this source
get_*              names that match             openapi:*      sources that match
tag:payments       tools with this tag
"""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from handrail.core.tool import Tool
from handrail.errors import ConfigError

Selector = Callable[[Tool[..., Any]], bool]


def selector(text: object) -> Selector:
    """The test that one selector stands for."""
    if not isinstance(text, str) or not text.strip() or text == "tag:":
        raise ConfigError(f"A selector is a name, a glob, a source (mcp:server) or a tag (tag:name), not {text!r}.")
    if text != text.strip():  # No name has them, so that it would select nothing, and a deny rule would deny nothing.
        raise ConfigError(f"A selector has no spaces around it: {text.strip()!r}, not {text!r}.")
    if text.startswith("tag:"):
        pattern = text.removeprefix("tag:")
        return lambda tool: any(_matches(tag, pattern) for tag in tool.tags)
    if ":" in text:
        return lambda tool: _matches(tool.source, text)
    return lambda tool: _matches(tool.name, text)


def _matches(text: str, pattern: str) -> bool:
    """Equal, or as the glob says; what is equal may have brackets in it."""
    return text == pattern or fnmatchcase(text, pattern)


def any_of(texts: Iterable[str]) -> Selector:
    """A test that passes when one of the selectors does."""
    if isinstance(texts, str):
        raise ConfigError(f"Give a list of selectors, not one text: [{texts!r}].")
    tests = [selector(text) for text in texts]
    return lambda tool: any(test(tool) for test in tests)
