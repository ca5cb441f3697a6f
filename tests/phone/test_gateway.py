"""The gateway: who is let in, who is turned away, and that nothing is left when it closes."""

import asyncio
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from handrail import Rule, ToolContext, tool
from handrail.core import CallFinished, Event, LogEvent
from handrail.errors import ConfigError
from handrail.phone import IncomingCall, PhoneCallEnded, PhoneGateway, replay
from handrail.tenants import NoTool, TenantConfig, TenantDirectory, TenantTrust, ToolBuilder
from handrail.testing.phone import CallReport, PhoneSimulator, run_warped
from tests.phone.calls import play
from tests.tenants.samples import acme, refer

HELLO: dict[str, Any] = {"model": [{"say": "Hello."}], "caller": [{"sleep": 3}]}
OTHER = TenantConfig(tenant_id="other", numbers=("+33200000000",), greeting="Hi.", instructions="Be kind.")


def test_two_tenants_are_told_apart_by_the_number_that_was_dialled() -> None:
    tenants = [acme(greeting="Bonjour."), OTHER]

    played = [play({**HELLO, "call": {"to": number}}, tenants=tenants) for number in ("+33100000000", "+33200000000")]

    sessions = [next(item.data["body"] for item in each.report.timeline if item.type == "accept") for each in played]
    assert [[tool["name"] for tool in session.get("tools", [])] for session in sessions] == [["request_transfer"], []]
    assert [session["tool_choice"] for session in sessions] == ["auto", "none"]
    assert sessions[1]["instructions"].startswith("Be kind.\n\nThe date and time now: ")
    assert [each.of(PhoneCallEnded)[0].tenant_id for each in played] == ["acme-corp", "other"]


@pytest.mark.parametrize(
    ("script", "tenants", "status"),
    [
        ({"call": {"to": "+33999999999"}}, [OTHER], 404),
        ({"call": {"to": "anonymous"}}, [OTHER], 404),
        ({"call": {"to": "+33200000000"}}, [OTHER.model_copy(update={"enabled": False})], 480),
        ({"call": {"to": "+33200000000"}}, [], 404),
    ],
)
def test_a_call_that_is_for_nobody_is_turned_away(script: Any, tenants: list[TenantConfig], status: int) -> None:
    played = play({**HELLO, **script}, tenants=tenants, check=False)

    assert [(request.verb, request.body) for request in played.report.http] == [("reject", {"status_code": status})]
    assert played.report.ended == "rejected"
    assert "phone_call_rejected" in played.notes


def in_gateway(main: Any, *, tenants: Iterable[TenantConfig] = (OTHER,), **options: Any) -> Any:
    """Run `main(simulator, gateway, heard)` in warped time."""

    async def run() -> Any:
        heard: list[Event] = []
        async with PhoneSimulator() as simulator:
            client = AsyncOpenAI(base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret)
            directory = options.pop("directory", None) or TenantDirectory(tenants)
            gateway = PhoneGateway(client=client, tenants=directory, listeners=[heard.append], **options)
            async with client, gateway:
                return await main(simulator, gateway, heard)

    return run_warped(run())


def to_other(**changes: Any) -> dict[str, Any]:
    return {"call": {"to": "+33200000000"}, "model": [{"say": "Hi."}], "caller": [{"sleep": 20}], **changes}


@pytest.mark.parametrize(
    ("limit", "options"), [(2, {}), (100, {"max_calls": 2}), (1_000_000, {"max_calls_per_tenant": 2})]
)
def test_more_calls_than_there_is_room_for_are_busy(limit: int, options: dict[str, Any]) -> None:
    cfg = TenantConfig.model_validate({**OTHER.model_dump(), "limits": {"max_calls": limit}})

    async def main(simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]) -> list[CallReport]:
        calls = [await simulator.ring(to_other(), gateway.handle_webhook) for _ in range(4)]
        reports = [await simulator.wait(call.id) for call in calls]
        while gateway.calls:
            await asyncio.sleep(0.1)
        again = await simulator.play(to_other(), gateway.handle_webhook)
        return [*reports, again]

    reports = in_gateway(main, tenants=[cfg], **options)

    first = [
        [(request.verb, (request.body or {}).get("status_code")) for request in report.http][:1] for report in reports
    ]
    assert sorted(str(item) for item in first[:4]) == sorted(
        ["[('accept', None)]", "[('accept', None)]", "[('reject', 486)]", "[('reject', 486)]"]
    )
    assert first[4] == [("accept", None)]


@pytest.mark.parametrize(
    "webhook", [{"copies": 3}, {"live": "before"}, {"live": "after"}, {"signature": "rotated"}, {"copies": 2, "gap": 5}]
)
def test_a_webhook_that_comes_more_than_once_makes_one_call(webhook: Any) -> None:
    async def main(
        simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]
    ) -> tuple[CallReport, list[int]]:
        report = await simulator.play(to_other(webhook=webhook), gateway.handle_webhook)
        return report, [item.status for item in simulator.webhooks]

    report, statuses = in_gateway(main)

    assert [request.verb for request in report.http] == ["accept"]
    assert set(statuses) == {200}
    report.check()


@pytest.mark.parametrize(
    ("webhook", "status"),
    [
        ({"signature": "wrong"}, 401),
        ({"signature": "missing"}, 400),
        ({"age": 400}, 401),
        ({"repeat_headers": True}, 400),
        ({"padding": 10_000_000}, 413),
    ],
)
def test_a_webhook_that_is_not_to_be_trusted_makes_no_call(webhook: Any, status: int) -> None:
    async def main(simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]) -> tuple[CallReport, Any]:
        report = await simulator.play(to_other(webhook=webhook), gateway.handle_webhook)
        return report, simulator.webhooks[0].status

    report, found = in_gateway(main)

    assert (found, report.http, report.ended) == (status, (), "unanswered")


def test_a_change_of_a_tenant_applies_to_the_next_call_and_never_to_one_under_way() -> None:
    seen: list[str] = []

    @tool(read_only=True)
    async def who(context: ToolContext) -> str:
        """Say whose call this is."""
        seen.append(context.tenant.greeting)
        return context.tenant.greeting

    builder = ToolBuilder()
    builder.register(lambda cfg: who)
    directory = TenantDirectory([OTHER])
    script = to_other(model=[{"say": "Hi."}, {"calls": [{"name": "who"}]}], caller=[{"sleep": 5}, {"say": "Who?"}])

    async def main(simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]) -> list[str]:
        first = await simulator.ring(script, gateway.handle_webhook)
        while not gateway.calls:
            await asyncio.sleep(0.1)
        directory.put(OTHER.model_copy(update={"greeting": "Changed."}))
        assert (await directory.get("other")).greeting == "Changed."  # type: ignore[union-attr]
        directory.put(TenantConfig.model_validate({**OTHER.model_dump(), "greeting": "Changed."}))
        second = await simulator.ring(script, gateway.handle_webhook)
        await simulator.wait(first.id)
        await simulator.wait(second.id)
        directory.put(TenantConfig.model_validate({**OTHER.model_dump(), "enabled": False}))
        third = await simulator.play(script, gateway.handle_webhook)
        return [request.verb for request in third.http]

    assert in_gateway(main, directory=directory, tools=builder) == ["reject"]
    assert sorted(seen) == ["Changed.", "Hi."]


@pytest.mark.proves("PH-D20")
def test_draining_takes_no_more_calls_and_settles_what_runs() -> None:
    ended: list[str] = []

    @tool
    async def write() -> str:
        """Write."""
        await asyncio.sleep(4)
        ended.append("write")
        return "written"

    builder = ToolBuilder()
    builder.register(lambda cfg: write)
    cfg = TenantConfig.model_validate({**OTHER.model_dump(), "policy": [{"allow": "write"}]})
    script = to_other(
        model=[{"say": "Hi."}, {"calls": [{"id": "c1", "name": "write"}]}], caller=[{"say": "Go."}, {"sleep": 60}]
    )

    async def main(simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]) -> Any:
        call = await simulator.ring(script, gateway.handle_webhook)
        while not (gateway.calls and gateway.calls[call.id].executor.running_calls(call.id)):
            await asyncio.sleep(0.1)
        draining = asyncio.create_task(gateway.drain(grace=1))
        await asyncio.sleep(0.1)
        refused = await simulator.play(to_other(), gateway.handle_webhook)
        await draining
        assert gateway.calls == {}
        report = simulator.report(call.id)
        assert [request.verb for request in report.http] == ["accept", "hangup"]
        assert "Goodbye." in json.dumps(report.client_events("response.create")[-1])  # Before they are hung up on.
        return [request.verb for request in refused.http], [
            event for event in heard if isinstance(event, PhoneCallEnded)
        ]

    verbs, [told] = in_gateway(main, tenants=[cfg], tools=builder)

    assert verbs == ["reject"]
    assert ended == ["write"]
    assert told.reason == "agent"


def test_the_context_of_a_call_is_made_once_and_carries_the_users_own_services() -> None:
    calls: list[IncomingCall] = []

    async def make_context(call: IncomingCall) -> ToolContext[Any]:
        calls.append(call)
        return ToolContext(session_id="ignored", customer_id="customer-7", deps={"crm": 1})

    @tool(read_only=True)
    async def look(context: ToolContext) -> dict[str, Any]:
        """Look at the context."""
        return {
            "session": context.session_id,
            "customer": context.customer_id,
            "tenant": context.tenant.tenant_id,
            "deps": context.deps,
        }

    played = play(
        {
            **HELLO,
            "model": [{"say": "Hi."}, {"calls": [{"id": "c1", "name": "look"}]}, {"say": "Ok."}],
            "caller": [{"say": "Go."}],
        },
        tenants=[acme(greeting="Hi.")],
        tools=[look],
        context=make_context,  # type: ignore[arg-type]
    )

    [call] = calls
    assert (call.caller, call.dialled, call.tenant_id) == ("+33600000001", ("+33100000000",), "acme-corp")
    [output] = played.report.client_events("conversation.item.create", item__call_id="c1")
    assert json.loads(output["item"]["output"]) == {
        "session": "rtc_1",
        "customer": "customer-7",
        "tenant": "acme-corp",
        "deps": {"crm": 1},
    }


@pytest.mark.parametrize("broken", ["context", "accept"])
def test_a_call_that_cannot_be_set_up_is_turned_away_and_costs_no_other(broken: str) -> None:
    def fail(call: IncomingCall) -> ToolContext[Any]:
        raise RuntimeError("no CRM")

    http = [{"verb": "accept", "status": 500, "times": 3}] if broken == "accept" else []
    played = play({**HELLO, "http": http}, context=fail if broken == "context" else None, check=False)

    verbs = [request.verb for request in played.report.http]
    assert verbs == (["reject"] if broken == "context" else ["accept", "accept", "accept", "reject"])
    [failed] = [event for event in played.of(LogEvent) if event.name == "phone_call_failed"]
    assert failed.severity == "error"
    assert failed.fields["reason"] == ("RuntimeError" if broken == "context" else "the provider answered 500")


def test_an_accept_without_an_answer_is_repeated() -> None:
    played = play({**HELLO, "http": [{"verb": "accept", "drop": "after"}]}, tenants=[acme(greeting="Hello.")])

    assert [request.verb for request in played.report.http] == ["accept", "accept"]
    assert played.report.ended == "caller"


def test_a_tenant_that_is_wrong_is_named_and_the_calls_of_the_others_are_taken() -> None:
    cfg = acme(features={"refer": refer(), "calender": {}})

    async def main(simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]) -> Any:
        return gateway.tenant_problems, await simulator.play(to_other(), gateway.handle_webhook)

    problems, report = in_gateway(main, tenants=[cfg, OTHER])
    assert list(problems) == ["acme-corp"]
    assert "features.calender" in problems["acme-corp"]
    report.check()


@pytest.mark.parametrize("fault", ["hangs", "cancels"])
def test_a_directory_of_tenants_that_does_not_answer_turns_the_call_away_and_costs_no_other(fault: str) -> None:
    class Directory(TenantDirectory):
        is_down = True

        async def find(self, number: str) -> TenantConfig | None:
            if self.is_down and fault == "cancels":
                raise asyncio.CancelledError
            if self.is_down:
                await asyncio.Event().wait()
            return await super().find(number)

    directory = Directory([OTHER])

    async def main(simulator: PhoneSimulator, gateway: PhoneGateway, heard: list[Event]) -> list[CallReport]:
        down = await simulator.play(to_other(), gateway.handle_webhook)
        directory.is_down = False
        return [down, await simulator.play(to_other(), gateway.handle_webhook)]

    down, again = in_gateway(main, directory=directory)
    assert [(request.verb, request.body) for request in down.http] == [("reject", {"status_code": 480})]
    again.check()


async def test_tenants_are_checked_beside_what_else_the_event_loop_does() -> None:
    is_alive, waited = threading.Event(), list[bool]()

    def build(cfg: TenantConfig) -> NoTool:
        waited.append(is_alive.wait(5))
        return NoTool("never")

    builder = ToolBuilder()
    builder.register(build)
    client = AsyncOpenAI(api_key="sk-test", webhook_secret="whsec_test")
    gateway = PhoneGateway(client=client, tenants=TenantDirectory([OTHER]), tools=builder)
    entering = asyncio.create_task(gateway.__aenter__())
    while not (waited or entering.done()):
        await asyncio.sleep(0)
        is_alive.set()
    await entering
    await gateway.__aexit__(None, None, None)
    await client.close()

    assert waited[0]


def test_a_recording_holds_everything_but_secrets_and_can_be_played_again(tmp_path: Path) -> None:
    played = play(
        {
            "model": [
                {"say": "Hello."},
                {"calls": [{"id": "c1", "name": "request_transfer", "args": {"destination_id": "sales"}}]},
                {"say": "Transfer the call to Service Commercial, yes or no?"},
                {"calls": [{"id": "c2", "name": "request_transfer", "args": {"destination_id": "sales"}}]},
                {"say": "Je vous transfère vers Service Commercial"},
            ],
            "caller": [{"say": "Sales."}, {"dtmf": "4711"}, {"say": "Yes."}, {"sleep": 20}],
            "expect": [{"ended": "transferred"}],
        },
        tenants=[acme(greeting="Hello.")],
        recordings=tmp_path,
    )

    [path] = tmp_path.iterdir()
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0]["call"]["sip_call_id"] == "sip-rtc_1@carrier.example"
    assert "acme.example" not in text
    received = [line["received"] for line in lines if "received" in line]
    assert [item["event"] for item in received if item["type"] == "input_audio_buffer.dtmf_event_received"] == ["*"] * 4
    sent = [entry for entry in played.report.timeline if entry.source == "client"]
    again = replay(path)
    assert len(again.recorded) == len(sent)
    assert again.differences == ()


def test_the_tools_of_a_tenant_may_live_elsewhere_and_a_source_that_fails_costs_its_own(tmp_path: Path) -> None:
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://shop.example"}],
        "paths": {"/stock": {"get": {"operationId": "countStock", "responses": {"200": {"description": "ok"}}}}},
    }
    (tmp_path / "shop.json").write_text(json.dumps(document))
    cfg = acme(
        greeting="Hello.",
        openapi=[{"name": "shop", "path": str(tmp_path / "shop.json")}],
        mcp_servers=[{"name": "gone", "command": ["/nowhere/server"]}],
        policy=[{"deny": "countStock"}],
    )

    played = play(HELLO, tenants=[cfg], trust=TenantTrust(commands=["/nowhere/server"], documents=[f"{tmp_path}/*"]))

    session = next(entry.data["body"] for entry in played.report.timeline if entry.type == "accept")
    assert [tool["name"] for tool in session["tools"]] == ["request_transfer", "countStock"]
    opened = {
        event.fields["source"]: event.fields["state"]
        for event in played.of(LogEvent)
        if event.name == "tool_source_opened"
    }
    assert opened == {"shop": "connected", "gone": "failed"}


def test_further_options_reach_every_executor_and_a_wrong_one_is_named() -> None:
    seen: list[str] = []

    class Hook:
        def authorised(self, call: Any, *args: Any) -> None:
            seen.append(call.name)

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    script = {"model": [{"say": "Hello."}, {"calls": [{"name": "look"}]}, {"say": "Ok."}], "caller": [{"say": "Go."}]}
    play(script, tenants=[acme(greeting="Hello.")], tools=[look], executor_options={"hooks": [Hook()]})

    assert seen == ["look"]
    for wrong in ("policy", "hoks"):
        with pytest.raises(ConfigError, match=f"got '{wrong}'"):
            PhoneGateway(client=None, tenants=TenantDirectory(), executor_options={wrong: 1})  # type: ignore[arg-type]


PAY = {
    "model": [{"say": "Hi."}, {"calls": [{"id": "c_pay", "name": "pay"}]}, {"say": "Ok."}],
    "caller": [{"say": "Pay."}],
}


def test_a_misspelt_rule_of_a_tenant_is_told_at_the_start_and_its_call_is_taken_without_tools() -> None:
    paid: list[str] = []

    @tool
    async def pay() -> str:
        """Pay."""
        paid.append("paid")
        return "paid"

    cfg = acme(greeting="Hi.", policy=[{"deny": "payy"}, {"allow": "pay"}])
    played = play(PAY, tenants=[cfg, OTHER], tools=[pay])

    assert not paid
    assert [event.result.error.code for event in played.of(CallFinished)] == ["permission_denied"]
    [note] = [item for item in played.of(LogEvent) if item.name == "tenant_invalid"]
    assert (note.tenant_id, note.severity) == ("acme-corp", "error")
    assert "'payy'" in note.fields["reason"]


def test_a_misspelt_rule_of_the_gateway_is_an_error_when_it_is_entered() -> None:
    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    cfg = acme(greeting="Hi.")
    with pytest.raises(ConfigError, match=r"unknown tool 'payy'; did you mean 'pay'"):
        play(PAY, tenants=[cfg, OTHER], tools=[pay], policy=[Rule.deny("payy")])
    # A rule about the tool of some tenants concerns no other.
    played = play(HELLO, tenants=[acme(greeting="Hi.", numbers=("+33100000000",))], policy=[Rule.deny("request_*")])
    assert "tenant_invalid" not in played.notes
