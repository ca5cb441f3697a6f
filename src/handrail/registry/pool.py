"""The pool of tools that is offered to a model, in a stable order, and objects whose tools may change."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from handrail.core.selectors import parse_selectors
from handrail.core.tool import Tool
from handrail.define.build import as_tool


def assemble_tool_pool(
    built_in: Iterable[object], mcp_tools: Iterable[object] = (), deny_rules: Iterable[str] = ()
) -> list[Tool[..., Any]]:
    """Merge tools into one pool that gives the same bytes whatever the order of the input.

    Built-ins come first, so that they are a stable prefix for a prompt cache, and win over others of the same name. A
    deny rule is a name, a glob, a source (`mcp:server`) or a tag (`tag:name`).
    """
    denied = parse_selectors(deny_rules)
    pool: dict[str, Tool[..., Any]] = {}
    for partition in (built_in, mcp_tools):
        by_name: dict[str, list[Tool[..., Any]]] = {}
        for tool in map(as_tool, partition):
            if not denied(tool):
                by_name.setdefault(tool.name, []).append(tool)
        for name in sorted(by_name):
            same = by_name[name]
            pool.setdefault(name, same[0] if len(same) == 1 else min(same, key=_sort_key))
    return list(pool.values())


def _sort_key(tool: Tool[..., Any]) -> tuple[str, str]:
    """Which of two tools of one name stays: it depends on what they are, not on which one came first."""
    said = [tool.description, tool.input_schema, tool.output_schema, tool.examples, sorted(tool.tags)]
    marked = [tool.read_only, tool.concurrency_safe, tool.idempotent, tool.strict]
    return tool.source, json.dumps([said, marked], default=str)


@runtime_checkable
class ToolSource(Protocol):
    """An object with tools that may change, such as what `handrail.sources.connect` yields."""

    @property
    def tools(self) -> Sequence[Tool[..., Any]]: ...

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function after every change of the tools; the function returned here unsubscribes it."""
        ...
