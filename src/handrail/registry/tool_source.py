"""Sources whose tools change at runtime, and the registry of their current tools."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from handrail.core.log import log
from handrail.core.tool import Tool
from handrail.registry.registry import ToolRegistry


@runtime_checkable
class ToolSource(Protocol):
    """An object with tools that may change, such as what `handrail.sources.connect` yields."""

    @property
    def tools(self) -> Sequence[Tool[..., Any]]: ...

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function after every change of the tools; the function returned here unsubscribes it."""
        ...


def build_registry(tools: Sequence[Tool[..., Any] | ToolSource]) -> ToolRegistry:
    """A registry of the given tools and of the current tools of the given sources, in their order.

    A tool of a source never takes the name of another tool: it is left out, and logged.
    """
    taken = {member.name for member in tools if isinstance(member, Tool)}
    pool: list[Tool[..., Any]] = []
    for item in tools:
        if isinstance(item, Tool):
            pool.append(item)
            continue
        for tool in item.tools:
            if tool.name in taken:
                log.warning("the tool %s from %s is left out: there is one of that name", tool.name, tool.source)
            else:
                taken.add(tool.name)
                pool.append(tool)
    return ToolRegistry(pool)
