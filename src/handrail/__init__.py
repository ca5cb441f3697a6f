"""Handrail: the tool runtime for LLM agents."""

from typing import TYPE_CHECKING

from handrail.core.context import ToolContext
from handrail.core.lazy_loading import build_getattr
from handrail.core.media import MediaPart
from handrail.core.tool import Tool, ToolLike
from handrail.core.values import Control, Decision, Failure, ToolCall, ToolResult
from handrail.define.function import tool
from handrail.errors import (
    ConfigError,
    HandrailError,
    InvalidArgumentsError,
    PermissionDeniedError,
    ToolArgsParseError,
    ToolBuildError,
    ToolDefinitionError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
)

if TYPE_CHECKING:
    from handrail.authorize.policy import Policy, Rule
    from handrail.chat.session import ChatSession
    from handrail.core.provenance import Provenance
    from handrail.core.version import __version__ as __version__
    from handrail.define.build import as_tool, build_tool
    from handrail.define.llm_function_tool import LLMFunctionTool
    from handrail.define.options import ToolFlags
    from handrail.execute.executor import Executor
    from handrail.guide.agent import Agent
    from handrail.guide.values import Guideline
    from handrail.registry.pool import assemble_tool_pool
    from handrail.registry.registry import ToolRegistry

__all__ = [
    "Agent",
    "ChatSession",
    "ConfigError",
    "Control",
    "Decision",
    "Executor",
    "Failure",
    "Guideline",
    "HandrailError",
    "InvalidArgumentsError",
    "LLMFunctionTool",
    "MediaPart",
    "PermissionDeniedError",
    "Policy",
    "Provenance",
    "Rule",
    "Tool",
    "ToolArgsParseError",
    "ToolBuildError",
    "ToolCall",
    "ToolContext",
    "ToolDefinitionError",
    "ToolError",
    "ToolExecutionError",
    "ToolFlags",
    "ToolLike",
    "ToolNotFoundError",
    "ToolRegistry",
    "ToolResult",
    "as_tool",
    "assemble_tool_pool",
    "build_tool",
    "tool",
]

# Loaded on first use, so that `from handrail import tool` stays about as cheap as `import pydantic`.
_ON_FIRST_USE = {
    "__version__": "handrail.core.version",
    "Agent": "handrail.guide.agent",
    "ChatSession": "handrail.chat.session",
    "Executor": "handrail.execute.executor",
    "Guideline": "handrail.guide.values",
    "LLMFunctionTool": "handrail.define.llm_function_tool",
    "Policy": "handrail.authorize.policy",
    "Provenance": "handrail.core.provenance",
    "Rule": "handrail.authorize.policy",
    "ToolFlags": "handrail.define.options",
    "ToolRegistry": "handrail.registry.registry",
    "as_tool": "handrail.define.build",
    "assemble_tool_pool": "handrail.registry.pool",
    "build_tool": "handrail.define.build",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)


def __dir__() -> list[str]:
    return __all__
