"""Handrail's own loop: a `ChatSession` with its ledger, approvals and conversation in SQLite or PostgreSQL."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from msgspec import structs

from benchmarks.faults.cells import TIMEOUT
from benchmarks.faults.hosts.guarding import CUSTOMER, LEASE, SESSION, Asked
from benchmarks.faults.world import World
from handrail import ChatSession, Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.execute import Timeouts
from handrail.providers import AssistantMessage, ModelRequest, ModelResponse, StreamEvent, ToolMessage, UserMessage
from handrail.store import open_store


class ScriptedModel:
    """Its next response depends on the history alone, as after a restart."""

    name = "scripted"

    def __init__(self, world: World) -> None:
        self._world = world

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """The response that the script has for this point of the conversation."""
        messages = request.messages
        self._world.tell(
            [
                result.for_model()
                for message in messages
                if isinstance(message, ToolMessage)
                for result in message.results
            ]
        )
        prompts = [n for n, one in enumerate(messages) if isinstance(one, UserMessage)]
        step = sum(isinstance(item, AssistantMessage) for item in messages[prompts[-1] :])
        script = self._world.turns[len(prompts) - 1]
        response = script[min(step, len(script) - 1)]
        if "text" in response:
            return ModelResponse(text=response["text"])
        calls = tuple(
            ToolCall(id=call["id"], name="pay", arguments_json=call.get("text") or json.dumps(call["arguments"]))
            for call in response["calls"]
        )
        return ModelResponse(calls=calls, finish_reason="length" if response.get("cut") else "tool_calls")

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The same, as a stream."""
        yield await self.ask(request)


class Host:
    """A conversation with `pay`; there is no bare form of it."""

    def __init__(self, world: World, *, guarded: bool = True) -> None:
        self.world = world
        self._stack = AsyncExitStack()
        self._session: ChatSession | None = None
        self._executor: Executor
        self._store: Any

    async def send(self, turn: int) -> None:
        """Play a turn."""
        await (await self._chat()).send(f"Pay R-7 ({turn}).")

    async def resume(self) -> None:
        """Go on from the stored conversation."""
        await (await self._chat()).resume()

    async def is_waiting(self) -> bool:
        """Whether the last calls have no results."""
        last = (await self._chat()).conversation.messages[-1]
        return isinstance(last, AssistantMessage) and bool(last.calls)

    async def questions(self) -> list[Asked]:
        """The questions of the conversation, and what is in doubt."""
        pending = await (await self._chat()).approvals()
        doubts = await self._executor.doubts(session_id=SESSION)
        return [
            *(
                Asked(
                    id=approval.token,
                    arguments=dict(approval.arguments),
                    text=f"{approval.tool} {approval.question or ''}",
                )
                for approval in pending
            ),
            *(
                Asked(id=doubt.call_id, arguments={}, text=f"{doubt.tool} is in doubt", is_doubt=True)
                for doubt in doubts
            ),
        ]

    async def decide(self, question: Asked, *, yes: bool) -> None:
        """The person's decision."""
        session = await self._chat()
        if yes:
            await session.approve(question.id)
        else:
            await session.deny(question.id, reason="I did not want that")

    async def resolve(self, question: Asked, *, happened: bool) -> None:
        """An operator found out."""
        await self._executor.resolve(session_id=SESSION, call_id=question.id, happened=happened, who="ann")

    async def tamper(self, amount: int) -> None:
        """Change the pending call in the stored conversation."""
        session = await self._chat()
        conversation = session.conversation
        last = conversation.messages[-1]
        assert isinstance(last, AssistantMessage)
        calls = tuple(
            structs.replace(call, arguments_json=json.dumps({"invoice_id": "R-7", "amount": amount}))
            for call in last.calls
        )
        changed = structs.replace(
            conversation,
            messages=(*conversation.messages[:-1], structs.replace(last, calls=calls)),
            revision=conversation.revision + 1,
        )
        await self._store.sessions.save(changed)

    async def aclose(self) -> None:
        """Close the store."""
        await self._stack.aclose()

    async def _chat(self) -> ChatSession:
        if self._session is None:
            url = os.environ.get("HANDRAIL_FAULTS_URL") or f"sqlite+aiosqlite:///{self.world.directory / 'handrail.db'}"
            self._store = await self._stack.enter_async_context(open_store(url))
            plain = self.world.pay if self.world.plan.is_sync else self.world.pay_async
            pay = tool(plain, name="pay", description="Pay an invoice.", key="invoice_id", timeout=TIMEOUT)
            self._executor = await self._stack.enter_async_context(
                Executor(
                    [pay],
                    policy=Policy([Rule.ask("pay", by="customer")]),
                    ledger=self._store.ledger,
                    approvals=self._store.approvals,
                    timeouts=Timeouts(lease=LEASE, lease_grace=LEASE, in_progress=5.0),
                )
            )
            self._session = await ChatSession.load(
                ScriptedModel(self.world),
                self._executor,
                context=ToolContext(session_id=SESSION, customer_id=CUSTOMER),
                sessions=self._store.sessions,
                create=True,
            )
        return self._session
