"""Many random phone calls through one gateway, in memory and in time that jumps."""

import asyncio
import gc
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import Struct, field
from openai import AsyncOpenAI

from handrail import tool
from handrail.core import Event
from handrail.phone import PhoneCallEnded, PhoneGateway
from handrail.tenants import TenantConfig, TenantDirectory, ToolBuilder
from handrail.testing.phone import CallReport, PhoneSimulator, run_warped
from tests.phone.calls import play
from tests.phone.in_memory import MemoryTransport
from tests.phone.random_calls import random_script

AT_ONCE = 50
TENANT: dict[str, Any] = {
    "tenant_id": "acme",
    "numbers": ["+33100000000"],
    "greeting": "Hello.",
    "limits": {"max_calls": 1_000},
}


class Totals(Struct):
    """What came of all calls."""

    counts: Counter[str] = field(default_factory=Counter)
    booked: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """Bytes of the process, after each tenth of the calls."""

    def add(self, number: int, report: CallReport) -> None:
        self.counts["calls"] += 1
        self.counts["tool calls"] += len(report.calls)
        # Who hears of a response late may ask for another: what counts is that nothing is lost by it.
        self.counts["created_while_active"] += report.created_while_active
        for name in ("unanswered", "never_voiced", "duplicate_outputs", "unknown_outputs"):
            if found := getattr(report, name):
                self.counts[name] += len(found)
                self.wrong.append(f"call {number}: {name} {found}")


def build_tools(random: Random, booked: Counter[str]) -> ToolBuilder:
    async def look_up(key: str) -> str:
        """Look something up."""
        await asyncio.sleep(random.choice((0.0, 0.2, 1.0)))
        return key

    async def book(key: str) -> str:
        """Book something."""
        booked[key] += 1
        await asyncio.sleep(random.choice((0.0, 0.2, 2.0)))
        return "booked"

    async def broken(key: str) -> str:
        """Fail."""
        raise RuntimeError("a bug")

    async def slow(key: str) -> str:
        """Take too long."""
        await asyncio.sleep(30)
        return "too late"

    builder = ToolBuilder()
    for made in (
        tool(look_up, read_only=True, concurrency_safe=True),
        tool(book),
        tool(broken, read_only=True),
        tool(slow, read_only=True, timeout=3),
    ):
        builder.register(type("Builder", (), {"__name__": made.name, "__call__": lambda self, cfg, made=made: made})())
    return builder


async def play_many(
    count: int, *, faults: bool, lost_events: bool = False, is_chaos: bool = False, at_once: int = AT_ONCE
) -> Totals:
    totals = Totals()
    ended: dict[str, PhoneCallEnded] = {}

    def listen(event: Event) -> None:
        if isinstance(event, PhoneCallEnded):
            ended[event.session_id] = event

    simulator = PhoneSimulator()  # not started: there is no socket
    client = AsyncOpenAI(base_url="http://unused.invalid", api_key="sk-test", webhook_secret=simulator.webhook_secret)
    gateway = PhoneGateway(
        client=client,
        tenants=TenantDirectory([TenantConfig.model_validate({**TENANT, "policy": [{"allow": "book"}]})]),
        tools=build_tools(Random(1), totals.booked),
        transport=MemoryTransport(simulator),
        listeners=[listen],
    )

    async def play_one(number: int) -> None:
        script = random_script(Random(number), faults=faults, lost_events=lost_events, is_chaos=is_chaos)
        call = await simulator.ring(script, gateway.handle_webhook)
        report = await simulator.wait(call.id)
        totals.add(number, report)
        while call.id in gateway.calls:
            await asyncio.sleep(0.1)
        told = ended.pop(call.id, None)
        if told is not None and told.unanswered != len(report.unanswered):
            totals.wrong.append(f"call {number}: {told.unanswered} unanswered in metrics, {report.unanswered} in fact")
        simulator.forget(call.id)

    async with client, gateway:
        for start in range(0, count, at_once):
            await asyncio.gather(*(play_one(number) for number in range(start, min(start + at_once, count))))
            if (start + at_once) % max(count // 10, 1) == 0:
                totals.memory.append(resident_bytes())
    return totals


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def check(totals: Totals, count: int) -> None:
    assert totals.wrong == []
    assert totals.counts["calls"] == count
    assert totals.counts["tool calls"] > count
    assert max(totals.booked.values()) == 1


@pytest.mark.parametrize("faults", [False, True])
def test_random_calls_leave_nothing_undone(faults: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    totals = run_warped(play_many(60, faults=faults))
    check(totals, 60)
    assert faults or totals.counts["created_while_active"] == 0


def test_even_when_events_are_lost_nothing_is_done_or_answered_twice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    totals = run_warped(play_many(60, faults=True, lost_events=True))
    assert totals.counts["duplicate_outputs"] == 0
    assert max(totals.booked.values()) == 1


SCRIPT: dict[str, Any] = {
    "model": [
        {"say": "Hello."},
        {"calls": [{"id": "c1", "name": "look_up"}]},
        {"status": "failed"},
        {"say": "It is 42."},
    ],
    "caller": [{"say": "How much is it?"}, {"wait": "results", "patience": 60}],
    "expect": [{"heard": "It is 42."}],
}


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "duplicate", "event": "response.*"},
        *({"fault": "drop", "event": "response.done", "nth": number} for number in (1, 2, 3, 4)),
        *({"fault": "drop", "event": "response.created", "nth": number} for number in (1, 2, 3, 4)),
        {"fault": "drop", "event": "output_audio_buffer.*"},
    ],
    ids=str,
)
def test_a_result_is_spoken_although_an_event_of_a_response_is_lost_or_comes_twice(fault: dict[str, Any]) -> None:
    async def look_up() -> str:
        """Look something up."""
        return "42"

    cfg = TenantConfig.model_validate(TENANT)
    play({**SCRIPT, "faults": [fault]}, tenants=[cfg], tools=[tool(look_up, read_only=True)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_calls_with_random_faults_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    totals = run_warped(play_many(10_000, faults=True))
    check(totals, 10_000)
    # What is remembered of a call that is over, such as its id for a webhook that comes late, is small and has a limit;
    # a session that stayed would take a hundred times as much.
    assert (totals.memory[-1] - totals.memory[1]) / 8_000 < 4_096


@pytest.mark.parametrize(
    ("count", "at_once"),
    [(60, 60), pytest.param(3_000, 300, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_a_provider_in_chaos_costs_no_call_its_answers(
    count: int, at_once: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Faults of events, sockets, call control and responses; docs/phone.md has the figures of the larger one."""
    caplog.set_level("CRITICAL")
    totals = run_warped(play_many(count, faults=True, is_chaos=True, at_once=at_once))
    check(totals, count)
    print(dict(totals.counts), sum(totals.booked.values()))
