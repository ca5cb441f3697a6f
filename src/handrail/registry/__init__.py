"""Which tools there are: the registry, the pool of an agent, changing tools on their way in, searching them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handrail.registry.combinators import Toolset
    from handrail.registry.pool import assemble_tool_pool
    from handrail.registry.registry import ToolRegistry
    from handrail.registry.search import SearchResult, ToolSearch, offered_tools

__all__ = ["SearchResult", "ToolRegistry", "ToolSearch", "Toolset", "assemble_tool_pool", "offered_tools"]

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "SearchResult": "handrail.registry.search",
    "ToolRegistry": "handrail.registry.registry",
    "ToolSearch": "handrail.registry.search",
    "Toolset": "handrail.registry.combinators",
    "assemble_tool_pool": "handrail.registry.pool",
    "offered_tools": "handrail.registry.search",
}


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module 'handrail.registry' has no attribute {name!r}")
