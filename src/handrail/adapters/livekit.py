"""Handrail under a LiveKit agent: its function tools, run through an executor."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

from handrail.adapters.host_calls import (
    ContextSource,
    ControlFlow,
    HostResult,
    record_decision,
    resolve_context,
    run_host_call,
)
from handrail.chat.conversation import PendingCall
from handrail.core.consent import Answer, read_answer
from handrail.core.locale_texts import load_locale
from handrail.core.log import log
from handrail.core.value_mentions import split_words
from handrail.core.values import Approval, ToolCall
from handrail.errors import ConfigError, MissingExtraError
from handrail.execute.executor import Executor
from handrail.formats.definitions import Diagnostic
from handrail.guide.confirmation import format_read_back
from handrail.guide.parameters import GuidedTool, compile_tool

try:
    from livekit.agents import Agent, AgentTask, RunContext
    from livekit.agents.llm import (
        FunctionTool,
        RawFunctionTool,
        RealtimeModel,
        StopResponse,
        ToolError,
        function_tool,
        utils,
    )
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("livekit-agents", extra="livekit") from error

__all__ = ["guard_agent", "guard_tools"]

_CONTROL = ControlFlow(failures=(ToolError,))
_utils: Any = utils  # It is not typed.
_TASK_INFO = "__livekit_agents_activity_task"
"""Where LiveKit keeps what a task is for."""
_SILENT = object()
"""The tool did what it should, and the agent says nothing about it."""
_MAX_READ_BACKS = 3
"""How often the customer is asked before the model is told that they did not answer."""
_ANSWER_TIMEOUT = 120.0
"""Seconds until a question that nobody answers is over."""


def guard_tools(
    tools: Iterable[Any],
    executor: Executor,
    *,
    context: ContextSource[RunContext[Any]],
    customer_answers: bool = False,
    locale: str = "en",
) -> list[Any]:
    """Run function tools under an executor: `Agent(tools=guard_tools([…], executor, context=…))`.

    A call that somebody has to agree to, or whose outcome is not known, is a failed result that says so; after
    `executor.approvals.approve(…)` the model calls again, and the call runs. A customer's approval counts from a later
    turn on. With `customer_answers`, the tool pauses instead where a rule asks the customer: it reads the call back in
    the language `locale`, hears the answer, and runs after a yes.
    """
    guard = _Guard(executor, context, locale if customer_answers else None)
    return [guard.guard_tool(tool) for tool in tools]


async def guard_agent(
    agent: Agent,
    executor: Executor,
    *,
    context: ContextSource[RunContext[Any]],
    customer_answers: bool = False,
    locale: str = "en",
) -> tuple[Diagnostic, ...]:
    """Run every function tool of an agent under an executor: those of `tools=` and its `@function_tool` methods.

    Use it as `await guard_agent(agent, executor, context=…)` before the session starts. What cannot be guarded, such as
    a toolset or a tool that the provider runs, stays as it is, and is returned and logged. A call whose arguments are
    not valid JSON is refused: LiveKit repairs them before a tool sees them, and they may have been cut off.
    `customer_answers` and `locale` are those of `guard_tools`.
    """
    guarded: list[Any] = []
    guard = _Guard(executor, context, locale if customer_answers else None)
    agent.llm_node = _find_cut_calls(agent.llm_node, guard.cut)
    outside: list[Diagnostic] = []
    for tool in agent.tools:
        if isinstance(tool, FunctionTool | RawFunctionTool):
            guarded.append(guard.guard_tool(tool))
        else:
            text = f"{type(tool).__name__} is not a function tool: it runs without Handrail"
            outside.append(Diagnostic(tool=str(tool.id), text=text))
            log.warning("%s: %s", tool.id, text)
            guarded.append(tool)
    await agent.update_tools(guarded)
    return tuple(outside)


def _find_cut_calls(llm_node: Callable[..., Any], cut: set[str]) -> Callable[..., Any]:
    """The node that asks the model, which also notes the ids of the calls whose arguments are not valid JSON."""

    async def note_cut_calls(*args: Any) -> AsyncGenerator[Any]:
        response = llm_node(*args)
        if isinstance(response, Awaitable):
            response = await cast(Awaitable[Any], response)
        if isinstance(response, str):
            yield response
        if not isinstance(response, AsyncIterable):
            return
        try:
            async for chunk in cast(AsyncIterable[Any], response):
                for call in getattr(getattr(chunk, "delta", None), "tool_calls", None) or ():
                    if not _is_json(call.arguments or "{}"):
                        cut.add(call.call_id)
                yield chunk
        finally:
            if (close := getattr(cast(Any, response), "aclose", None)) is not None:
                await close()

    return note_cut_calls


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class _Guard:
    """What the guarded tools of one agent share."""

    def __init__(self, executor: Executor, source: ContextSource[RunContext[Any]], locale: str | None) -> None:
        self._executor = executor
        self._source = source
        self._locale = locale
        """The language in which the customer is asked; None: the tools do not ask."""
        self._asking = asyncio.Lock()
        self.cut: set[str] = set()
        """The ids of calls whose arguments were not valid JSON."""

    def guard_tool(self, tool: Any) -> Any:
        """The tool that LiveKit gets in place of another."""
        if isinstance(tool, RawFunctionTool):
            described: dict[str, Any] = {**tool.info.raw_schema}
        elif isinstance(tool, FunctionTool):
            described = _utils.build_legacy_openai_schema(tool)["function"]
        else:
            raise ConfigError(f"{type(tool).__name__} is not a function tool and cannot be guarded.")

        async def run(raw_arguments: dict[str, object], context: RunContext[Any]) -> Any:
            sent = json.dumps(raw_arguments)
            if context.function_call.call_id in self.cut:
                self.cut.discard(context.function_call.call_id)
                sent = sent[:-1]  # Not what LiveKit made of it: the executor refuses it as it was, cut off.
            host = await self._run(tool, described, sent, context)
            approval = host.result.approval
            if host.is_pause and approval is not None and self._can_ask(approval, context):
                await self._ask(approval, sent, context)
                host = await self._run(tool, described, sent, context)
            if not host.result.ok:
                raise ToolError(host.result.for_model())
            if host.value is _SILENT:
                raise StopResponse
            return host.value

        # Handrail recognises a repeated call itself, whatever the tool says about duplicates.
        return function_tool(run, raw_schema=described, flags=tool.info.flags)

    async def _run(self, tool: Any, described: Mapping[str, Any], sent: str, context: RunContext[Any]) -> HostResult:
        task_info = getattr(asyncio.current_task(), _TASK_INFO, None)

        async def proceed(arguments: Mapping[str, Any], pauses: int) -> Any:
            if task_info is not None:  # A tool that awaits an AgentTask must run in a task that LiveKit knows.
                setattr(asyncio.current_task(), _TASK_INFO, task_info)
            positional, named = _utils.prepare_function_arguments(
                fnc=tool, json_arguments=dict(arguments), call_ctx=context
            )
            try:
                return await tool(*positional, **named)
            except StopResponse:
                return _SILENT

        return await run_host_call(
            self._executor,
            ToolCall(id=context.function_call.call_id, name=described["name"], arguments_json=sent),
            resolve_context(self._source, context, turn=_count_turns(context)),
            proceed,
            schema=described["parameters"],
            control=_CONTROL,
            record=_get_output,
        )

    def _can_ask(self, approval: Approval, context: RunContext[Any]) -> bool:
        """A realtime model speaks by itself: nobody could say that it read the call back, and what was answered."""
        if self._locale is None or approval.by != "customer":
            return False
        session: Any = context.session
        if isinstance(session.current_agent.llm or session.llm, RealtimeModel):
            log.warning("customer_answers needs a pipeline with an LLM: a realtime model reads nothing back")
            return False
        return True

    async def _ask(self, approval: Approval, sent: str, context: RunContext[Any]) -> None:
        call = ToolCall(id=context.function_call.call_id, name=approval.tool, arguments_json=sent)
        pending = PendingCall(call=call, approval=approval)
        registry = self._executor.registry
        tool = compile_tool(registry.get(approval.tool)) if approval.tool in registry else None
        async with self._asking:  # Calls of one response run at once, and a customer answers one question.
            question = _CustomerQuestion(pending, tool, locale=self._locale or "en")
            over = asyncio.get_running_loop().call_later(_ANSWER_TIMEOUT, question.end)
            try:
                answer = await question
            finally:
                over.cancel()
        # The tool may await an AgentTask of its own, in the executor's task. LiveKit has put this task on the list of
        # what `session.run()` waits for, and would wait for both; the speech of the tool stays on the list.
        if (running := getattr(context.session, "_global_run_state", None)) is not None:
            running._unwatch_handle(asyncio.current_task())
        if answer != "unclear":
            await record_decision(
                self._executor,
                context.function_call.call_id,
                session_id=approval.session_id,
                tenant_id=approval.tenant_id,
                by="customer",
                who=approval.customer_id or approval.session_id,
                is_approved=answer == "yes",
            )


class _CustomerQuestion(AgentTask[Answer]):
    """Reads a call back to the customer, and completes with their answer: `yes`, `no` or `unclear`.

    The texts are ours, not a model's. An answer counts only if the whole read-back was said before it.
    """

    def __init__(self, pending: PendingCall, tool: GuidedTool | None, *, locale: str) -> None:
        cast(Any, super()).__init__(instructions="Read the call back, and hear the answer.")
        approval = pending.approval
        self._locale = locale
        self._action = approval.tool.replace("_", " ")
        self._repeats = approval.repeat > 0
        texts = load_locale(locale)
        self._asked = texts["confirm.one"].format(calls=format_read_back(pending, tool, locale))
        """What a yes agrees to; that it was done before is said first, and is no part of it."""
        notice = texts["confirm.repeat"].format(calls=self._action)
        self._text = f"{notice} {self._asked}" if self._repeats else self._asked
        self._times = 0

    async def on_enter(self) -> None:
        """Ask."""
        cast(Any, self).session.generate_reply()

    async def llm_node(self, chat_ctx: Any, tools: Any, model_settings: Any) -> AsyncGenerator[str]:
        """In place of a model: the read-back, until it was heard and answered."""
        answer = self._read_answer(chat_ctx.items)
        if answer != "unclear" or self._times >= _MAX_READ_BACKS:
            self.end(answer)
            return
        self._times += 1
        yield self._text

    def end(self, answer: Answer = "unclear") -> None:
        """Complete, unless there is an answer already."""
        if not self.done():
            self.complete(answer)

    def _read_answer(self, items: Iterable[Any]) -> Answer:
        words: list[str] | None = None
        for item in items:
            if item.type != "message":
                continue
            text = item.text_content or ""
            if item.role == "assistant":
                is_whole = not item.interrupted and split_words(text) == split_words(self._text)
                words = [] if is_whole else None
            elif item.role == "user" and words is not None:
                words.append(text)
        if not words:
            return "unclear"
        # "Yes, it was already done" is no yes: only the call itself may be repeated.
        return read_answer(
            " ".join(words), locales=(self._locale,), shown=self._asked, action=self._action, repeats=self._repeats
        )


def _count_turns(context: RunContext[Any]) -> int:
    """How many messages of the person the session has."""
    return sum(getattr(item, "role", None) == "user" for item in context.session.history.items)


def _get_output(value: Any) -> Any:
    """What is recorded of a value: a hand-over to another agent cannot be."""
    is_plain = isinstance(cast(object, value), str | int | float | dict | list | None)
    return value if is_plain else "Done."
