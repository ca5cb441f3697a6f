"""The names of OpenTelemetry's GenAI semantic conventions, which are still in development."""

from typing import Final

OPERATION: Final = "execute_tool"
SPAN: Final = "execute_tool {tool}"
DURATION: Final = "gen_ai.execute_tool.duration"
DURATION_UNIT: Final = "s"

OPERATION_NAME: Final = "gen_ai.operation.name"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
CALL_ID: Final = "gen_ai.tool.call.id"
CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
CALL_RESULT: Final = "gen_ai.tool.call.result"
AGENT_ID: Final = "gen_ai.agent.id"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
ERROR_TYPE: Final = "error.type"

FUNCTION: Final = "function"
"""The type of a tool that runs in this process."""
EXTENSION: Final = "extension"
"""The type of a tool that calls another system."""

# Handrail's own names, where the conventions have none.
TENANT_ID: Final = "handrail.tenant.id"
STARTED: Final = "handrail.call.started"
"""Whether the handler was started."""
SLOW: Final = "handrail.call.slow"
DECISION: Final = "handrail.decision.action"
RULE: Final = "handrail.decision.rule"
SOURCE: Final = "handrail.decision.source"
CANCELLED: Final = "handrail.call.cancelled"
REASON: Final = "handrail.reason"
