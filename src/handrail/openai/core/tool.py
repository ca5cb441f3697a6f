"""Tools whose handlers are plain methods."""

from collections.abc import Sequence
from typing import Any, Generic, cast

from handrail.define.model import ContextIn, ContextOut, FunctionToolModel
from handrail.define.toolcall import (
    AnyToolCall,
    ToolCallFailure,
    ToolCallResult,
    ToolHandlerResult,
    standardize_tool_call,
)
from handrail.errors import ToolError
from handrail.openai.group import ToolClasses, not_found


class LLMFunctionTool(FunctionToolModel[ContextIn, ContextOut], Generic[ContextIn, ContextOut]):
    """A tool as a class: its fields are the arguments, its `model_tool_handler` does the work."""

    def model_tool_handler(self, context: ContextIn) -> ToolHandlerResult[ContextOut] | tuple[str, ContextOut]:
        """Override it."""
        raise NotImplementedError(f"{type(self).__name__}.model_tool_handler()")

    @classmethod
    def model_tool_run_tool_call(cls, call: AnyToolCall, context: ContextIn) -> ToolCallResult[ContextOut]:
        """Validate a call and run it. What is not meant for the model reaches the caller."""
        standard, ready = cls.model_tool_prepare(call)
        if isinstance(ready, ToolCallFailure):
            return ready
        try:
            result = ready.model_tool_handler(context)
        except ToolError as error:
            return cls.model_tool_explicit_failure(standard.id, error)
        return cls.model_tool_success(standard.id, result)


class LLMFunctionToolGroup(ToolClasses[LLMFunctionTool[ContextIn, ContextOut]], Generic[ContextIn, ContextOut]):
    """Tools with the same contexts, to which calls are dispatched by name."""

    def add_tool(self, tool: type[LLMFunctionTool[ContextIn, ContextOut]]) -> Any:
        """Add a class; also a decorator, which gives the class back."""
        self[tool.model_tool_name()] = tool
        # `Any` lets a decorated class keep its own type; the parameter's type is what checks the contexts.
        return cast(Any, tool)

    def run_tool_call(self, call: AnyToolCall, context: ContextIn) -> ToolCallResult[ContextOut]:
        """Run the tool that the call names."""
        standard = standardize_tool_call(call)
        tool = self.get(standard.name)
        return tool.model_tool_run_tool_call(standard, context) if tool else not_found(standard)

    def run_tool_calls(self, calls: Sequence[AnyToolCall], context: ContextIn) -> list[ToolCallResult[ContextOut]]:
        """Run the calls one after the other."""
        return [self.run_tool_call(call, context) for call in calls]
