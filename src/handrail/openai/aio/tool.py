"""Tools whose handlers are coroutines."""

import asyncio
from collections.abc import Sequence
from typing import Any, Generic, cast

from handrail.define.model import ContextIn, ContextOut, LLMFunctionTool
from handrail.define.toolcall import AnyToolCall, ToolCallResult, standardize_tool_call
from handrail.openai.group import ToolClasses, not_found


class LLMFunctionToolGroup(ToolClasses[LLMFunctionTool[ContextIn, ContextOut]], Generic[ContextIn, ContextOut]):
    """Tools with the same contexts, to which calls are dispatched by name."""

    def add_tool(self, tool: type[LLMFunctionTool[ContextIn, ContextOut]]) -> Any:
        """Add a class; also a decorator, which gives the class back."""
        self[tool.model_tool_name()] = tool
        # `Any` lets a decorated class keep its own type; the parameter's type is what checks the contexts.
        return cast(Any, tool)

    async def run_tool_call(self, call: AnyToolCall, context: ContextIn) -> ToolCallResult[ContextOut]:
        """Run the tool that the call names."""
        standard = standardize_tool_call(call)
        tool = self.get(standard.name)
        return await tool.model_tool_run_tool_call(standard, context) if tool else not_found(standard)

    async def run_tool_calls(
        self, calls: Sequence[AnyToolCall], context: ContextIn
    ) -> list[ToolCallResult[ContextOut]]:
        """Run the calls together; the results are in the order of the calls.

        If a handler raises, the others are awaited first, so that none goes on behind the caller's back.
        """
        results = await asyncio.gather(*(self.run_tool_call(call, context) for call in calls), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return cast(list[ToolCallResult[ContextOut]], results)
