"""The pool of an agent: built-in tools and those from elsewhere, filtered, sorted, each name once."""

from collections.abc import Iterable
from typing import Any

from handrail.core.select import any_of
from handrail.core.text import canonical_json
from handrail.core.tool import Tool
from handrail.define.build import as_tool


def assemble_tool_pool(
    built_in: Iterable[object], mcp_tools: Iterable[object] = (), deny_rules: Iterable[str] = ()
) -> list[Tool[..., Any]]:
    """Merge tools into one pool that gives the same bytes whatever the order of the input.

    Built-ins come first, so that they are a stable prefix for a prompt cache, and win over others of the same name. A
    deny rule is a name, a glob, a source (`mcp:server`) or a tag (`tag:name`).
    """
    denied = any_of(deny_rules)
    pool: dict[str, Tool[..., Any]] = {}
    for partition in (built_in, mcp_tools):
        allowed = [tool for tool in map(as_tool, partition) if not denied(tool)]
        for tool in sorted(allowed, key=_place):
            pool.setdefault(tool.name, tool)
    return list(pool.values())


def _place(tool: Tool[..., Any]) -> tuple[str, str, str]:
    """The name decides; what follows only settles which of two tools of one name stays."""
    return tool.name, tool.source, canonical_json([tool.description, tool.input_schema])
