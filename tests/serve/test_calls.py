"""What an MCP client of the gateway can rely on: one question, one effect, one result, and never an HTTP error."""

import asyncio
from typing import Any

import mcp_types as types
import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolError, tool
from handrail.errors import ConfigError
from handrail.serve import build_app
from handrail.serve.mcp_calls import GatewayCalls
from handrail.sources import McpRequest
from handrail.store import SqlStore
from tests.serve.desk import Desk, open_desk, text_of

ASK = Policy(asks="operator")
MODES = ["legacy", "2026-07-28"]


class Bank:
    """A payment that can be held up, and a list of those that were made."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

        @tool
        async def pay(amount: int) -> dict[str, int]:
            """Pay."""
            if amount < 0:
                raise ToolError("The amount must be more than 0.")
            self.paid.append(amount)
            self.begun.set()
            await self.may_end.wait()
            return {"paid": amount}

        self.pay = pay


async def approve_next(desk: Desk, **decision: Any) -> None:
    """Wait until something waits, and approve it."""
    async with asyncio.timeout(60):
        while not (pending := await desk.store.approvals.pending()):
            await asyncio.sleep(0.01)
    await desk.store.approvals.approve(pending[0].token, by="operator", who="ann", **decision)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.proves("GW-03")
async def test_a_call_that_is_approved_in_time_gets_its_result_in_the_same_request(mode: str, store: SqlStore) -> None:
    bank = Bank()
    async with (
        open_desk(Executor([bank.pay], policy=ASK, store=store), store, approval_wait=55) as desk,
        desk.connect_client(mode=mode) as client,
    ):
        deciding = asyncio.create_task(approve_next(desk))
        done = await client.call_tool("pay", {"amount": 5})
        await deciding
    assert done.structured_content == {"paid": 5}
    assert bank.paid == [5]


async def test_a_client_that_wants_progress_hears_that_its_call_waits(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handrail.serve.mcp_calls._PROGRESS_SECONDS", 0.05)
    heard = asyncio.Event()
    messages: list[str | None] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        messages.append(message)
        heard.set()

    bank = Bank()
    async with (
        open_desk(Executor([bank.pay], policy=ASK, store=store), store, approval_wait=55) as desk,
        desk.connect_client() as client,
    ):
        calling = asyncio.create_task(client.call_tool("pay", {"amount": 5}, progress_callback=progress))
        await heard.wait()
        await approve_next(desk)
        await calling
    assert set(messages) == {"waiting for an operator"}


@pytest.mark.parametrize("mode", MODES)
async def test_a_denial_is_told_to_the_call_that_was_denied_and_the_next_one_is_asked_about_anew(
    mode: str, store: SqlStore
) -> None:
    bank = Bank()
    async with (
        open_desk(Executor([bank.pay], policy=ASK, store=store), store) as desk,
        desk.connect_client(mode=mode) as client,
    ):
        for reason in ("too much", "still too much"):
            assert "waits for an operator" in text_of(await client.call_tool("pay", {"amount": 5}))
            (asked,) = await store.approvals.pending()
            await store.approvals.deny(asked.token, by="operator", who="ann", reason=reason)
            denied = await client.call_tool("pay", {"amount": 5})
            assert f"the operator said no: {reason}" in text_of(denied)
    assert bank.paid == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.proves("GW-05")
async def test_a_client_that_loses_the_response_gets_the_recorded_result(mode: str, store: SqlStore) -> None:
    bank = Bank()
    bank.may_end.clear()
    allowed = Policy([Rule.allow("pay")], asks="operator")
    async with open_desk(Executor([bank.pay], policy=allowed, store=store), store) as desk:
        secret = await desk.create_key("caller")
        async with desk.connect_client(secret, mode=mode) as client:
            lost = asyncio.create_task(client.call_tool("pay", {"amount": 5}))
            await bank.begun.wait()
            lost.cancel()
            await asyncio.gather(lost, return_exceptions=True)
        bank.may_end.set()
        async with desk.connect_client(secret, mode=mode) as client:  # Another connection, the same key.
            again = await client.call_tool("pay", {"amount": 5})
            repeated = await client.call_tool("pay", {"amount": 5})
    assert again.structured_content == {"paid": 5}
    assert bank.paid == [5]
    assert "waits for an operator" in text_of(repeated)  # It was delivered: this is another payment.


async def test_an_effect_that_has_begun_is_not_cut_off_when_its_client_leaves(store: SqlStore) -> None:
    bank = Bank()
    bank.may_end.clear()
    executor = Executor([bank.pay], policy=Policy([Rule.allow("pay")]), store=store)
    calls = GatewayCalls(store, approval_wait=0)
    asked = McpRequest(session_id="ignored")
    context = await calls.make_context(asked)
    call = ToolCall(id="c-1", name="pay", arguments_json='{"amount": 5}')
    leaving = asyncio.create_task(calls.run_call(asked, executor, call, context))
    await bank.begun.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    bank.may_end.set()

    assert (await calls.run_call(asked, executor, call, context)).output == {"paid": 5}
    assert bank.paid == [5]


@pytest.mark.proves("GW-05")
async def test_equal_calls_at_once_are_one_question_and_one_effect(store: SqlStore) -> None:
    bank = Bank()
    async with (
        open_desk(Executor([bank.pay], policy=ASK, store=store), store, approval_wait=55) as desk,
        desk.connect_client() as client,
    ):
        calls = [asyncio.create_task(client.call_tool("pay", {"amount": 5})) for _ in range(5)]
        await approve_next(desk)
        done = await asyncio.gather(*calls)
    assert bank.paid == [5]
    assert len(await store.approvals.history()) == 1
    assert {str(result.structured_content) for result in done} == {"{'paid': 5}"}


async def test_a_failed_call_can_be_sent_again_and_is_asked_about_again(store: SqlStore) -> None:
    bank = Bank()
    async with (
        open_desk(Executor([bank.pay], policy=ASK, store=store), store) as desk,
        desk.connect_client() as client,
    ):
        for _ in range(2):
            assert "waits for an operator" in text_of(await client.call_tool("pay", {"amount": -1}))
            await approve_next(desk)
            assert "must be more than 0" in text_of(await client.call_tool("pay", {"amount": -1}))
    assert [approval.state for approval in await store.approvals.history()] == ["used", "used"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.proves("GW-07")
async def test_what_is_denied_is_not_listed_and_a_call_of_it_is_an_ordinary_result(mode: str, store: SqlStore) -> None:
    @tool(read_only=True)
    def look() -> str:
        """Look."""
        return "seen"

    bank = Bank()
    policy = Policy([Rule.deny("pay", tenant="acme", reason="not here")], asks="operator")
    async with open_desk(Executor([bank.pay, look], policy=policy, store=store), store) as desk:
        acme, other = await desk.create_key("caller", "a", "acme"), await desk.create_key("caller", "b", "other")
        async with desk.connect_client(acme, mode=mode) as client:
            assert [item.name for item in (await client.list_tools()).tools] == ["look"]
            denied = await client.call_tool("pay", {"amount": 5})
            assert text_of(await client.call_tool("look", {})) == "seen"  # The connection is as good as before.
        async with desk.connect_client(other, mode=mode) as client:
            assert [item.name for item in (await client.list_tools()).tools] == ["pay", "look"]
    assert denied.is_error
    assert "not here" in text_of(denied)
    assert "denied by policy" in text_of(denied)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.proves("GW-08")
async def test_a_yes_at_the_client_is_the_customers_and_never_the_operators(mode: str, store: SqlStore) -> None:
    questions: list[str] = []

    async def say_yes(context: Any, params: Any) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action="accept", content={})

    bank = Bank()
    policy = Policy([Rule.ask("pay", by="customer", where={"amount": {"below": 10}})], asks="operator")
    async with open_desk(Executor([bank.pay], policy=policy, store=store), store) as desk:
        async with desk.connect_client(mode=mode, elicitation_callback=say_yes) as client:
            assert (await client.call_tool("pay", {"amount": 5})).structured_content == {"paid": 5}
            assert "waits for an operator" in text_of(await client.call_tool("pay", {"amount": 50}))
        async with desk.connect_client(mode=mode) as client:  # It has nobody to ask.
            refused = text_of(await client.call_tool("pay", {"amount": 7}))
    assert len(questions) == 1
    assert bank.paid == [5]
    assert "does not support elicitation" in refused


@pytest.mark.proves("GW-02")
async def test_a_call_is_the_key_holders_and_their_tenants_whatever_the_client_says(store: SqlStore) -> None:
    seen: list[ToolContext[Any]] = []

    @tool(read_only=True)
    def look(context: ToolContext[str]) -> str:
        """Look who asks."""
        seen.append(context)
        return context.deps

    async with open_desk(Executor([look], store=store), store, deps="bank") as desk:
        key, secret = await store.keys.create(role="caller", who="ann", tenant_id="acme")
        for mode in MODES:
            async with desk.connect_client(secret, mode=mode) as client:
                assert text_of(await client.call_tool("look", {})) == "bank"
    assert {(item.session_id, item.customer_id, item.tenant_id) for item in seen} == {(f"mcp-{key.id}", "ann", "acme")}


async def test_one_persons_effect_is_known_under_another_key_of_theirs_and_another_persons_is_not(
    store: SqlStore,
) -> None:
    bank = Bank()
    allowed = Policy([Rule.allow("pay")], asks="operator")
    async with open_desk(Executor([bank.pay], policy=allowed, store=store), store) as desk:
        for who, expected in (("ann", "paid"), ("ann", "waits for an operator"), ("bob", "paid")):
            async with desk.connect_client(await desk.create_key("caller", who)) as client:
                assert expected in text_of(await client.call_tool("pay", {"amount": 5}))
    assert bank.paid == [5, 5]


@pytest.mark.parametrize("wait", [-1, 55.5, float("nan")])
@pytest.mark.proves("GW-03")
async def test_a_connection_is_never_held_for_longer_than_55_seconds(wait: float, store: SqlStore) -> None:
    with pytest.raises(ConfigError, match="approval_wait must be 0 to 55 seconds"):
        build_app(Executor(store=store), store=store, approval_wait=wait)
