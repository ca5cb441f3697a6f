"""Rate limits and circuit breakers, by a clock that the test moves."""

import asyncio
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import ConfigError, Executor, build_tool, tool
from handrail.execute import CircuitBreaker, Limits, RateLimit
from handrail.execute.limits import CircuitBreakers, ConcurrencyLimit, RateLimits
from tests.execute.helpers import at, call, code_of

PAY: Any = build_tool({"name": "pay", "input_schema": {}, "execute": lambda payload: None, "tags": ["money"]})
LOOK: Any = build_tool({"name": "look", "input_schema": {}, "execute": lambda payload: None})


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_limit_lets_so_many_through_and_says_when_the_next_one_may_come() -> None:
    clock = Clock()
    limits = RateLimits([RateLimit(max_calls=2, period=10)], clock=clock)
    assert limits.acquire(PAY, at()) == 0
    clock.now += 4
    assert limits.acquire(PAY, at()) == 0
    assert limits.acquire(PAY, at()) == pytest.approx(6)
    clock.now += 6
    assert limits.acquire(PAY, at()) == 0
    assert limits.acquire(PAY, at()) == pytest.approx(4)


def test_limits_are_for_selected_tools_and_a_refused_call_counts_nowhere() -> None:
    clock = Clock()
    limits = RateLimits(
        [RateLimit(max_calls=3, period=10, per="session"), RateLimit(max_calls=1, period=10, tools=("tag:money",))],
        clock=clock,
    )
    assert limits.acquire(PAY, at()) == 0
    for _ in range(5):
        assert limits.acquire(PAY, at()) > 0  # The second limit refuses; the first one has counted one call.
    assert [limits.acquire(LOOK, at()) == 0 for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("per", "apart"),
    [("tool", "tool"), ("session", "session"), ("tenant", "tenant")],
)
def test_a_limit_counts_per_tool_session_or_tenant(per: Literal["tool", "session", "tenant"], apart: str) -> None:
    places = {
        "tool": (LOOK, at("s-1", tenant_id="a")),
        "session": (PAY, at("s-2", tenant_id="a")),
        "tenant": (PAY, at("s-1", tenant_id="b")),
    }
    limits = RateLimits([RateLimit(max_calls=1, period=10, per=per)], clock=Clock())
    limits.acquire(PAY, at("s-1", tenant_id="a"))
    free = [name for name, (tool, where) in places.items() if limits.acquire(tool, where) == 0]

    assert free == ([apart] if per != "session" else ["session", "tenant"])


@given(st.integers(1, 4), st.lists(st.floats(0, 5), max_size=40))
def test_never_more_than_so_many_in_any_window(calls: int, pauses: list[float]) -> None:
    clock = Clock()
    limits = RateLimits([RateLimit(max_calls=calls, period=10)], clock=clock)
    passed: list[float] = []
    for pause in pauses:
        clock.now += pause
        wait = limits.acquire(PAY, at())
        if wait == 0:
            passed.append(clock.now)
        else:
            recent = [item for item in passed if item > clock.now - 10]
            assert len(recent) == calls
            assert wait == pytest.approx(max(recent[0] + 10 - clock.now, 0.001))
    for start in passed:
        assert sum(start <= item < start + 10 for item in passed) <= calls


def test_sessions_that_do_not_call_any_more_are_forgotten_once_there_are_many() -> None:
    clock = Clock()
    limits = RateLimits([RateLimit(max_calls=1, period=1, per="session")], clock=clock)
    known = limits._limits.find(PAY)[0]  # pyright: ignore[reportPrivateUsage]

    def add(count: int) -> int:
        for _ in range(count):
            assert limits.acquire(PAY, at(f"s-{len(known.times)}-{clock.now}")) == 0
        return len(known.times)

    assert add(5_000) == 5_000
    clock.now += 1
    assert add(5_000) == 10_000  # Few enough to keep: who looks through all of them does so rarely.
    assert add(1) == 5_001  # Now there are too many, and what ended one period ago is over.


@pytest.mark.parametrize("wrong", [{"max_calls": 0}, {"period": 0}, {"period": -1}, {"per": "planet"}])
def test_a_limit_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RateLimit(**{"max_calls": 1, "period": 1, **wrong})


# The breaker


class Switch:
    """A breaker, its clock, and what it told."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.told: list[str] = []
        self.breakers = CircuitBreakers(
            CircuitBreaker(**{"max_failures": 3, "reset_timeout": 10, **settings}),
            on_change=lambda tool, state: self.told.append(f"{tool} {state}"),
            clock=self.clock,
        )

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.breakers.report("pay", False)


def test_a_breaker_opens_after_so_many_failures_in_a_row() -> None:
    switch = Switch()
    switch.fail(2)
    switch.breakers.report("pay", True)
    switch.fail(2)
    assert switch.breakers.wait_time("pay") is None
    switch.breakers.report("pay", None)
    switch.fail()

    assert switch.breakers.wait_time("pay") == pytest.approx(10)
    assert switch.breakers.wait_time("look") is None
    assert switch.told == ["pay open"]


def test_after_its_rest_one_call_tries_and_the_others_wait_for_it() -> None:
    switch = Switch()
    switch.fail(3)
    switch.clock.now += 9
    assert switch.breakers.wait_time("pay") == pytest.approx(1)
    switch.clock.now += 1
    assert switch.breakers.wait_time("pay") is None
    assert switch.told == ["pay open", "pay half_open"]
    assert switch.breakers.wait_time("pay") is not None
    switch.breakers.report("pay", True)

    assert switch.breakers.wait_time("pay") is None
    assert switch.told == ["pay open", "pay half_open", "pay closed"]


def test_a_try_that_fails_opens_it_for_another_rest_and_one_that_tells_nothing_lets_the_next_one_try() -> None:
    switch = Switch()
    switch.fail(3)
    switch.clock.now += 10
    switch.breakers.wait_time("pay")
    switch.fail()
    assert switch.breakers.wait_time("pay") == pytest.approx(10)
    switch.clock.now += 10
    assert switch.breakers.wait_time("pay") is None
    switch.breakers.report("pay", None)
    assert switch.breakers.wait_time("pay") is None


@pytest.mark.parametrize("wrong", [{"max_failures": 0}, {"reset_timeout": 0}])
def test_a_breaker_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CircuitBreaker(**wrong)


async def test_a_place_that_is_granted_in_the_moment_of_a_cancellation_is_given_back() -> None:
    limit = ConcurrencyLimit(1)
    await limit.acquire()
    waiting = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)

    limit.release()  # Its turn has come, and it is cancelled before it can take it.
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert limit.users == 0
    await asyncio.wait_for(limit.acquire(), 60)


async def test_a_try_that_a_rate_limit_refuses_is_given_back() -> None:
    is_down = True

    @tool(read_only=True)
    async def act() -> str:
        """Act."""
        if is_down:
            raise ConnectionError("down")
        return "up"

    limits = Limits(
        circuit_breaker=CircuitBreaker(max_failures=2, reset_timeout=0.01),
        rate_limits=(RateLimit(tools=("act",), max_calls=2, period=1_000, per="session"),),
    )
    executor = Executor([act], limits=limits)
    for number in range(2):
        assert code_of(await executor.run(call("act", f"c-{number}"), at("s-1"))) == "tool_execution_failed"
    await asyncio.sleep(0.02)  # Until one call may try.
    is_down = False

    refused = await executor.run(call("act", "c-2"), at("s-1"))
    tried = await executor.run(call("act", "c-3"), at("s-2"))

    assert (code_of(refused), tried.output) == ("rate_limited", "up")
