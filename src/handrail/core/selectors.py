"""Selects tools by name, glob, source or tag.

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


def parse_selector(text: object) -> Selector:
    """Compile a selector to a predicate on tools."""
    if not isinstance(text, str) or not text.strip() or text == "tag:":
        raise ConfigError(f"A selector must be a name, a glob, a source (mcp:name) or a tag (tag:name), got {text!r}.")
    if text != text.strip():  # It would select nothing, so that a deny rule would deny nothing.
        raise ConfigError(f"A selector must have no spaces around it: {text.strip()!r}, got {text!r}.")
    if text.startswith("tag:"):
        pattern = text.removeprefix("tag:")
        return lambda tool: any(_is_match(tag, pattern) for tag in tool.tags)
    if ":" in text:
        return lambda tool: _is_match(tool.source, text)
    return lambda tool: _is_match(tool.name, text)


def _is_match(text: str, pattern: str) -> bool:
    """Whether a text equals a pattern (which may have brackets in it), or matches it as a glob."""
    return text == pattern or fnmatchcase(text, pattern)


def parse_selectors(texts: Iterable[str]) -> Selector:
    """Compile selectors to a predicate that is true if one of them matches."""
    if isinstance(texts, str):
        raise ConfigError(f"Selectors must be a list: [{texts!r}], got {texts!r}.")
    tests = [parse_selector(text) for text in texts]
    return lambda tool: any(test(tool) for test in tests)
