"""`Limits` and `Timeouts`: values that check themselves, and can be shared, compared and printed."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.authorize import MemoryApprovals
from handrail.core import CallStarted, Event
from handrail.errors import ConfigError, StoreError
from handrail.execute import CircuitBreaker, Limits, MemoryLedger, MemoryWork, RateLimit, RetryPolicy, Timeouts
from tests.warped import warped


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_threads": 0}, "max_threads must be at least 1, got 0."),
        ({"max_threads": None}, "max_threads must be at least 1, got None."),
        ({"max_threads": True}, "max_threads must be at least 1, got True."),
        ({"max_concurrent": 0}, "max_concurrent must be at least 1, got 0."),
        ({"max_concurrent": "3"}, "max_concurrent must be at least 1, got '3'."),
        ({"max_concurrent_per_session": -1}, "max_concurrent_per_session must be at least 1, got -1."),
        ({"max_concurrent_per_tool": {"pay": 0}}, "max_concurrent_per_tool['pay'] must be at least 1, got 0."),
        ({"max_concurrent_per_tool": {"pay": None}}, "max_concurrent_per_tool['pay'] must be at least 1, got None."),
        ({"max_argument_chars": 0}, "max_argument_chars must be at least 1, got 0."),
        ({"max_output_chars": 0}, "max_output_chars must be at least 1, got 0."),
        ({"max_media_bytes": -1}, "max_media_bytes must be 0 or more, got -1."),
        ({"max_remembered_bytes": -1}, "max_remembered_bytes must be 0 or more, got -1."),
        ({"rate_limits": [5]}, "rate_limits must contain RateLimit values, got 5."),
        ({"circuit_breaker": 5}, "circuit_breaker must be a CircuitBreaker or None, got 5."),
    ],
)
def test_a_wrong_limit_is_refused_by_name_rule_and_value(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Limits(**wrong)

    assert str(error.value) == message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"call": 0}, "call must be more than 0 seconds, got 0."),
        ({"call": math.nan}, "call must be more than 0 seconds, got nan."),
        ({"call": None}, "call must be more than 0 seconds, got None."),
        ({"slow_after": -1}, "slow_after must be more than 0 seconds, got -1."),
        ({"overhead": "10"}, "overhead must be more than 0 seconds, got '10'."),
        ({"lease": 0}, "lease must be more than 0 seconds, got 0."),
        ({"lease_grace": math.nan}, "lease_grace must be 0 seconds or more, got nan."),
        ({"lease_grace": -0.2}, "lease_grace must be 0 seconds or more, got -0.2."),
        ({"approval": 0}, "approval must be more than 0 seconds, got 0."),
        ({"in_progress": -1}, "in_progress must be 0 seconds or more, got -1."),
        ({"repeat_window": -1}, "repeat_window must be 0 seconds or more, got -1."),
    ],
)
def test_a_wrong_timeout_is_refused_by_name_rule_and_value(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Timeouts(**wrong)

    assert str(error.value) == message


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        (Limits, {"max_concurrent": 1, "max_concurrent_per_session": 1, "max_queued_per_tenant": 1, "max_threads": 1}),
        (Limits, {"max_argument_chars": 1, "max_output_chars": 1, "max_media_bytes": 0, "max_remembered_bytes": 0}),
        (Limits, {"max_concurrent_per_tool": {"pay": 1}, "max_concurrent": None, "max_output_chars": None}),
        (Timeouts, {"in_progress": 0, "lease_grace": 0, "repeat_window": 0.0, "call": 1e-9, "resend_after": 1e-9}),
        (RateLimit, {"max_calls": 1, "period": 1e-9}),
        (CircuitBreaker, {"max_failures": 1, "reset_timeout": 1e-9}),
        (RetryPolicy, {"max_attempts": 1, "initial_delay": 0, "max_delay": 0}),
        (RetryPolicy, {"max_attempts": 1, "initial_delay": 3, "max_delay": 3}),
    ],
)
def test_the_smallest_values_are_accepted(kind: Any, least: dict[str, Any]) -> None:
    made = kind(**least)

    assert {name: getattr(made, name) for name in least} == least


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (RateLimit, {"max_calls": 0, "period": 1}, "max_calls must be at least 1, got 0."),
        (RateLimit, {"max_calls": 1, "period": 0}, "period must be more than 0 seconds, got 0."),
        (
            RateLimit,
            {"max_calls": 1, "period": 1, "per": "day"},
            "per must be 'tool', 'session' or 'tenant', got 'day'.",
        ),
        (CircuitBreaker, {"max_failures": 0}, "max_failures must be at least 1, got 0."),
        (CircuitBreaker, {"reset_timeout": 0}, "reset_timeout must be more than 0 seconds, got 0."),
        (RetryPolicy, {"max_attempts": 0}, "max_attempts must be at least 1, got 0."),
        (RetryPolicy, {"initial_delay": -1}, "initial_delay must be 0 seconds or more, got -1."),
        (RetryPolicy, {"initial_delay": 3, "max_delay": 2}, "max_delay must be at least initial_delay, got 2."),
        (Timeouts, {"call": True}, "call must be more than 0 seconds, got True."),
        (Timeouts, {"resend_after": 0}, "resend_after must be more than 0 seconds, got 0."),
        (Timeouts, {"unserved_after": 0}, "unserved_after must be more than 0 seconds, got 0."),
        (Limits, {"max_queued_per_tenant": 0}, "max_queued_per_tenant must be at least 1, got 0."),
    ],
)
def test_a_wrong_value_is_refused_by_name_rule_and_value(kind: Any, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        kind(**wrong)

    assert str(error.value) == message


@pytest.mark.parametrize(("attempt", "delay"), [(1, 0.2), (2, 0.4), (3, 0.8), (9, 5.0)])
def test_the_delay_doubles_after_each_attempt_up_to_the_longest(attempt: int, delay: float) -> None:
    assert RetryPolicy(max_attempts=9).delay_after(attempt) == pytest.approx(delay)


def test_many_attempts_are_no_longer_than_the_longest_delay_each() -> None:
    assert RetryPolicy(max_attempts=5_000).delay_after(4_999) == 5.0


def test_they_are_values_that_can_be_compared_and_printed_and_nobody_changes() -> None:
    per_tool = {"pay": 1}
    limits = Limits(
        max_concurrent_per_tool=per_tool,
        rate_limits=[RateLimit(max_calls=1, period=60)],
        circuit_breaker=CircuitBreaker(),
    )
    per_tool["pay"] = 0

    assert limits == Limits(
        max_concurrent_per_tool={"pay": 1},
        rate_limits=(RateLimit(max_calls=1, period=60),),
        circuit_breaker=CircuitBreaker(),
    )
    assert limits != Limits()
    assert "max_concurrent_per_tool={'pay': 1}" in repr(limits)
    assert Timeouts() == Timeouts(call=30)
    assert "call=30" in repr(Timeouts(call=30))
    with pytest.raises(AttributeError):
        limits.max_threads = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Timeouts().call = 5  # type: ignore[misc]


async def test_executors_that_share_limits_count_for_themselves() -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    limits = Limits(rate_limits=[RateLimit(max_calls=1, period=3_600)])
    call, context = ToolCall(id="c-1", name="look", arguments_json="{}"), ToolContext(session_id="s-1")
    found = [await Executor([look], limits=limits).run(call, context) for _ in range(2)]

    assert [result.output for result in found] == ["seen", "seen"]


class MemoryStore:
    """A store of somebody else's, without a database."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger()
        self.approvals = MemoryApprovals()
        self.events: list[Event] = []

    is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def aclose(self) -> None:
        self.is_open = False

    def audit(self, event: Event) -> None:
        self.events.append(event)


async def test_a_store_is_ledger_approvals_and_audit_in_one_word() -> None:
    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    store = MemoryStore()
    executor = Executor([pay], policy=Policy([Rule.allow("pay")]), store=store)
    await executor.run(ToolCall(id="c-1", name="pay", arguments_json="{}"), ToolContext(session_id="s-1"))
    entry = (await store.ledger.recall(session_id="s-1", call_id="c-1")).by_id

    assert executor.approvals is store.approvals
    assert entry is not None
    assert [type(event).__name__ for event in store.events] == ["CallAccepted", "CallStarted", "CallFinished"]


class CountedLedger(MemoryLedger):
    """Says how many entries it has, and is false as long as it has none."""

    def __len__(self) -> int:
        return 0


def test_a_ledger_that_is_empty_is_still_the_one_that_was_passed() -> None:
    ledger = CountedLedger()

    assert "CountedLedger" in repr(Executor(ledger=ledger))


@pytest.mark.parametrize("other", [{"ledger": MemoryLedger()}, {"approvals": MemoryApprovals()}])
def test_a_store_with_a_ledger_or_approvals_beside_it_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="store must be passed without ledger, approvals and work: it has its own"):
        Executor(store=MemoryStore(), **other)


@pytest.mark.parametrize("missing", ["is_immediate", "needs_lease", "is_written", "claim"])
def test_a_ledger_of_ones_own_without_what_a_call_needs_is_refused_when_the_executor_is_built(missing: str) -> None:
    members = {name: getattr(MemoryLedger, name) for name in dir(MemoryLedger) if not name.startswith("__")}
    own = type("Own", (), {"digest_key": b"key", **{name: one for name, one in members.items() if name != missing}})

    with pytest.raises(ConfigError, match=f"ledger must have '{missing}', got a Own without"):
        Executor(ledger=own())


@pytest.mark.parametrize(("part", "missing"), [("ledger", "claim"), ("approvals", "consume")])
def test_a_store_whose_parts_have_not_what_a_call_needs_is_refused_when_the_executor_is_built(
    part: str, missing: str
) -> None:
    store = MemoryStore()
    whole = type(getattr(store, part))
    members = {name: getattr(whole, name) for name in dir(whole) if not name.startswith("__")}
    setattr(store, part, type("Own", (), {name: one for name, one in members.items() if name != missing})())

    with pytest.raises(ConfigError, match=f"store.{part} must have .*'{missing}'"):
        Executor(store=store)


@warped
async def test_a_store_that_does_not_open_in_time_is_an_error_and_its_calls_do_not_run() -> None:
    class Hanging(MemoryStore):
        async def open(self) -> None:
            await asyncio.get_running_loop().create_future()

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    executor = Executor([pay], policy=Policy([Rule.allow("*")]), store=Hanging(), timeouts=Timeouts(overhead=7))
    with pytest.raises(StoreError, match="the store was not open after 7 seconds"):
        await executor.open()
    result = await executor.run(ToolCall(id="c-1", name="pay"), ToolContext(session_id="s-1"))

    assert result.error is not None
    assert result.error.code == "unavailable"


@pytest.mark.parametrize("missing", ["ledger", "approvals", "audit", "is_open", "open", "aclose"])
def test_a_store_without_what_a_store_has_is_refused_when_the_executor_is_built(missing: str) -> None:
    members = ("ledger", "approvals", "audit", "is_open", "open", "aclose")
    store: Any = SimpleNamespace(**{name: getattr(MemoryStore(), name) for name in members if name != missing})

    with pytest.raises(ConfigError, match=f"got SimpleNamespace, which has no '{missing}'"):
        Executor(store=store)


@pytest.mark.parametrize("is_audited", [True, False])
async def test_a_ledger_that_has_an_audit_beside_it_gets_the_start_of_a_call_with_its_claim(is_audited: bool) -> None:
    class Watched(MemoryLedger):
        """A ledger that keeps what it is told of the start of a call."""

        def __init__(self) -> None:
            super().__init__()
            self.started: list[Any] = []

        async def claim(self, entry: Any, **given: Any) -> bool:
            if is_claimed := await super().claim(entry, **given):
                self.started.append(given["started"])
            return is_claimed

        async def take_over(self, entry: Any, **given: Any) -> Any:
            self.started.append(given["started"])
            return await super().take_over(entry, **given)

    fails = [True]

    @tool(idempotent=True)
    async def pay() -> str:
        """Pay."""
        if fails:
            raise ConnectionError("lost")
        return "paid"

    @tool(durable=True)
    async def send() -> str:
        """Send."""
        return "sent"

    store, heard = MemoryStore(), list[Event]()
    store.ledger = ledger = Watched()
    work = MemoryWork()
    store.work = work  # type: ignore[attr-defined]
    parts: dict[str, Any] = {"ledger": ledger, "approvals": store.approvals, "work": work}
    if is_audited:
        parts = {"store": store}
    executor = Executor([pay, send], policy=Policy([Rule.allow("*")]), listeners=[heard.append], **parts)
    context = ToolContext(session_id="s-1", turn=1)
    await executor.run(ToolCall(id="c-1", name="pay"), context)
    await executor.run(ToolCall(id="c-2", name="send"), context)
    fails.clear()
    assert (await executor.run(ToolCall(id="c-3", name="pay"), context)).output == "paid"  # It is taken over.

    started = [event for event in heard if isinstance(event, CallStarted)]
    assert len(started) == 3
    assert ledger.started == (started if is_audited else [None] * 3)
