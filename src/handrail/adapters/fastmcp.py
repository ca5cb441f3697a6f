"""Handrail in a FastMCP server: a middleware that runs every tool call through an executor."""

import json
import secrets
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, cast

from handrail.adapters.host_calls import (
    ContextSource,
    ControlFlow,
    HostResult,
    OneEntry,
    OneRun,
    ToolFailedError,
    ToolWaitsError,
    record_decision,
    resolve_context,
    run_host_call,
    to_json_value,
)
from handrail.core.log import log
from handrail.core.text import escape_invisible
from handrail.core.values import ToolCall
from handrail.define.options import ToolFlags
from handrail.errors import ApprovalError, ConfigError, MissingExtraError
from handrail.execute.executor import Executor

try:
    import mcp_types
    from fastmcp.exceptions import DisabledError, NotFoundError, ToolError, ValidationError
    from fastmcp.server.context import Context
    from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
    from fastmcp.server.middleware.error_handling import RetryMiddleware
    from fastmcp.server.providers.addressing import parse_hashed_backend_name
    from fastmcp.server.transforms import GetToolNext, Transform
    from fastmcp.tools.base import InputRequiredToolResult, Tool, ToolResult
    from fastmcp.utilities.versions import VersionSpec
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("fastmcp", extra="fastmcp") from error

__all__ = ["HandrailMiddleware"]

McpCallParams = mcp_types.CallToolRequestParams
_STATE = "handrail"
_QUESTION = "handrail"
_MADE_BY_FASTMCP = ("Error calling tool", "Upstream request timed out", "Rate limited by upstream")
"""How the texts begin that FastMCP makes of any other exception: they say nothing about the effect."""


_UNDECIDABLE = ("outcome_unknown", "in_progress")
_WRONG_ORDER = (
    "RetryMiddleware stands between Handrail and the tools, where it would run one call several times. "
    "Add HandrailMiddleware last, so that it is innermost."
)
_CONTROL = ControlFlow(failures=(ToolError, ValidationError, NotFoundError, DisabledError))
_ENTRY: ContextVar[OneEntry | None] = ContextVar("handrail_entry", default=None)
"""What the call that is running may enter once."""


class HandrailMiddleware(Middleware):
    """Runs the tools of a server under an executor: `server.add_middleware(HandrailMiddleware(executor, context=…))`.

    Add it last: a middleware that retries between it and the tools is a `ConfigError`.

    A call that somebody has to agree to, or whose outcome is not known, is answered with `InputRequiredResult`. What
    the client answers only wakes the call: it asks again without an approval in the executor's own store. A client that
    does not know this kind of answer gets a failed result, and calls again. With `trust_annotations`, the annotations
    of a tool (`readOnlyHint`, `idempotentHint`) say what it is, where nothing is declared. With `customer_answers`, the
    person who uses the client is the customer: what they answer to the question is the customer's yes or no.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        context: ContextSource[Context],
        trust_annotations: bool = False,
        customer_answers: bool = False,
    ) -> None:
        self._executor = executor
        self._context = context
        self._trust_annotations = trust_annotations
        self._customer_answers = customer_answers

    async def on_call_tool(
        self, context: MiddlewareContext[McpCallParams], call_next: CallNext[McpCallParams, ToolResult]
    ) -> ToolResult:
        """Run one call through the executor."""
        server, message = context.fastmcp_context, context.message
        if server is None:
            raise ToolError("This call has no server context, so that it cannot be authorised.")
        tool = await server.fastmcp.get_tool(message.name)
        inner = self._find_inner(server)
        if tool is None and not inner and parse_hashed_backend_name(message.name) is None:
            return await call_next(context)  # FastMCP says that there is no such tool.
        call_id, wakes = _read_state(message.request_state)

        async def proceed(arguments: Mapping[str, Any], pauses: int) -> ToolResult:
            changed = message.model_copy(update={"arguments": dict(arguments)})
            entry = None if self._executor.is_read_only(message.name) else OneEntry(message.name)
            reset = _ENTRY.set(entry)
            try:
                result = await call_next(context.copy(message=changed))
            except ToolError as error:
                if error.__cause__ is not None and str(error).startswith(_MADE_BY_FASTMCP):
                    raise ToolFailedError(error) from error
                raise
            finally:
                _ENTRY.reset(reset)
            if isinstance(result, InputRequiredToolResult):
                raise ToolWaitsError(result)
            if result.is_error:
                raise ToolFailedError(result)
            return result

        call = ToolCall(id=call_id, name=message.name, arguments_json=json.dumps(message.arguments or {}))
        schema: dict[str, Any] = {"type": "object"} if tool is None else tool.parameters
        flags: ToolFlags | None = None
        if self._trust_annotations and tool is not None and tool.annotations is not None:
            flags = ToolFlags.from_annotations(tool.annotations.model_dump(by_alias=True))
        if self._customer_answers and wakes:
            await self._record_answer(call_id, message, server)
        if not wakes:
            # A question is asked before anything was woken, and everything runs after that: MCP has no turns, and a
            # client that calls again with a new id is given what was approved, too.
            asking = resolve_context(self._context, server)
            await self._executor.request_approval(call, asking, schema=schema, flags=flags)
        host = await run_host_call(
            self._executor,
            call,
            resolve_context(self._context, server, wakes=max(1, wakes)),
            proceed,
            schema=schema,
            flags=flags,
            control=_CONTROL,
            record=_get_output,
        )
        if isinstance(host.value, ToolError):
            raise host.value
        if isinstance(host.value, ToolResult):
            return host.value
        # A doubt is asked about once: an answer of the client changes nothing about it.
        is_asked_again = host.result.approval is None and _get_reason(message.request_state) in _UNDECIDABLE
        if host.is_pause and _can_pause(server, message) and not is_asked_again:
            return self._ask(host, server, call_id, wakes + 1)
        return _to_result(host, None if tool is None else tool.output_schema)

    async def _record_answer(self, call_id: str, message: McpCallParams, server: Context) -> None:
        """Record what the customer answered about this call; anything but a yes or a no decides nothing."""
        action = getattr((message.input_responses or {}).get(_QUESTION), "action", None)
        context = resolve_context(self._context, server)
        if action not in ("accept", "decline") or context.customer_id is None:
            return
        try:
            await record_decision(
                self._executor,
                call_id,
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                by="customer",
                who=context.customer_id,
                is_approved=action == "accept",
            )
        except ApprovalError as error:  # It is for an operator to decide, or has expired.
            log.warning("the answer of the customer about %s was not recorded: %s", message.name, error)

    def _ask(self, host: HostResult, server: Context, call_id: str, wakes: int) -> ToolResult:
        """The pause: the client keeps the state and sends it back; one that can ask its user is given the question."""
        pause = to_json_value(host.describe_pause())
        state = json.dumps({_STATE: {"call_id": call_id, "wakes": wakes}, **pause})
        text = f"{pause['message']} Continue once it is decided."
        if self._customer_answers and pause.get("by") == "customer":
            why = f" ({pause['question']})" if pause.get("question") else ""
            arguments = escape_invisible(json.dumps(pause["arguments"], ensure_ascii=False))
            text = f"`{pause['tool']}` with {arguments}: do you agree?{why}"
        question = mcp_types.ElicitRequest(
            params=mcp_types.ElicitRequestFormParams(
                message=text, requested_schema={"type": "object", "properties": {}}
            )
        )
        wanted = mcp_types.ClientCapabilities(elicitation=mcp_types.ElicitationCapability())
        requests: Any = {_QUESTION: question} if server.session.check_client_capability(wanted) else None
        return InputRequiredToolResult(mcp_types.InputRequiredResult(input_requests=requests, request_state=state))

    def _find_inner(self, server: Context) -> bool:
        """Whether a middleware inside this one may send the call to another tool; one that retries is refused."""
        every = server.fastmcp.middleware
        inside = every[every.index(self) + 1 :] if self in every else []
        if _has_retry(inside) or any(_has_retry(mounted.middleware) for mounted in _find_mounted(server.fastmcp)):
            log.error(_WRONG_ORDER)  # FastMCP tells the client nothing but "internal error".
            raise ConfigError(_WRONG_ORDER)
        has_inner = any(
            getattr(type(middleware), hook) is not getattr(Middleware, hook)
            for middleware in inside
            for hook in ("on_call_tool", "on_request", "on_message", "__call__")
        )
        if has_inner and not any(isinstance(known, _OneEntryTransform) for known in server.fastmcp.transforms):
            server.fastmcp.add_transform(_OneEntryTransform())
        return has_inner


class _OneEntryTransform(Transform):
    """Lets one call enter its tool once, whatever the middlewares between Handrail and the tool do."""

    async def get_tool(self, name: str, call_next: GetToolNext, *, version: VersionSpec | None = None) -> Tool | None:
        """The tool; within a call that Handrail has let through, one that can run once."""
        tool = await call_next(name, version=version)
        entry = _ENTRY.get()
        return tool if tool is None or entry is None else cast(Tool, OneRun(tool, entry, "_run", "run"))


def _has_retry(middlewares: Iterable[Middleware]) -> bool:
    return any(isinstance(middleware, RetryMiddleware) for middleware in middlewares)


def _find_mounted(server: Any) -> list[Any]:
    """The servers that are mounted on a server, at any depth."""
    found: list[Any] = []
    for provider in server.providers:
        while (inner := getattr(provider, "_inner", None)) is not None:
            provider = inner  # With a namespace, or another transform.
        mounted = getattr(provider, "server", None)
        if hasattr(mounted, "middleware") and hasattr(mounted, "providers"):
            found += [mounted, *_find_mounted(mounted)]
    return found


def _read_state(state: str | None) -> tuple[str, int]:
    """The id of the call and how often it was woken; a call that does not go on gets a new id."""
    try:
        known = json.loads(state or "")[_STATE]
        return str(known["call_id"]), int(known["wakes"])
    except (ValueError, TypeError, KeyError):
        return f"mcp_{secrets.token_hex(12)}", 0


def _get_reason(state: str | None) -> str:
    """Why the call paused the last time."""
    try:
        return str(json.loads(state or "")["reason"])
    except (ValueError, TypeError, KeyError):
        return ""


def _can_pause(server: Context, message: McpCallParams) -> bool:
    """Whether the client knows the answer "input required", and did not just decline to go on."""
    answer = (message.input_responses or {}).get(_QUESTION)
    request = server.request_context
    is_modern = request is not None and request.protocol_version in MODERN_PROTOCOL_VERSIONS
    return is_modern and getattr(answer, "action", "accept") == "accept"


def _get_output(result: ToolResult) -> Any:
    """What is recorded of a result: its structured content, or its text."""
    if result.structured_content is not None:
        return result.structured_content
    return "\n".join(getattr(block, "text", f"[{block.type}]") for block in result.content)


def _to_result(host: HostResult, schema: Mapping[str, Any] | None) -> ToolResult:
    """The result of a call that did not run now: a failure, or what was recorded."""
    text = host.result.for_model()
    if not host.result.ok:
        return ToolResult(content=text, is_error=True)
    output: object = host.result.output
    if isinstance(output, dict):
        structured = cast(dict[str, Any], output)
        is_closed = schema is not None and schema.get("additionalProperties") is False
        if host.result.notice and not is_closed:  # Some clients read nothing but the structured part.
            structured = {"notice": host.result.notice, **structured}
        return ToolResult(content=text, structured_content=structured)
    if schema is None:
        return ToolResult(content=text)
    # What a person found out is a text; where the schema promises something else, only an error may be one.
    if schema.get("properties", {}).get("result", {}).get("type") == "string":
        return ToolResult(content=text, structured_content={"result": text})
    return ToolResult(content=text, is_error=True)
