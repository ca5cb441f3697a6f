"""Whoever listens hears what happens, in order; one that fails never breaks a call."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from handrail import ConfigError, Executor, Policy, Provenance, Rule, ToolContext, tool
from handrail.core import CallAccepted, CallFinished, CallStarted, Event
from tests.execute.helpers import ALLOWED, Heard, at, call


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def act() -> str:
    """Act."""
    return "acted"


@pytest.mark.parametrize("name", ["look", "act"])
@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        SystemExit(),
        GeneratorExit(),
        asyncio.CancelledError(),
        StopIteration(),
        ExceptionGroup("g", [OSError()]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_listener_that_raises_anything_breaks_no_call_and_no_other_listener(
    name: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: Event) -> None:
        raise error

    before, after = Heard(), Heard()
    executor = Executor([look, act], policy=ALLOWED, listeners=[before, broken, after])
    with caplog.at_level(logging.ERROR, "handrail"):
        result = await executor.run(call(name), at())

    assert result.ok
    assert before == after
    assert before.names[-1] == "CallFinished"
    assert "a listener failed on CallFinished" in caplog.text


async def test_a_handler_that_tells_something_is_not_broken_by_a_listener() -> None:
    def broken(event: Event) -> None:
        raise ValueError

    @tool
    async def tells(context: ToolContext[Any]) -> str:
        """Tell."""
        context.progress("half")
        context.emit(CallStarted(at=0, session_id="s", call=call("x")))
        return "told"

    assert (await Executor([tells], policy=ALLOWED, listeners=[broken]).run(call("tells"), at())).output == "told"


async def test_a_call_is_reported_as_taken_on_started_and_finished_with_all_its_ids() -> None:
    class Bank: ...

    heard = Heard()
    executor = Executor([look, act], policy=ALLOWED, listeners=[heard])
    sent = call("act", response_id="r-1")
    await executor.run(sent, at(tenant_id="acme", agent_id="a-1", deps=Bank()))
    await executor.run(call("look", "c-2"), at(deps={"crm": object(), "bank": object()}))

    assert heard.names == ["CallAccepted", "CallStarted", "CallFinished", "CallStarted", "CallFinished"]
    assert all(
        item.call is sent for item in (heard.of(CallAccepted)[0], heard.of(CallStarted)[0], heard.of(CallFinished)[0])
    )
    assert [event.dependencies for event in heard.of(CallStarted)] == [("Bank",), ("bank", "crm")]
    assert [event.tenant_id for event in heard[:3]] == ["acme"] * 3
    assert heard.of(CallStarted)[0].agent_id == "a-1"


async def test_the_end_of_a_call_has_its_result_and_how_long_it_took() -> None:
    heard = Heard()
    result = await Executor([look], listeners=[heard]).run(call("look"), at())

    (told,) = heard.of(CallFinished)
    assert told.result == result
    assert result.duration_ms > 0
    assert (told.slow, told.decision) == (False, result.decision)


# Listening to one session for a while


async def test_a_listener_to_one_session_gets_only_its_events_and_only_inside_the_block() -> None:
    mine, second = Heard(), Heard()
    executor = Executor([look])
    with executor.subscribe("a", mine):
        await executor.run(call("look", "1"), at("a"))
        await executor.run(call("look", "2"), at("b"))
        with executor.subscribe("a", second):
            await executor.run(call("look", "3"), at("a"))
    await executor.run(call("look", "4"), at("a"))

    assert [event.call.id for event in mine.of(CallFinished)] == ["1", "3"]
    assert [event.call.id for event in second.of(CallFinished)] == ["3"]


async def test_a_listener_to_one_session_that_fails_breaks_no_call_and_one_that_is_async_is_refused() -> None:
    def fails(event: Event) -> None:
        raise RuntimeError

    async def late(event: Event) -> None: ...

    executor = Executor([look])
    with executor.subscribe("s-1", fails):
        assert (await executor.run(call("look"), at())).ok
    with pytest.raises(ConfigError, match="plain function"), executor.subscribe("s-1", late):
        pass


def test_a_listener_whose_calls_would_have_to_be_awaited_is_refused() -> None:
    class Late:
        async def __call__(self, event: Event) -> None: ...

    late: Any = Late()
    with pytest.raises(ConfigError, match="plain function"):
        Executor([look], listeners=[late])


async def test_who_listens_to_everything_still_does_when_nobody_listens_to_one_session_any_more() -> None:
    heard, mine = Heard(), Heard()
    executor = Executor([look], listeners=[heard])
    with executor.subscribe("a", mine):
        with executor.subscribe("b", mine):
            pass
        await executor.run(call("look", "1"), at("a"))
    await executor.run(call("look", "2"), at("a"))

    assert [event.call.id for event in heard.of(CallFinished)] == ["1", "2"]
    assert [event.call.id for event in mine.of(CallFinished)] == ["1"]


async def test_listeners_get_no_values_of_a_question_wherever_it_has_them() -> None:
    secret = "pässword-7"

    @tool
    async def login(password: str) -> None:
        """Log in."""

    heard = Heard()
    policy = Policy([Rule.ask("login", by="customer", where={"not": {"password": {"from": "customer"}}})])
    executor = Executor([login], policy=policy, listeners=[heard])
    context = at(provenance=Provenance(), customer_id="ann")
    asked = (await executor.run(call("login", password=secret), context)).approval
    assert asked is not None
    assert asked.seen["password"].endswith(ascii(secret))  # Who decides gets all of it.
    await executor.approvals.approve(asked.token, by="customer", who="ann", arguments={"password": f"{secret}8"})
    early = (await executor.run(call("login", password=secret), context)).approval  # In the same turn.
    assert early is not None
    assert early.changed_arguments == {"password": f"{secret}8"}

    questions = [event.result.approval for event in heard.of(CallFinished)]
    assert [question and question.token for question in questions] == [asked.token, asked.token]
    for question in questions:
        assert question is not None
        told = (question.arguments, question.changed_arguments, question.seen, question.question)
        assert "ssword-7" not in repr(told)
        assert question.seen == {"password": "not from customer; not seen before in this conversation"}


class Services(Mapping[str, object]):
    """Services that are made when they are asked for: nobody knows which there are."""

    def __getitem__(self, name: str) -> object:
        return f"a {name}"

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize("name", ["look", "act"])
async def test_services_that_cannot_be_listed_break_no_call_that_somebody_listens_to(name: str) -> None:
    heard = Heard()
    executor = Executor([look, act], policy=ALLOWED, listeners=[heard])

    assert (await executor.run(call(name), at(deps=Services()))).ok
    assert [event.dependencies for event in heard.of(CallStarted)] == [("Services",)]
