"""The async API: tools whose handlers are coroutines, and the group that dispatches calls to them."""

import asyncio
from collections.abc import Sequence
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from handrail.define.facade_results import (
    AnyToolCall,
    StandardToolCall,
    ToolCallFailReason,
    ToolCallFailure,
    ToolCallResult,
    ToolCallSuccess,
    ToolErrorMessageForLLMToSee,
    ToolHandlerResult,
    ToolMessageContent,
    standardize_tool_call,
)
from handrail.define.llm_function_tool import (
    ContextIn,
    ContextOut,
    LLMFunctionTool,
    tool_def_for_chat_completions_api,
    tool_def_for_responses_api,
)
from handrail.openai.group import ToolClasses, build_not_found

__all__ = [
    "LLMFunctionTool",
    "LLMFunctionToolGroup",
    "StandardToolCall",
    "ToolCallFailReason",
    "ToolCallFailure",
    "ToolCallResult",
    "ToolCallSuccess",
    "ToolErrorMessageForLLMToSee",
    "ToolHandlerResult",
    "ToolMessageContent",
    "standardize_tool_call",
    "tool_def_for_chat_completions_api",
    "tool_def_for_responses_api",
]

ToolT = TypeVar("ToolT", infer_variance=True)


class Fits(Protocol[ToolT, ContextIn, ContextOut]):
    """A tool class that can be run with these contexts."""

    def model_tool_validate_tool_call(self, name: str, arguments: str) -> ToolT: ...
    async def model_tool_run_tool_call(self, call: AnyToolCall, context: ContextIn) -> ToolCallResult[ContextOut]: ...


class LLMFunctionToolGroup(ToolClasses[LLMFunctionTool[ContextIn, ContextOut]], Generic[ContextIn, ContextOut]):
    """A group of tools with the same contexts, which dispatches calls by name."""

    def add_tool(self, tool: Fits[ToolT, ContextIn, ContextOut]) -> type[ToolT]:
        """Add a class and return it, so that it also works as a decorator."""
        # `Fits` checks the contexts and lets the class keep its type; `type[LLMFunctionTool[…]]` could only do one.
        added: Any = tool
        self[added.model_tool_name()] = added
        return added

    async def run_tool_call(self, call: AnyToolCall, context: ContextIn) -> ToolCallResult[ContextOut]:
        """Run the tool that the call names."""
        call = standardize_tool_call(call)
        tool = self.get(call.name)
        return await tool.model_tool_run_tool_call(call, context) if tool else build_not_found(call)

    async def run_tool_calls(
        self, calls: Sequence[AnyToolCall], context: ContextIn
    ) -> list[ToolCallResult[ContextOut]]:
        """Run the calls together; the results are in the order of the calls.

        If a handler raises, the others are awaited first, so that none keeps running afterwards.
        """
        results = await asyncio.gather(*(self.run_tool_call(call, context) for call in calls), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for other in errors[1:]:
            errors[0].add_note(f"Another call failed, too: {other!r}")
        if errors:
            raise errors[0]
        return [result for result in results if not isinstance(result, BaseException)]
