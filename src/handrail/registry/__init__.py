"""Which tools there are: the registry, the pool of an agent, changing tools on their way in, searching them."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.registry.pool import assemble_tool_pool
    from handrail.registry.registry import ToolRegistry
    from handrail.registry.search import SearchResult, ToolSearch, offered_tools
    from handrail.registry.toolset import Toolset

__all__ = ["SearchResult", "ToolRegistry", "ToolSearch", "Toolset", "assemble_tool_pool", "offered_tools"]

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "SearchResult": "handrail.registry.search",
    "ToolRegistry": "handrail.registry.registry",
    "ToolSearch": "handrail.registry.search",
    "Toolset": "handrail.registry.toolset",
    "assemble_tool_pool": "handrail.registry.pool",
    "offered_tools": "handrail.registry.search",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)
