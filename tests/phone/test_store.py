"""Phone calls whose tenants, approvals, ledger, webhooks and audit are in a database, in real time."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from sqlalchemy import update

from handrail import tool
from handrail.core import CallFinished, Event, LogEvent
from handrail.errors import StoreError
from handrail.phone import PhoneGateway, WebhookResponse
from handrail.store import open_store
from handrail.store.tables import tenants
from handrail.tenants import TenantDirectory, ToolBuilder
from handrail.testing.phone import PhoneSimulator
from tests.phone.scripted import ScriptedTransport
from tests.phone.test_webhooks import SECRET, incoming, request
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres
from tests.tenants.samples import acme

FAST = {
    "think": 0.01,
    "delta": 0.001,
    "speech_rate": 1000,
    "transcription": 0.01,
    "refer": 0.01,
    "linger": 0.2,
}
BOOK = {"name": "book", "args": {"slot": "9:00"}}


class Gateways:
    """Two gateways that share a database, as in two processes; webhooks are delivered to both."""

    def __init__(self, *gateways: PhoneGateway) -> None:
        self._gateways = gateways

    async def handle_webhook(self, headers: Any, body: bytes) -> WebhookResponse:
        answers = await asyncio.gather(*(gateway.handle_webhook(headers, body) for gateway in self._gateways))
        assert [answer.status for answer in answers] == [200, 200]
        return answers[0]


@pytest.mark.parametrize("kind", DATABASES)
async def test_a_call_is_taken_by_one_of_two_processes_and_everything_about_it_is_in_the_database(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    booked: list[str] = []
    heard: list[Event] = []

    @tool
    async def book(slot: str) -> str:
        """Book an appointment."""
        booked.append(slot)
        return f"booked for {slot}"

    builder = ToolBuilder()
    builder.register(lambda cfg: book)
    script = {
        "timing": FAST,
        "model": [
            {"say": "Hello."},
            {"calls": [{"id": "c1", **BOOK}]},
            {"say": "book: slot: 9:00, yes or no?"},
            {"calls": [{"id": "c2", **BOOK}]},
            {"say": "It is booked."},
        ],
        "caller": [{"say": "Nine, please."}, {"say": "Yes."}, {"wait": "results"}],
    }
    async with open_store(new_database(kind, tmp_path, request)) as store, PhoneSimulator() as simulator:
        await store.tenants.put(acme(greeting="Hello."), who="ann")
        client = AsyncOpenAI(base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret)
        options: Any = {"client": client, "tools": builder, "store": store, "listeners": [heard.append]}
        async with (
            client,
            PhoneGateway(tenants=store.tenants, **options) as one,
            PhoneGateway(tenants=store.tenants, **options) as other,
        ):
            report = await simulator.play(script, Gateways(one, other).handle_webhook)
            await asyncio.gather(one.drain(grace=5), other.drain(grace=5))
        report.check()
        await store.audit.flush()
        facts = await store.audit.query(session_id="rtc_1", kind=CallFinished)
        approvals = await store.approvals.history()

    assert booked == ["9:00"]
    notes = [event.name for event in heard if isinstance(event, LogEvent)]
    assert (notes.count("webhook_incoming"), notes.count("webhook_duplicate")) == (1, 1)
    assert notes.count("phone_call_accepted") == 1
    assert sorted((fact.call_id, fact.error) for fact in facts) == [
        ("resp_2/c1", "approval_required"),
        ("resp_4/c2", None),
    ]
    assert [(approval.tool, approval.by, approval.state) for approval in approvals] == [("book", "customer", "used")]


async def test_while_the_store_cannot_be_reached_a_webhook_is_refused_and_taken_when_it_comes_again(
    tmp_path: Path,
) -> None:
    heard: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, LogEvent):
            heard.append(event.name)

    file = tmp_path / "phone.db"
    async with open_store(f"sqlite+aiosqlite:///{file}", timeout=0.1) as store:
        client = AsyncOpenAI(api_key="sk-test", webhook_secret=SECRET)
        transport = ScriptedTransport()
        options: Any = {"client": client, "tenants": TenantDirectory(), "listeners": [listen], "transport": transport}
        async with client, PhoneGateway(store=store, **options) as gateway:
            other = sqlite3.connect(file, isolation_level=None)
            other.execute("BEGIN EXCLUSIVE")
            answers = [(await gateway.handle_webhook(*request(incoming()))).status]
            other.execute("ROLLBACK")
            other.close()
            for _ in range(2):
                answers.append((await gateway.handle_webhook(*request(incoming()))).status)
            await gateway.drain(grace=5)

    assert answers == [503, 200, 200]
    assert [name for name in heard if name.startswith("webhook")] == [
        "webhook_refused",
        "webhook_incoming",
        "webhook_duplicate",
    ]
    assert transport.requests == ["reject 404"]


async def test_a_gateway_opens_a_store_that_nobody_opened(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/phone.db")
    client = AsyncOpenAI(api_key="sk-test", webhook_secret=SECRET)
    async with client, PhoneGateway(client=client, tenants=TenantDirectory([acme()]), store=store) as gateway:
        assert store.is_open
        assert gateway.tenant_problems == {}
    await store.aclose()


class HeldClaims:
    """Claims that are decided when the test says so: the first as given, the others as new."""

    def __init__(self, first: bool | BaseException) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.decide = asyncio.Event()
        self._first: bool | BaseException | None = first

    async def claim(self, ids: Sequence[str], *, window: float) -> bool:
        self.asked.append(tuple(ids))
        await self.decide.wait()
        decision, self._first = self._first, None
        if isinstance(decision, BaseException):
            raise decision
        return decision is not False


class HeldStore:
    """A store whose claims of webhooks are held back."""

    def __init__(self, store: Any, claims: HeldClaims) -> None:
        self.ledger, self.approvals, self.audit, self.open = store.ledger, store.approvals, store.audit, store.open
        self.webhooks = claims


async def wait_until_asked(claims: HeldClaims) -> None:
    async with asyncio.timeout(5):
        while not claims.asked:
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("first", "answers", "notes", "rejects"),
    [
        (True, [200, 200, 200], ["incoming", "duplicate", "duplicate"], 1),
        (False, [200, 200, 200], ["duplicate", "duplicate", "duplicate"], 0),
        (StoreError("gone"), [503, 503, 503], ["refused", "refused", "refused"], 0),
        (OSError("a store of somebody else"), [503, 503, 503], ["refused", "refused", "refused"], 0),
        (asyncio.CancelledError(), [503, 503, 503], ["refused", "refused", "refused"], 0),
    ],
    ids=["taken", "taken_elsewhere", "store_down", "store_broken", "store_cancels"],
)
async def test_deliveries_of_one_call_are_answered_as_the_first_is_decided(
    first: bool | BaseException, answers: list[int], notes: list[str], rejects: int, tmp_path: Path
) -> None:
    heard: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, LogEvent):
            heard.append(event.name)

    claims = HeldClaims(first)
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/phone.db") as store:
        client = AsyncOpenAI(api_key="sk-test", webhook_secret=SECRET)
        transport = ScriptedTransport()
        options: Any = {"client": client, "tenants": TenantDirectory(), "listeners": [listen], "transport": transport}
        async with client, PhoneGateway(store=HeldStore(store, claims), **options) as gateway:
            deliveries = [request(incoming(), id=id) for id in ("wh_1", "wh_1", "wh_2")]
            answering = [asyncio.create_task(gateway.handle_webhook(*delivery)) for delivery in deliveries]
            await wait_until_asked(claims)
            assert not any(item.done() for item in answering)
            claims.decide.set()
            assert [result.status for result in await asyncio.gather(*answering)] == answers
            assert sorted(name for name in heard if name.startswith("webhook")) == [
                f"webhook_{note}" for note in sorted(notes)
            ]
            assert len(claims.asked) == 1
            # Whichever of them is delivered again: it is the call now, unless the call was taken.
            again = [(await gateway.handle_webhook(*delivery)).status for delivery in reversed(deliveries)]
            await gateway.drain(grace=5)

    assert again == [200, 200, 200]
    is_refused = isinstance(first, BaseException)
    assert len(claims.asked) == (2 if is_refused else 1)
    assert transport.requests == ["reject 404"] * (rejects or int(is_refused))


async def test_a_request_that_is_cancelled_while_the_store_decides_loses_no_call(tmp_path: Path) -> None:
    claims = HeldClaims(True)
    async with open_store(f"sqlite+aiosqlite:///{tmp_path}/phone.db") as store:
        client = AsyncOpenAI(api_key="sk-test", webhook_secret=SECRET)
        transport = ScriptedTransport()
        options: Any = {"client": client, "tenants": TenantDirectory(), "transport": transport}
        async with client, PhoneGateway(store=HeldStore(store, claims), **options) as gateway:
            answering = asyncio.create_task(gateway.handle_webhook(*request(incoming())))
            await wait_until_asked(claims)
            answering.cancel()
            draining = asyncio.create_task(gateway.drain(grace=5))
            await asyncio.sleep(0)
            claims.decide.set()
            await draining
            with pytest.raises(asyncio.CancelledError):
                await answering

    assert transport.requests == ["reject 404"]


async def test_a_saved_tenant_that_is_not_valid_any_more_keeps_no_gateway_from_starting(tmp_path: Path) -> None:
    client = AsyncOpenAI(api_key="sk-test", webhook_secret=SECRET)
    async with open_store(f"sqlite:///{tmp_path}/phone.db") as store:
        await store.tenants.put(acme())
        await store._database.write(update(tenants).values(config=b'{"tenant_id": ""}'), {})
        async with client, PhoneGateway(client=client, tenants=store.tenants, store=store) as gateway:
            ((tenant_id, problem),) = gateway.tenant_problems.items()
    assert (tenant_id, "is not valid" in problem) == ("acme-corp", True)
