"""Interrupting a turn, or leaving it: whatever was begun is told truthfully, and the history stays whole."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, tool
from handrail.chat import ChatSession, Conversation, TurnResult
from handrail.core import CallStarted, TurnStarted
from handrail.errors import ProviderDownError
from handrail.providers import (
    AssistantMessage,
    ModelRequest,
    ModelResponse,
    StreamEvent,
    TextDelta,
    UserMessage,
)
from handrail.testing.servers import tool_calls
from tests.chat.bank import Bank, at, chat
from tests.execute.helpers import Held, code_of

ALLOWED = Policy([Rule.allow("*")])


class Slow:
    """A provider that says a few words, waits, and says more when it is told."""

    name = "slow:model"

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.closed = 0

    async def ask(self, request: ModelRequest) -> ModelResponse:
        raise NotImplementedError

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        try:
            yield TextDelta(text="I will ")
            self.begun.set()
            await self.go.wait()
            yield TextDelta(text="do it.")
            yield ModelResponse(text="I will do it.")
        finally:
            self.closed += 1


async def test_an_interrupted_response_ends_where_it_was_and_the_conversation_continues() -> None:
    provider = Slow()
    session = ChatSession(provider, Executor(), context=at(Bank()))
    events: list[Any] = []
    async for event in session.stream("Go."):
        events.append(event)
        if isinstance(event, TextDelta):
            session.interrupt()

    assert isinstance(events[-1], TurnResult)
    assert (events[-1].stop_reason, events[-1].text) == ("interrupted", "I will ")
    assert provider.closed == 1
    assert session.conversation.messages == (UserMessage(text="Go."), AssistantMessage(text="I will "))
    provider.go.set()
    assert (await session.send("Go on.")).text == "I will do it."


@pytest.mark.parametrize(
    ("on_interrupt", "code", "ended"),
    [("cancel", "outcome_unknown", 0), ("finish", None, 1), ("uninterruptible", None, 1)],
)
async def test_calls_are_interrupted_each_as_its_tool_wants_it(on_interrupt: Any, code: str | None, ended: int) -> None:
    held = Held()

    @tool(on_interrupt=on_interrupt)
    async def work() -> str:
        """Work."""
        return await held()

    session = chat([tool_calls(("work", {})), "Next."], executor=Executor([work], policy=ALLOWED))
    sending = asyncio.create_task(session.send("Go."))
    await asyncio.wait_for(held.begun.wait(), 20)
    session.interrupt()
    held.go.set()
    answer = await asyncio.wait_for(sending, 20)

    assert answer.stop_reason == "interrupted"
    assert [code_of(result) for result in answer.results] == [code]
    assert held.ended == ended
    assert len(session.conversation.open_calls) == (1 if code else 0)  # What nobody knows stays open.
    assert (await session.send("What now?")).text == "Next."


class Slowed(Slow):
    """One that calls a tool first."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        if isinstance(request.messages[-1], UserMessage):
            yield ModelResponse(calls=(ToolCall(id="c-1", name="look"),))
            return
        async for event in super().stream(request):
            yield event


async def test_a_turn_is_interrupted_where_a_task_group_of_a_tool_has_cancelled_its_task_and_not_taken_it_back() -> (
    None
):
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        async with asyncio.TaskGroup() as group:  # Before Python 3.13 it leaves the count of cancellations as it is.
            group.create_task(asyncio.sleep(20))
            group.create_task(fail())
        return "seen"

    async def fail() -> None:
        raise ValueError

    provider = Slowed()
    session = ChatSession(provider, Executor([look]), context=at(Bank()))
    sending = asyncio.create_task(session.send("Go."))
    await asyncio.wait_for(provider.begun.wait(), 20)
    session.interrupt()
    answer = await asyncio.wait_for(sending, 20)

    assert answer.stop_reason == "interrupted"
    assert [code_of(result) for result in answer.results] == ["tool_execution_failed"]


async def test_a_provider_that_cancels_its_own_request_is_down_and_the_caller_is_not_cancelled() -> None:
    class Cancelled(Slow):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
            yield TextDelta(text="I ")
            raise asyncio.CancelledError

    session = ChatSession(Cancelled(), Executor([]), context=at(Bank()))
    with pytest.raises(ProviderDownError, match="cancelled its own request"):
        await session.send("Go.")
    session.provider = (provider := Slow())
    provider.go.set()

    assert (await session.resume()).text == "I will do it."


async def test_an_interruption_before_the_calls_begin_leaves_them_undone() -> None:
    bank = Bank()
    session = chat([tool_calls(("balance", {})), "Next."], bank)
    seen = 0
    async for event in session.stream("Go."):
        if isinstance(event, CallStarted):
            seen += 1
            session.interrupt()
    assert seen == 1
    assert session.conversation.open_calls == ()


def test_interrupting_nothing_does_nothing() -> None:
    session = chat([])
    session.interrupt()
    assert not session.is_busy


async def test_leaving_a_stream_in_the_middle_closes_it() -> None:
    provider = Slow()
    session = ChatSession(provider, Executor(), context=at(Bank()))
    async with aclosing(session.stream("Go.")) as events:
        await anext(events)

    assert provider.closed == 1
    assert not session.is_busy
    assert session.conversation.messages == (UserMessage(text="Go."),)


async def test_a_caller_that_is_cancelled_while_a_call_runs_finds_its_result_later() -> None:
    held = Held()

    @tool
    async def work() -> str:
        """Work."""
        return await held()

    session = chat([tool_calls(("work", {})), "Done."], executor=Executor([work], policy=ALLOWED))
    sending = asyncio.create_task(session.send("Go."))
    await asyncio.wait_for(held.begun.wait(), 20)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending

    assert [call.name for call in session.conversation.open_calls] == ["work"]
    held.go.set()
    answer = await asyncio.wait_for(session.resume(), 20)
    assert (answer.text, held.runs) == ("Done.", 1)
    assert len(answer.results) == 1


@pytest.mark.parametrize("steps", range(12))
async def test_a_caller_that_leaves_at_any_moment_leaves_a_history_that_continues(steps: int) -> None:
    bank = Bank()
    executor = Executor([*chat([], bank).executor.registry], policy=ALLOWED)
    session = chat([tool_calls(("balance", {}), ("pay", {"amount": 5})), "Done.", "Done."], bank, executor=executor)
    sending = asyncio.create_task(session.send("Go."))
    for _ in range(steps):
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])

    assert not session.is_busy
    await asyncio.wait_for(session.send("And?"), 20)
    assert session.conversation.open_calls == ()
    assert len(bank.paid) <= 1


def left_by_a_crash(bank: Bank) -> tuple[ChatSession, ToolCall]:
    """A session with a call that an earlier process left open, which is interrupted as soon as a turn begins."""
    call = ToolCall(id="c1", name="pay", arguments_json='{"amount": 5}')
    conversation = Conversation(
        session_id="s-1",
        customer_id="ann",
        turn=1,
        messages=(UserMessage(text="Pay 5"), AssistantMessage(calls=(call,))),
    )
    registry = chat([], bank).executor.registry
    executor = Executor(
        [*registry],
        policy=ALLOWED,
        listeners=[lambda event: session.interrupt() if isinstance(event, TurnStarted) else None],
    )
    session = chat(["Hm."], bank, executor=executor, conversation=conversation)
    return session, call


async def test_a_call_of_an_earlier_turn_stays_open_if_the_turn_is_interrupted_before_it_runs() -> None:
    bank = Bank()
    session, call = left_by_a_crash(bank)
    result = await session.resume()

    assert (result.stop_reason, bank.paid) == ("interrupted", [])
    assert session.conversation.open_calls == (call,)


async def test_a_new_message_finds_what_was_recorded_about_an_open_call_meanwhile() -> None:
    bank = Bank()
    session, call = left_by_a_crash(bank)
    done = await session.executor.run(call, at(bank))
    assert done.ok
    await session.send("And?")

    (result,) = session.conversation.results
    assert (result.ok, result.call_id, len(bank.paid)) == (True, "c1", 1)
    assert session.conversation.unsettled == ()
