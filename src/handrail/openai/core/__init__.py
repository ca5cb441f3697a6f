"""The sync API: handlers are plain methods."""

from handrail.define.openai_definition import tool_def_for_chat_completions_api, tool_def_for_responses_api
from handrail.define.toolcall_values import (
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
from handrail.openai.core.tool import LLMFunctionTool, LLMFunctionToolGroup

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
