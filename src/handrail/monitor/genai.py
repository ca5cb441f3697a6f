"""The names of OpenTelemetry's GenAI conventions, which are still in development, all in this one place."""

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
"""The type of a tool that runs here."""
EXTENSION: Final = "extension"
"""The type of a tool that calls an interface elsewhere."""

# Handrail's own, for which the conventions have no name.
TENANT_ID: Final = "handrail.tenant.id"
STARTED: Final = "handrail.call.started"
"""Whether the handler began."""
SLOW: Final = "handrail.call.slow"
DECISION: Final = "handrail.decision.action"
RULE: Final = "handrail.decision.rule"
SOURCE: Final = "handrail.decision.source"
CANCELLED: Final = "handrail.call.cancelled"
REASON: Final = "handrail.reason"
