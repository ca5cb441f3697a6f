"""`Limits` and `Timeouts`: values that check themselves, and can be shared, compared and printed."""

import math
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.authorize import MemoryApprovals
from handrail.core import Event
from handrail.errors import ConfigError
from handrail.execute import CircuitBreaker, Limits, MemoryLedger, RateLimit, Timeouts


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
