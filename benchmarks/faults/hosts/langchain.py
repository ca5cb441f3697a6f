"""LangChain 1.x on LangGraph: `create_agent` with human approval; checkpoints in SQLite are the stored state."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ToolRetryMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, Send

from benchmarks.faults.cells import TIMEOUT
from benchmarks.faults.hosts.guarding import Asked, Guard
from benchmarks.faults.world import World

THREAD: Any = {"configurable": {"thread_id": "s-1"}}


class ScriptedModel(BaseChatModel):
    """Its next response depends on the history alone, as after a restart."""

    world: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> "ScriptedModel":
        """The script knows the tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        message = AIMessageChunk("")
        async for chunk in self._astream(messages):
            message += chunk.message
        return ChatResult(generations=[ChatGeneration(message=AIMessage(**message.model_dump(exclude={"type"})))])

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        self.world.tell([str(item.content) for item in messages if isinstance(item, ToolMessage)])
        prompts = [n for n, one in enumerate(messages) if isinstance(one, HumanMessage)]
        step = sum(isinstance(item, AIMessage) for item in messages[prompts[-1] :])
        script = self.world.turns[len(prompts) - 1]
        response = script[min(step, len(script) - 1)]
        chunks = [
            tool_call_chunk(
                name="pay", args=one.get("text") or json.dumps(one["arguments"]), id=one["id"], index=number
            )
            for number, one in enumerate(response.get("calls", ()))
        ]
        finish = "length" if response.get("cut") else "tool_calls" if chunks else "stop"
        message = AIMessageChunk(
            response.get("text", ""), tool_call_chunks=chunks, response_metadata={"finish_reason": finish}
        )
        yield ChatGenerationChunk(message=message)


def _look() -> str:
    return "nothing"


LOOK = StructuredTool.from_function(func=_look, name="look", description="Look.")
"""An agent has to have a tool."""


class AddTool(AgentMiddleware[Any, Any, Any]):
    """Adds `pay` when it is called."""

    def __init__(self, tool: Any) -> None:
        super().__init__()
        self.added = tool

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        """Run the tool that the agent does not know."""
        return await handler(request.override(tool=self.added) if request.tool is None else request)


class Host:
    """An agent with `pay`, bare (`HumanInTheLoopMiddleware`) or under `HandrailMiddleware`."""

    def __init__(self, world: World, *, guarded: bool) -> None:
        self.world = world
        self._guard = Guard(world, timeout=TIMEOUT) if guarded else None
        self._stack = AsyncExitStack()
        self._agent: Any = None
        self._decisions = world.directory / "decisions.json"

    async def send(self, turn: int) -> None:
        """Play a turn."""
        await self._run({"messages": [HumanMessage(f"Pay R-7 ({turn}).")]})

    async def resume(self) -> None:
        """Go on from the checkpoint."""
        interrupts = await self._interrupts()
        if not interrupts:
            await self._run(None)
        elif self._guard is not None:
            await self._run(Command(resume={interrupt.id: True for interrupt in interrupts}))
        else:
            known = self._known_decisions()
            decisions = {
                interrupt.id: {"decisions": [known[_id] for _id in _question_ids(interrupt)]}
                for interrupt in interrupts
            }
            await self._run(Command(resume=decisions))

    async def is_waiting(self) -> bool:
        """Whether the graph has a next node."""
        return bool((await (await self._build()).aget_state(THREAD)).next)

    async def questions(self) -> list[Asked]:
        """What the graph waits for."""
        interrupts = await self._interrupts()
        if self._guard is not None:
            return await self._guard.questions() if interrupts else []
        return [
            Asked(id=question_id, arguments=request["args"], text=str(request.get("description", "")))
            for interrupt in interrupts
            for question_id, request in zip(_question_ids(interrupt), interrupt.value["action_requests"], strict=True)
        ]

    async def decide(self, question: Asked, *, yes: bool) -> None:
        """Record the decision."""
        if self._guard is not None:
            return await self._guard.decide(question, yes=yes)
        decisions = {**self._known_decisions(), question.id: {"type": "approve" if yes else "reject"}}
        self._decisions.write_text(json.dumps(decisions), "utf-8")

    async def resolve(self, question: Asked, *, happened: bool) -> None:
        """An operator found out."""
        assert self._guard is not None
        await self._guard.resolve(question, happened=happened)

    async def tamper(self, amount: int) -> None:
        """Change the pending call in the stored checkpoint."""
        agent = await self._build()
        stored = await agent.checkpointer.aget_tuple(THREAD)
        _change(stored.checkpoint["channel_values"], amount)
        await agent.checkpointer.aput(stored.parent_config or stored.config, stored.checkpoint, stored.metadata, {})

    async def aclose(self) -> None:
        """Close the store."""
        await self._stack.aclose()
        if self._guard is not None:
            await self._guard.aclose()

    def _known_decisions(self) -> dict[str, Any]:
        return json.loads(self._decisions.read_text("utf-8")) if self._decisions.exists() else {}

    async def _interrupts(self) -> Sequence[Any]:
        return (await (await self._build()).aget_state(THREAD)).interrupts

    async def _run(self, given: Any) -> None:
        agent = await self._build()
        async for _ in agent.astream(given, THREAD, stream_mode="messages", durability="sync"):
            pass

    async def _build(self) -> Any:
        if self._agent is None:
            saver = await self._stack.enter_async_context(
                AsyncSqliteSaver.from_conn_string(str(self.world.directory / "checkpoints.db"))
            )
            is_sync = self.world.plan.is_sync
            options: Any = {"func": self.world.pay} if is_sync else {"coroutine": self.world.pay_async}
            pay = StructuredTool.from_function(**options, name="pay", description="Pay an invoice.")
            middleware = [await self._middleware()]
            if self.world.plan.retries:
                middleware.append(ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False))
            if self.world.plan.adds_tool:
                middleware.append(AddTool(pay))
            tools = [] if self.world.plan.adds_tool else [pay]
            self._agent = create_agent(
                ScriptedModel(world=self.world), [*tools, LOOK], middleware=middleware, checkpointer=saver
            )
            if self._guard is None:
                self._agent.step_timeout = TIMEOUT
        return self._agent

    async def _middleware(self) -> Any:
        if self._guard is None:
            return HumanInTheLoopMiddleware(interrupt_on={"pay": {"allowed_decisions": ["approve", "reject"]}})
        from handrail.adapters.langchain import HandrailMiddleware

        guard = self._guard
        return HandrailMiddleware(
            await guard.executor(), context=lambda runtime: guard.context(_turns(runtime.state["messages"]))
        )


def _question_ids(interrupt: Any) -> list[str]:
    return [f"{interrupt.id}/{number}" for number in range(len(interrupt.value["action_requests"]))]


def _turns(messages: Sequence[BaseMessage]) -> int:
    return sum(isinstance(message, HumanMessage) for message in messages)


def _change(value: Any, amount: int) -> None:
    """Change the amount of every call inside a value."""
    if isinstance(value, dict):
        if value.get("name") == "pay" and isinstance(value.get("args"), dict):
            value["args"]["amount"] = amount
        for part in value.values():
            _change(part, amount)
    elif isinstance(value, list | tuple):
        for part in value:
            _change(part, amount)
    elif isinstance(value, AIMessage):
        _change(value.tool_calls, amount)
    elif isinstance(value, Send):
        _change(value.arg, amount)
