"""Tools that change while they are used: the protocol of a source, and the registry of what it has now."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from handrail.core.log import log
from handrail.core.tool import Tool
from handrail.registry.registry import ToolRegistry


@runtime_checkable
class ToolSource(Protocol):
    """Something that has tools, and says when they have changed: what `handrail.sources.connect` gives."""

    @property
    def tools(self) -> Sequence[Tool[..., Any]]: ...

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have a function called after each change; the returned one ends that."""
        ...


def build_registry(tools: Sequence[Tool[..., Any] | ToolSource]) -> ToolRegistry:
    """A registry of tools and of what sources among them have now, in their order.

    A tool of a source never takes the name of another tool: it is left out, and logged.
    """
    taken = {one.name for one in tools if isinstance(one, Tool)}
    pool: list[Tool[..., Any]] = []
    for one in tools:
        if isinstance(one, Tool):
            pool.append(one)
            continue
        for tool in one.tools:
            if tool.name in taken:
                log.warning("the tool %s from %s is left out: there is one of that name", tool.name, tool.source)
            else:
                taken.add(tool.name)
                pool.append(tool)
    return ToolRegistry(pool)
