"""Handrail under a LangChain agent or a LangGraph `ToolNode`: a middleware that runs every call through an executor."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any, Literal, cast

from handrail.adapters.host_calls import (
    ContextSource,
    ControlFlow,
    HostResult,
    NoSuchToolError,
    OneEntry,
    OneRun,
    ToolFailedError,
    add_provenance,
    record_decision,
    resolve_context,
    run_host_call,
)
from handrail.core.values import Failure, ToolCall, ToolResult
from handrail.errors import ConfigError, MissingExtraError
from handrail.execute.executor import Executor

try:
    from langchain.agents.middleware import AgentMiddleware
    from langchain.tools import ToolRuntime
    from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.config import get_config
    from langgraph.errors import GraphBubbleUp
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command, Interrupt, interrupt
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("langchain", extra="langchain") from error

__all__ = ["HandrailMiddleware", "record_decisions"]

Response = ToolMessage | Command[Any]
_WAKES = "handrail_wakes"
_CUT = {"length", "max_tokens", "model_length", "max_output_tokens"}
"""What providers call a response that ended because it was too long."""


_SUMMARY = "Here is a summary of the conversation"
"""How a summary of LangChain's own middleware begins; newer ones are also marked."""
_CONTROL = ControlFlow(pauses=(GraphBubbleUp,))


class HandrailMiddleware(AgentMiddleware[Any, Any, Any]):
    """Runs the tools of an agent under an executor.

    Use it as `create_agent(…, middleware=[…, HandrailMiddleware(executor, context=…)], checkpointer=…)`, as the last
    middleware, or pass its methods to a `ToolNode`. A retry between it and a consequential tool is refused.

    A call that somebody has to agree to interrupts the graph; the value of the interrupt has the token for
    `executor.approvals.approve(…)`. `Command(resume=…)` only wakes the graph: without an approval in the executor's own
    store it is interrupted again. A call whose outcome is not known interrupts the same way, with
    `"reason": "outcome_unknown"`, until `executor.resolve(…)`. In a `ToolNode` that runs several calls of one response
    in one task, a call that has to wait is a failed result instead, and the model calls again after the approval.
    """

    def __init__(self, executor: Executor, *, context: ContextSource[ToolRuntime[Any, Any]]) -> None:
        super().__init__()
        self._executor = executor
        self._context = context
        self._schemas: dict[str, tuple[object, Mapping[str, Any]]] = {}

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Response]]
    ) -> Response:
        """Run one call through the executor; the graph is interrupted as long as somebody has to decide."""
        for used in count():
            host = await self._run(request, handler, _count_resumes(), used)
            if not isinstance(host, HostResult):
                return host
            interrupt(host.describe_pause())
        raise AssertionError

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Response]) -> Response:
        """The same for a graph that is run without an event loop."""

        async def run_in_thread(changed: ToolCallRequest) -> Response:
            return await asyncio.to_thread(handler, changed)

        for used in count():
            host = self._executor.run_coroutine(self._run(request, run_in_thread, _count_resumes(), used))
            if not isinstance(host, HostResult):
                return host
            interrupt(host.describe_pause())
        raise AssertionError

    async def _run(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[Response]],
        resumes: int,
        used: int,
    ) -> Response | HostResult:
        """The response to one call, or the pause that it needs."""
        sent = request.tool_call
        messages = _get_messages(request.state)
        if _is_cut(messages, sent["id"]):
            text = f"The arguments of `{sent['name']}` were cut off. Nothing was done."
            cut = Failure(code="tool_args_parse_error", message=text, retryable=True)
            return _to_message(request, ToolResult(error=cut, tool_name=sent["name"]))

        is_shared = _shares_task(messages, sent["id"])
        is_read_only = self._executor.is_read_only(sent["name"])
        # Only the answers to our own interrupts: those of a task with several calls, and of a read, are the tools' own.
        own_answers = 0 if is_shared or is_read_only else resumes - used

        async def proceed(arguments: Mapping[str, Any], pauses: int) -> Response:
            for _ in range(own_answers - pauses):
                interrupt(None)  # A resume value of ours: the tool's own interrupts must not get it.
            changed = request.override(tool_call={**sent, "args": dict(arguments)})
            if request.tool is not None and not is_read_only:
                changed = changed.override(
                    tool=cast(Any, OneRun(request.tool, OneEntry(sent["name"]), "invoke", "ainvoke"))
                )
            response = await handler(changed)
            if request.tool is None and _is_no_tool(response, sent["name"]):
                raise NoSuchToolError(response)
            if isinstance(response, ToolMessage) and response.status == "error":
                raise ToolFailedError(response)  # LangChain has made a message of the tool's exception.
            return response

        wakes = max(resumes, used) + _count_wakes(messages)
        context = resolve_context(self._context, cast(Any, request).runtime, turn=_count_turns(messages), wakes=wakes)
        context = add_provenance(
            context,
            self._executor,
            spoken=lambda: [text for message in messages if (text := _get_spoken_text(message)) is not None],
            results=lambda: _list_results(messages),
        )
        host = await run_host_call(
            self._executor,
            ToolCall(id=sent["id"] or "", name=sent["name"], arguments_json=json.dumps(sent["args"])),
            context,
            proceed,
            # A tool that another middleware adds at run time is not known here: it is guarded by its name.
            schema=None if request.tool is None else self._get_schema(request.tool),
            control=_CONTROL,
            record=_get_content,
        )
        if host.is_pause and not is_shared:
            return host
        is_response = isinstance(cast(object, host.value), ToolMessage | Command)
        response: Response = host.value if is_response else _to_message(request, host.result)
        if wakes and isinstance(response, ToolMessage):
            response.additional_kwargs[_WAKES] = wakes
        return response

    def _get_schema(self, tool: Any) -> Mapping[str, Any]:
        """The arguments as the model sees them; worked out once for each tool."""
        known = self._schemas.get(tool.name)
        if known is None or known[0] is not tool:
            known = self._schemas[tool.name] = tool, convert_to_openai_tool(tool)["function"].get("parameters", {})
        return known[1]


async def record_decisions(
    executor: Executor,
    interrupts: Sequence[Interrupt],
    decisions: Sequence[Mapping[str, Any]],
    *,
    session_id: str,
    tenant_id: str | None = None,
    by: Literal["customer", "operator"],
    who: str,
) -> Command[Any]:
    """Record a person's decisions about interrupts, one for each, and return the `Command` that resumes the graph.

    A decision has the form of LangChain's own human in the loop: `{"type": "approve"}`, `{"type": "edit",
    "edited_action": {"name": …, "args": {…}}}` or `{"type": "reject", "message": …}`. `session_id` and `tenant_id` are
    those of the `ToolContext`. The decision about an interrupt that is not Handrail's is its answer, unchanged.
    """
    answers: dict[str, Any] = {}
    for interrupt_, decision in zip(interrupts, decisions, strict=True):
        value: Any = interrupt_.value
        pause = cast(dict[str, Any], value) if isinstance(value, dict) else {}
        if not pause.keys() >= {"reason", "tool", "call_id"}:
            answers[interrupt_.id] = decision
            continue
        kind, edited = decision.get("type"), cast(dict[str, Any], decision.get("edited_action") or {})
        if kind not in ("approve", "edit", "reject"):
            raise ConfigError(f"the type of a decision must be 'approve', 'edit' or 'reject', got {kind!r}.")
        if kind == "edit" and (edited.get("name") != pause["tool"] or not isinstance(edited.get("args"), dict)):
            raise ConfigError(f"edited_action must have the name {pause['tool']!r} and the new args, got {edited!r}.")
        await record_decision(
            executor,
            str(pause["call_id"]),
            session_id=session_id,
            tenant_id=... if tenant_id is None else tenant_id,
            by=by,
            who=who,
            is_approved=kind != "reject",
            reason=str(decision.get("message") or ""),
            arguments=edited["args"] if kind == "edit" else None,
        )
        answers[interrupt_.id] = True
    return Command(resume=answers)


def _shares_task(messages: Sequence[AnyMessage], call_id: str | None) -> bool:
    """Whether several calls run in one task of the graph, as in a `ToolNode`; an agent gives each call its own.

    LangGraph gives the answers to interrupts to a task in the order of its interrupts. If we interrupted there, too,
    the answer that wakes us could be taken for the answer to a question of another tool.
    """
    triggers: Any = get_config().get("metadata", {}).get("langgraph_triggers", ())
    if any("__pregel_push" in str(trigger) for trigger in triggers):
        return False
    message = _find_response(messages, call_id)
    return message is not None and len(message.tool_calls) > 1


def _find_response(messages: Sequence[AnyMessage], call_id: str | None) -> AIMessage | None:
    """The response of the model that has this call."""
    responses = (message for message in reversed(messages) if isinstance(message, AIMessage))
    return next((said for said in responses if any(call["id"] == call_id for call in said.tool_calls)), None)


def _is_no_tool(response: Response, name: str) -> bool:
    """Whether LangChain says that there is no such tool: nobody inside has added one."""
    return (
        isinstance(response, ToolMessage)
        and response.status == "error"
        and str(response.content).startswith(f"Error: {name} is not a valid tool")
    )


def _count_resumes() -> int:
    """How many answers to interrupts this task of the graph has, ours and the tool's own."""
    scratchpad: Any = get_config().get("configurable", {}).get("__pregel_scratchpad")
    if scratchpad is None:
        return 0
    return len(scratchpad.resume) + (scratchpad.get_null_resume(False) is not None)


def _get_messages(state: Any) -> list[AnyMessage]:
    if isinstance(state, Mapping):
        state = cast(Any, state).get("messages")
    elif not isinstance(state, list):
        state = getattr(state, "messages", None)
    return cast(list[AnyMessage], state or [])


def _is_cut(messages: Sequence[AnyMessage], call_id: str | None) -> bool:
    """Whether the response with this call was cut off: LangChain repairs its arguments, which may then be others."""
    message = _find_response(messages, call_id)
    said = cast(dict[str, Any], {} if message is None else cast(Any, message).response_metadata)
    reasons: list[Any] = [said.get(name) for name in ("finish_reason", "stop_reason", "done_reason")]
    details: Any = said.get("incomplete_details") or {}
    reasons.append(details.get("reason"))
    return any(str(reason).lower() in _CUT for reason in reasons)


def _count_turns(messages: Sequence[AnyMessage]) -> int:
    return sum(isinstance(message, HumanMessage) for message in messages)


def _get_spoken_text(message: AnyMessage) -> str | None:
    """What the person wrote; None for other messages, and for a summary that a model wrote in their place."""
    if not isinstance(message, HumanMessage):
        return None
    text = str(message.text)
    is_summary = "lc_source" in message.additional_kwargs or text.startswith(_SUMMARY)
    return None if is_summary else text


def _list_results(messages: Sequence[AnyMessage]) -> list[tuple[str, str]]:
    results = (message for message in messages if isinstance(message, ToolMessage) and message.status != "error")
    return [(message.tool_call_id, message.name or "") for message in results]


def _count_wakes(messages: Sequence[AnyMessage]) -> int:
    """How often the graph was woken for earlier calls since the person last spoke."""
    wakes = 0
    for message in messages:
        if isinstance(message, HumanMessage):
            wakes = 0
        elif isinstance(message, ToolMessage):
            wakes = max(wakes, message.additional_kwargs.get(_WAKES, 0))
    return wakes


def _get_content(response: Any) -> Any:
    """What is recorded of a response: what the model reads."""
    if isinstance(response, Command):
        messages = _get_messages(cast(Any, response).update)
        return "\n".join(message.text for message in messages if isinstance(message, ToolMessage)) or "Done."
    return response.content


def _to_message(request: ToolCallRequest, result: ToolResult) -> ToolMessage:
    call = request.tool_call
    status = "success" if result.ok else "error"
    return ToolMessage(result.for_model(), tool_call_id=call["id"] or "", name=call["name"], status=status)
