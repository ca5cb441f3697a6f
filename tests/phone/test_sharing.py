"""What phone calls share with each other, and what they do not: context variables, limits, running effects."""

import asyncio
import json
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import pytest

from handrail import Tool, ToolContext, tool
from handrail.core import CallAccepted, CallFinished, CallStarted, Event
from handrail.execute import CircuitBreaker, Limits, RateLimit
from handrail.phone import IncomingCall, PhoneGateway
from handrail.tenants import TenantConfig, ToolBuilder
from handrail.testing.phone import CallReport, PhoneSimulator
from tests.phone.calls import play
from tests.phone.test_gateway import in_gateway
from tests.tenants.samples import acme

NORTH, SOUTH = "+33100000000", "+33200000000"
TENANTS = [
    TenantConfig(tenant_id=name, numbers=(number,), greeting="Hello.")
    for name, number in (("north", NORTH), ("south", SOUTH))
]


def script(to: str, *calls: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "call": {"to": to},
        "model": [{"say": "Hello."}, {"calls": list(calls)}],
        "otherwise": {"say": "That is all."},
        "caller": [{"say": "Please."}, {"wait": "results", "patience": 30}],
    }


def outputs(report: CallReport) -> dict[str, str]:
    sent = report.client_events("conversation.item.create", item__type="function_call_output")
    return {message["item"]["call_id"]: message["item"]["output"] for message in sent}


def error_of(output: str) -> str:
    return json.loads(output)["error"] if output.startswith("{") else output


def build(*tools: Tool[..., Any]) -> ToolBuilder:
    builder = ToolBuilder()
    for number, one in enumerate(tools):

        def builds(cfg: TenantConfig, one: Tool[..., Any] = one) -> Tool[..., Any]:
            return one

        builds.__name__ = f"build_{number}"
        builder.register(builds)
    return builder


# Context variables.

TRACE: ContextVar[str] = ContextVar("trace", default="none")
TENANT: ContextVar[str] = ContextVar("tenant", default="none")
LEFT_BEHIND: ContextVar[str] = ContextVar("left_behind", default="none")


@pytest.mark.parametrize("is_async", [True, False])
def test_context_variables_of_the_request_and_of_the_context_reach_the_handlers_of_their_call_only(
    is_async: bool,
) -> None:
    together = asyncio.Barrier(2)
    threads: set[str] = set()

    def read() -> str:
        found = f"{TRACE.get()} {TENANT.get()} {LEFT_BEHIND.get()}"
        LEFT_BEHIND.set("by a handler")
        return found

    @tool(read_only=True, concurrency_safe=True)
    async def read_async() -> str:
        """Read in the loop."""
        await together.wait()
        return read()

    @tool(read_only=True, concurrency_safe=True)
    def read_sync() -> str:
        """Read in a thread."""
        threads.add(threading.current_thread().name)
        return read()

    def set_sync(call: IncomingCall) -> ToolContext[Any]:
        TENANT.set(call.tenant_id or "")
        return ToolContext(session_id=call.session_id)

    async def set_async(call: IncomingCall) -> ToolContext[Any]:
        await asyncio.sleep(0)
        return set_sync(call)

    async def main(simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]) -> list[dict[str, str]]:
        async def handle(headers: Any, body: bytes) -> Any:
            TRACE.set(f"trace-{json.loads(body)['data']['call_id']}")
            return await gateway.handle_webhook(headers, body)

        calls = [{"id": name, "name": name} for name in ("read_sync", "read_async")]
        rung = [await simulator.ring(script(number, *calls), handle) for number in (NORTH, SOUTH)]
        TRACE.set("of nobody")
        return [{"id": item.id, **outputs(await simulator.wait(item.id))} for item in rung]

    found = in_gateway(
        main, tenants=TENANTS, tools=build(read_async, read_sync), context=set_async if is_async else set_sync
    )

    for one, name in zip(found, ("north", "south"), strict=True):
        expected = f"trace-{one['id']} {name} none"
        assert (one["read_sync"], one["read_async"]) == (expected, expected)
    assert threads
    assert threading.main_thread().name not in threads


# Limits.


def run_in_turn(tools: ToolBuilder, numbers: list[str], **executor_options: Any) -> list[list[str]]:
    """Calls of tenants one after the other, each with one tool call; what the model was told."""

    async def main(simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]) -> list[list[str]]:
        call = {"id": "c1", "name": "look"}
        reports = [await simulator.play(script(number, call), gateway.handle_webhook) for number in numbers]
        return [[error_of(output) for output in outputs(report).values()] for report in reports]

    return in_gateway(main, tenants=TENANTS, tools=tools, executor_options=executor_options)


@pytest.mark.parametrize("per", ["tool", "tenant"])
def test_a_rate_limit_counts_all_calls_of_a_tenant_and_none_of_another(per: Any) -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    limit = RateLimit(max_calls=2, period=86_400, per=per)
    found = run_in_turn(build(look), [NORTH, NORTH, NORTH, SOUTH], limits=Limits(rate_limits=[limit]))

    assert found == [["seen"], ["seen"], ["rate_limited"], ["seen"]]


def test_a_circuit_that_failures_in_some_calls_opened_is_open_for_their_tenant_and_closed_for_another() -> None:
    tried: list[str] = []

    @tool(read_only=True)
    async def look(context: ToolContext) -> str:
        """Look."""
        tried.append(context.tenant_id or "")
        if context.tenant_id == "north":
            raise RuntimeError("the system behind it is down")
        return "seen"

    breaker = CircuitBreaker(max_failures=2, reset_timeout=86_400)
    found = run_in_turn(build(look), [NORTH, NORTH, NORTH, SOUTH], limits=Limits(circuit_breaker=breaker))

    assert found == [["tool_execution_failed"], ["tool_execution_failed"], ["unavailable"], ["seen"]]
    assert tried == ["north", "north", "south"]


@pytest.mark.parametrize("limit", [Limits(max_concurrent=2), Limits(max_concurrent_per_tool={"look": 2})])
def test_a_limit_of_concurrent_calls_holds_for_all_calls_of_a_tenant_and_is_not_shared_with_another(limit: Any) -> None:
    running: dict[str, int] = {"north": 0, "south": 0}
    most: dict[str, int] = dict(running)
    overlaps: list[bool] = []

    @tool(read_only=True, concurrency_safe=True)
    async def look(context: ToolContext) -> str:
        """Look."""
        name = context.tenant_id or ""
        running[name] += 1
        most[name] = max(most[name], running[name])
        overlaps.append(running == {"north": 2, "south": 2})
        await asyncio.sleep(3)
        running[name] -= 1
        return "seen"

    async def main(simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]) -> list[CallReport]:
        numbers = [NORTH, SOUTH, NORTH, SOUTH, NORTH, SOUTH]
        call = {"id": "c1", "name": "look"}
        rung = [await simulator.ring(script(number, call), gateway.handle_webhook) for number in numbers]
        return [await simulator.wait(item.id) for item in rung]

    reports = in_gateway(main, tenants=TENANTS, tools=build(look), executor_options={"limits": limit})

    assert [outputs(report) for report in reports] == [{"c1": "seen"}] * 6
    assert most == {"north": 2, "south": 2}
    assert any(overlaps)


# The same effect twice.


def test_a_call_that_is_made_again_under_another_id_while_it_runs_runs_once_and_both_get_its_result() -> None:
    paid: list[str] = []

    @tool(key="invoice", concurrency_safe=True)
    async def pay(invoice: str) -> str:
        """Pay an invoice."""
        paid.append(invoice)
        await asyncio.sleep(5)
        return f"paid {invoice}, receipt {len(paid)}"

    args = {"invoice": "A-1"}
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"say": "One moment.", "calls": [{"id": "c1", "name": "pay", "args": args}]},
                {"calls": [{"id": "c2", "name": "pay", "args": args}]},
            ],
            "otherwise": {"say": "It is paid."},
            "caller": [
                {"say": "Pay my invoice."},
                {"say": "Are you still there? Pay it!"},
                {"wait": "results", "patience": 30},
            ],
            "expect": [{"unanswered": 0}, {"never_voiced": 0}, {"duplicate_outputs": 0}],
        },
        tenants=[acme(greeting="Hello.", policy=[{"allow": "pay"}])],
        tools=[pay],
    )

    assert paid == ["A-1"]
    assert outputs(played.report) == dict.fromkeys(("c1", "c2"), "paid A-1, receipt 1")
    kinds = (CallAccepted, CallStarted, CallFinished)
    happened = [(type(event), event.call.wire_id) for event in played.of(kinds)]
    assert happened == [
        (CallAccepted, "c1"),
        (CallStarted, "c1"),
        (CallAccepted, "c2"),
        (CallFinished, "c1"),
        (CallFinished, "c2"),
    ]


# The event loop.


def test_the_calls_of_other_tenants_go_on_while_many_rules_of_one_are_worked_out() -> None:
    counted = [0]
    at: dict[str, int] = {}

    def build_act(number: int) -> Tool[..., Any]:
        @tool(name=f"tool_{number}")
        def act(text: str) -> str:
            """Act."""
            return text

        return act

    many = range(60)
    rules = [{"deny": "tool_*", "where": {"text": {"matches": f"x{number}.*y"}}} for number in many]
    tenant = TenantConfig.model_validate({"tenant_id": "north", "numbers": [NORTH], "policy": rules})
    tools = build(*map(build_act, many))

    def build_last(cfg: TenantConfig) -> None:
        at["built"] = counted[0]

    def make_context(call: IncomingCall) -> ToolContext[Any]:
        at["ready"] = counted[0]
        return ToolContext(session_id=call.session_id)

    async def count_passes() -> None:
        while True:
            await asyncio.sleep(0)
            counted[0] += 1

    async def main(simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]) -> None:
        counting = asyncio.create_task(count_passes())
        call = await simulator.ring(script(NORTH), gateway.handle_webhook)
        while "ready" not in at:
            await asyncio.sleep(0)
        counting.cancel()
        await simulator.wait(call.id)

    tools.register(build_last)
    in_gateway(main, tenants=[tenant], tools=tools, context=make_context)

    assert at["ready"] - at["built"] > 100
