"""Handrail under a Google ADK agent: a plugin that runs every tool call through an executor."""

import json
from collections.abc import Mapping
from typing import Any, Literal, cast

from handrail.adapters import host_calls
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
    from google.genai import types
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("google-adk", extra="google-adk") from error

__all__ = ["HandrailPlugin", "record_decision"]

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
            resolve_context(
                self._context,
                tool_context,
                turn=_count_turns(tool_context),
                wakes=int(confirmation is not None),
            ),
            proceed,
            control=_CONTROL,
        )
        if host.is_pause:
            pause = host.describe_pause()
            tool_context.request_confirmation(hint=pause["message"], payload=to_json_value(pause))
            return {"error": host.result.for_model()}  # ADK asks once: after that this is what the model reads.
        if not host.result.ok and host.value is None:
            return {"error": host.result.for_model()}
        # None would let ADK run the tool again.
        value: Any = host.value
        return cast(dict[str, Any], value) if isinstance(value, dict) else {"result": value}


async def record_decision(
    executor: Executor,
    asked: types.FunctionCall,
    *,
    session_id: str,
    tenant_id: str | None = None,
    by: Literal["customer", "operator"],
    who: str,
    confirmed: bool,
    reason: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> types.Part:
    """Record a person's decision about a confirmation that ADK asks for, and return the part that answers it.

    `asked` is the function call of the event, `adk_request_confirmation`; `session_id` and `tenant_id` are those of
    the Handrail `ToolContext`. Send the part as the next message: `types.Content(role="user", parts=[part])`.
    `arguments` run instead of the model's.
    """
    original: Any = (asked.args or {}).get("originalFunctionCall") or {}
    await host_calls.record_decision(
        executor,
        str(original.get("id") or ""),
        session_id=session_id,
        tenant_id=... if tenant_id is None else tenant_id,
        by=by,
        who=who,
        is_approved=confirmed,
        reason=reason,
        arguments=arguments,
    )
    # A "no" wakes the call, too: the executor tells the model who said no, and why.
    answer = types.FunctionResponse(id=asked.id, name=asked.name, response={"confirmed": confirmed})
    return types.Part(function_response=answer)


def _count_turns(context: ToolContext) -> int:
    """How many messages of the person the session has; an answer to a confirmation is none."""
    contents = [event.content for event in context.session.events if event.author == "user" and event.content]
    return sum(any(part.text for part in content.parts or ()) for content in contents)


def _get_error(value: object) -> str:
    """The error in a response, which in ADK is a dict with this key."""
    return str(cast(dict[str, Any], value).get("error", "")) if isinstance(value, dict) else ""
