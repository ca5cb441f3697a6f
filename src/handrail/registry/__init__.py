"""Which tools there are: the registry, the pool of an agent, changing tools on their way in, searching them."""

from handrail.registry.combinators import Toolset
from handrail.registry.pool import assemble_tool_pool
from handrail.registry.registry import ToolRegistry
from handrail.registry.search import SearchResult, ToolSearch, offered_tools

__all__ = ["SearchResult", "ToolRegistry", "ToolSearch", "Toolset", "assemble_tool_pool", "offered_tools"]
