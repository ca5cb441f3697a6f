"""The sync API: tools whose handlers are plain methods, and the group that dispatches calls to them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol

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
    build_failure,
    standardize_tool_call,
)
from handrail.define.llm_function_tool import (
    ContextIn,
    ContextOut,
    FunctionToolModel,
    build_success_result,
    tool_def_for_chat_completions_api,
    tool_def_for_responses_api,
    validate_call,
)
from handrail.errors import ToolError
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


class LLMFunctionTool(FunctionToolModel[ContextIn, ContextOut], Generic[ContextIn, ContextOut]):
    """A tool as a class: its fields are the arguments, and `model_tool_handler` runs it."""

    if TYPE_CHECKING:

        def model_tool_handler(self, context: ContextIn) -> ToolHandlerResult[ContextOut] | tuple[str, ContextOut]: ...

    @classmethod
    def model_tool_run_tool_call(cls, call: AnyToolCall, context: ContextIn) -> ToolCallResult[ContextOut]:
        """Validate a call and run it. Exceptions that are not for the model are raised."""
        call = standardize_tool_call(call)
        ready = validate_call(cls, call)
        if isinstance(ready, ToolCallFailure):
            return ready
        try:
            result = ready.model_tool_handler(context)
        except ToolError as error:
            return build_failure(call, "explicit_handler_error", cls.model_tool_format_explicit_error(error))
        return build_success_result(cls, call, result)


class Fits(Protocol[ToolT, ContextIn, ContextOut]):
    """A tool class that can be run with these contexts."""

    def model_tool_validate_tool_call(self, name: str, arguments: str) -> ToolT: ...
    def model_tool_run_tool_call(self, call: AnyToolCall, context: ContextIn) -> ToolCallResult[ContextOut]: ...


class LLMFunctionToolGroup(ToolClasses[LLMFunctionTool[ContextIn, ContextOut]], Generic[ContextIn, ContextOut]):
    """A group of tools with the same contexts, which dispatches calls by name."""

    def add_tool(self, tool: Fits[ToolT, ContextIn, ContextOut]) -> type[ToolT]:
        """Add a class and return it, so that it also works as a decorator."""
        # `Fits` checks the contexts and lets the class keep its type; `type[LLMFunctionTool[…]]` could only do one.
        added: Any = tool
        self[added.model_tool_name()] = added
        return added

    def run_tool_call(self, call: AnyToolCall, context: ContextIn) -> ToolCallResult[ContextOut]:
        """Run the tool that the call names."""
        call = standardize_tool_call(call)
        tool = self.get(call.name)
        return tool.model_tool_run_tool_call(call, context) if tool else build_not_found(call)

    def run_tool_calls(self, calls: Sequence[AnyToolCall], context: ContextIn) -> list[ToolCallResult[ContextOut]]:
        """Run the calls one after the other."""
        return [self.run_tool_call(call, context) for call in calls]
