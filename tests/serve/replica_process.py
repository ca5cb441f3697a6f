"""One replica of the service in a process of its own, which can be killed: STORE JOURNAL PORT.

Its agent pays the invoice that a message names, and repeats what the tool has answered.
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncGenerator

import uvicorn

from handrail import Executor, Policy, Rule, ToolCall, tool
from handrail.execute import Timeouts
from handrail.providers import ModelRequest, ModelResponse, StreamEvent, TextDelta, ToolMessage, UserMessage
from handrail.serve import ApiLimits, ChatAgent, build_app
from handrail.serve.api import turns
from handrail.store import open_store

STORE, JOURNAL, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])


@tool(key="invoice", timeout=5)
async def pay(invoice: str) -> str:
    """Pay an invoice."""
    await asyncio.sleep(0.01)
    with open(JOURNAL, "a", encoding="utf-8") as journal:  # one line, at once
        journal.write(f"{invoice} {os.getpid()}\n")
    await asyncio.sleep(random.choice((0.01, 1.0)))  # Of those that die in it, nobody knows what they did.
    return f"paid {invoice}"


class Clerk:
    """A model that asks for the payment of the invoice, and then says what the tool has said."""

    name = "clerk:model"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        await asyncio.sleep(0.02)  # A turn has a moment here, too, in which its process can die.
        last, calls, text = request.messages[-1], (), ""
        if isinstance(last, UserMessage):
            calls = (ToolCall(id=f"call-{last.text}", name="pay", arguments_json=f'{{"invoice": "{last.text}"}}'),)
        elif isinstance(last, ToolMessage):
            text = " ".join(result.for_model() for result in last.results)
        yield TextDelta(text=text)
        yield ModelResponse(text=text, calls=calls, finish_reason="tool_calls" if calls else "stop", id="r")

    async def ask(self, request: ModelRequest) -> ModelResponse:
        *_, response = [event async for event in self.stream(request)]
        assert isinstance(response, ModelResponse)
        return response


async def main() -> None:
    turns.LEASE_SECONDS, turns.RENEW_SECONDS = 2.0, 0.3  # So that nobody waits long for a process that was killed.
    async with open_store(STORE, audit_interval=0.05) as store:
        policy = Policy([Rule.ask("pay", by="operator")])
        timeouts = Timeouts(lease=2, lease_grace=1, approval=3_600)
        async with Executor([pay], policy=policy, store=store, timeouts=timeouts, scope="session") as executor:
            limits = ApiLimits(requests_per_second=10_000, burst=10_000)
            agent = ChatAgent(provider=Clerk())
            app = build_app(executor, store=store, approval_wait=0, api_limits=limits, agent=agent)
            await uvicorn.Server(uvicorn.Config(app, port=PORT, log_level="error")).serve()


asyncio.run(main())
