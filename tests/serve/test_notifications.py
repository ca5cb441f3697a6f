"""Notifications: what is sent to whom, signed, tried again, and never in the way of a call."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.authorize import MemoryApprovals
from handrail.core import Approval, Event, LogEvent
from handrail.errors import ConfigError, StoreError
from handrail.execute import Entry, MemoryLedger
from handrail.serve.gateway_config import Notification
from handrail.serve.notifications import Notifier
from handrail.store import SqlStore
from tests.sources.serving import listening
from tests.tools import pay


class Receiver:
    """Whoever is notified: keeps what arrives, and answers as it is told to."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.received: asyncio.Queue[tuple[dict[str, Any], dict[str, str], bytes]] = asyncio.Queue()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.app = Starlette(routes=[Route("/hook", self.take, methods=["POST"])])

    async def take(self, request: Request) -> Response:
        body = await request.body()
        self.received.put_nowait((json.loads(body), dict(request.headers), body))
        await self.may_answer.wait()
        return Response(status_code=self.answers.pop(0) if self.answers else 200)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            return (await self.received.get())[0]


@asynccontextmanager
async def notified(
    store: SqlStore, receiver: Receiver, *, heard: list[Event] | None = None, doubt_interval: float = 600, **fields: Any
) -> AsyncGenerator[Executor]:
    """An executor whose questions are sent to a receiver."""

    @tool(timeout=0.01)
    async def wire(amount: int) -> str:
        """Wire money."""
        await asyncio.sleep(60)
        return "done"

    async with listening(receiver.app) as url:
        entry = Notification.model_validate({"url": f"{url}/hook", **fields})
        async with Notifier(
            [entry], url="https://desk.example/", pauses=(0, 0), doubt_interval=doubt_interval
        ) as notifier:
            listeners = [notifier, *([heard.append] if heard is not None else [])]
            policy = Policy([Rule.allow("wire")], asks="operator")
            executor = Executor([pay, wire], policy=policy, store=store, listeners=listeners)
            notifier.follow(executor)
            yield executor


async def send(executor: Executor, call_id: str, name: str = "pay", tenant: str | None = "acme") -> ToolResult:
    call = ToolCall(id=call_id, name=name, arguments_json=f'{{"amount": {call_id}}}')
    return await executor.run(call, ToolContext(session_id="s", tenant_id=tenant, customer_id="cus"))


@pytest.mark.proves("GW-16")
async def test_a_question_is_sent_with_its_link_and_without_its_arguments(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    receiver = Receiver()
    async with notified(store, receiver, secret="env:HOOK_SECRET") as executor:
        result = await send(executor, "4711")
        async with asyncio.timeout(60):
            sent, headers, body = await receiver.received.get()
    assert result.approval is not None
    link = f"https://desk.example/decide/{result.approval.token}"
    assert sent["text"] == f"pay waits for the operator: {link}"
    assert (sent["event"], sent["tool"], sent["tenant"], sent["link"]) == ("approval_requested", "pay", "acme", link)
    assert b"4711" not in body
    at, _, signature = headers["handrail-signature"].removeprefix("t=").partition(",v1=")
    assert hmac.new(b"s3cret", f"{at}.".encode() + body, hashlib.sha256).hexdigest() == signature


async def test_arguments_are_sent_where_the_entry_says_so(store: SqlStore) -> None:
    receiver = Receiver()
    async with notified(store, receiver, include="arguments") as executor:
        await send(executor, "4711")
        assert (await receiver.next())["arguments"] == '{"amount":4711}'


async def test_a_doubt_is_sent_once_and_only_what_an_entry_wants_is_sent(store: SqlStore) -> None:
    receiver = Receiver()
    async with notified(store, receiver, on=["doubt"], tenant="acme") as executor:
        await send(executor, "1")  # A question.
        await send(executor, "2", "wire", tenant="other")
        for _ in range(2):
            assert (await send(executor, "3", "wire")).error is not None
        sent = await receiver.next()
        await send(executor, "4", "wire")
        assert (await receiver.next())["call"] == "4"
    assert (sent["event"], sent["call"], sent["link"]) == ("doubt", "3", "https://desk.example/doubts")


async def test_a_doubt_of_a_process_that_died_is_found_and_sent_once(store: SqlStore) -> None:
    @tool(timeout=0.01)
    async def wire(amount: int) -> str:
        """Wire money."""
        await asyncio.sleep(60)
        return "done"

    await send(Executor([wire], policy=Policy([Rule.allow("*")]), store=store), "1", "wire")  # Nobody listened.
    receiver = Receiver()
    async with notified(store, receiver, doubt_interval=0.01) as executor:
        assert (await receiver.next())["call"] == "1"
        await send(executor, "2")
        assert (await receiver.next())["event"] == "approval_requested"


class BrokenOnce(MemoryLedger):
    """A ledger of the host's own, with a bug that the first look meets."""

    is_broken = True

    async def find_doubts(self, **options: Any) -> list[Entry]:
        if self.is_broken:
            self.is_broken = False
            raise RuntimeError("nobody expects this")
        return await super().find_doubts(**options)


async def test_doubts_are_looked_for_after_an_exception_that_nobody_expects() -> None:
    @tool
    async def wire(amount: int) -> str:
        """Wire money."""
        raise RuntimeError("nobody knows what became of it")

    ledger = BrokenOnce()
    alone = Executor([wire], policy=Policy([Rule.allow("*")]), ledger=ledger)
    await send(alone, "1", "wire")  # Nobody listened.
    receiver = Receiver()
    async with (
        listening(receiver.app) as url,
        Notifier([Notification(url=f"{url}/hook")], url="https://desk.example", doubt_interval=0) as notifier,
    ):
        notifier.follow(alone)
        assert (await receiver.next())["call"] == "1"
    assert not ledger.is_broken


async def test_a_doubt_is_sent_however_many_older_ones_nobody_has_resolved(store: SqlStore) -> None:
    @tool(timeout=0.01)
    async def wire(amount: int) -> str:
        """Wire money."""
        await asyncio.sleep(60)
        return "done"

    alone = Executor([wire], policy=Policy([Rule.allow("*")]), store=store)  # Nobody listened.
    await asyncio.gather(*(send(alone, str(number), "wire") for number in range(100)))
    await send(alone, "100", "wire", tenant="globex")
    receiver = Receiver()
    async with notified(store, receiver, doubt_interval=0.01, tenant="globex"):
        assert (await receiver.next())["call"] == "100"


async def test_a_receiver_that_hangs_keeps_no_other_receiver_waiting(store: SqlStore) -> None:
    hanging, other = Receiver(), Receiver()
    hanging.may_answer.clear()
    async with listening(hanging.app) as first, listening(other.app) as second:
        entries = [Notification(url=f"{url}/hook") for url in (first, second)]
        async with Notifier(entries, url="https://desk.example/") as notifier:
            executor = Executor([pay], policy=Policy(asks="operator"), store=store, listeners=[notifier])
            notifier.follow(executor)
            for number in range(3):
                await send(executor, str(number))
            assert len([await other.next() for _ in range(3)]) == 3
            hanging.may_answer.set()


async def test_a_receiver_that_fails_is_tried_again_and_then_the_audit_says_so(store: SqlStore) -> None:
    heard: list[Event] = []
    receiver = Receiver(500, 503, 200, *[500] * 3, 404)
    async with notified(store, receiver, heard=heard) as executor:
        await send(executor, "1")  # Arrives at the third attempt.
        await send(executor, "2")  # Never.
        await send(executor, "3")  # Nobody there: not tried again.
        tokens = [(await receiver.next())["token"] for _ in range(7)]
        async with asyncio.timeout(60):
            while len([event for event in heard if isinstance(event, LogEvent)]) < 2:
                await asyncio.sleep(0.01)
    assert [tokens.count(token) for token in dict.fromkeys(tokens)] == [3, 3, 1]
    failed = [(event.name, event.fields["problem"]) for event in heard if isinstance(event, LogEvent)]
    assert failed == [("notification_failed", "status 500"), ("notification_failed", "status 404")]


class AwayOnce(MemoryApprovals):
    """Approvals in a database that does not answer the first look."""

    is_away = True

    async def get(self, token: str) -> Approval | None:
        if self.is_away:
            self.is_away = False
            raise StoreError("The database does not answer.")
        return await super().get(token)


async def test_a_question_is_sent_with_its_arguments_once_the_database_answers() -> None:
    receiver = Receiver()
    async with listening(receiver.app) as url:
        entry = Notification.model_validate({"url": f"{url}/hook", "include": "arguments"})
        async with Notifier([entry], url="https://desk.example", pauses=(0,)) as notifier:
            asks = Policy(asks="operator")
            executor = Executor([pay], policy=asks, approvals=AwayOnce(), listeners=[notifier])
            notifier.follow(executor)
            await send(executor, "1")
            assert (await receiver.next())["arguments"] == '{"amount":1}'


@pytest.mark.proves("GW-16")
async def test_a_receiver_that_hangs_delays_no_call(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handrail.serve.notifications._MAX_WAITING", 3)
    heard: list[Event] = []
    receiver = Receiver()
    receiver.may_answer.clear()
    async with notified(store, receiver, heard=heard) as executor:
        await send(executor, "0")
        await receiver.next()
        for number in range(1, 6):  # Each has its result while the receiver hangs.
            assert (await send(executor, str(number))).error is not None
        async with asyncio.timeout(60):
            while not any(isinstance(event, LogEvent) for event in heard):
                await asyncio.sleep(0.01)
        receiver.may_answer.set()
    assert {event.name for event in heard if isinstance(event, LogEvent)} == {"notification_dropped"}


def test_an_address_that_is_none_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="must be an http or https address") as caught:
        Notifier([Notification.model_validate({"url": "ftp://secret-token"})], url="")
    assert "secret-token" not in str(caught.value)
    with pytest.raises(ConfigError, match="must be an address that can be asked") as caught:
        Notifier([Notification.model_validate({"url": "https://secret-token.\N{SNOWMAN}"})], url="")
    assert "secret-token" not in str(caught.value)
    with pytest.raises(ConfigError, match="not set"):
        Notifier([Notification.model_validate({"url": "env:NO_SUCH_WEBHOOK"})], url="")
