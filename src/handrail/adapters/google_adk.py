"""Handrail under a Google ADK agent: a plugin that runs every tool call through an executor."""

import json
from collections.abc import Mapping
from typing import Any, cast

from handrail.adapters.host_calls import (
    ContextSource,
    ControlFlow,
    ToolWaitsError,
    resolve_context,
    run_host_call,
    to_json_value,
)
from handrail.core.values import ToolCall
from handrail.errors import MissingExtraError, ToolError
from handrail.execute.executor import Executor

try:
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("google-adk", extra="google-adk") from error

__all__ = ["HandrailPlugin"]

_CONTROL = ControlFlow()
_ARGUMENTS_MISSING = "mandatory input parameters are not present"
"""What ADK answers by itself, without running the function."""


class HandrailPlugin(BasePlugin):
    """Runs the tools of every agent of a runner under an executor.

    Use it as the last plugin: `App(…, plugins=[…, HandrailPlugin(executor, context=…)])`. A call that somebody has
    to agree to, or whose outcome is not known, asks for a tool confirmation; its payload has the token for
    `executor.approvals.approve(…)`. The answer to the confirmation only wakes the call: without an approval in the
    executor's own store it does not run, and the model is told so.
    """

    def __init__(self, executor: Executor, *, context: ContextSource[ToolContext], name: str = "handrail") -> None:
        super().__init__(name=name)
        self._executor = executor
        self._context = context

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Run one call through the executor, instead of ADK; its answer is the response."""
        if type(tool) is BaseTool:
            return None  # ADK has no such tool, and says so to the model.
        confirmation = tool_context.tool_confirmation
        asks_itself = await tool.check_require_confirmation(tool_args, tool_context) is True
        if asks_itself and (confirmation is None or not confirmation.confirmed):
            return None  # The tool's own question comes first: ADK asks it, or says that it was denied. Nothing runs.

        async def proceed(arguments: Mapping[str, Any], pauses: int) -> Any:
            value: Any = await tool.run_async(args=dict(arguments), tool_context=tool_context)
            if tool_context.function_call_id in tool_context.actions.requested_tool_confirmations:
                raise ToolWaitsError(value)
            if _ARGUMENTS_MISSING in (text := _get_error(value)):
                raise ToolError(text, code="invalid_arguments", retryable=True)
            return value

        sent = json.dumps(to_json_value(tool_args))
        host = await run_host_call(
            self._executor,
            ToolCall(id=tool_context.function_call_id or "", name=tool.name, arguments_json=sent),
            resolve_context(self._context, tool_context, wakes=int(confirmation is not None)),
            proceed,
            control=_CONTROL,
        )
        if host.is_pause:
            pause = host.describe_pause()
            tool_context.request_confirmation(hint=pause["message"], payload=to_json_value(pause))
            return {"error": pause["message"]}
        if not host.result.ok and host.value is None:
            return {"error": host.result.for_model()}
        # None would let ADK run the tool again.
        value: Any = host.value
        return cast(dict[str, Any], value) if isinstance(value, dict) else {"result": value}


def _get_error(value: object) -> str:
    """The error in a response, which in ADK is a dict with this key."""
    return str(cast(dict[str, Any], value).get("error", "")) if isinstance(value, dict) else ""
