"""Phone calls whose tenants, approvals, ledger, webhooks and audit are in a database, in real time."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from handrail import tool
from handrail.core.events import CallFinished, Event, LogEvent
from handrail.phone import PhoneGateway, WebhookResponse
from handrail.store import open_store
from handrail.tenants import TenantDirectory, ToolBuilder
from handrail.testing.phone import PhoneSimulator
from tests.phone.scripted import ScriptedTransport
from tests.phone.test_webhook import SECRET, incoming, request
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
        answers = await asyncio.gather(*(one.handle_webhook(headers, body) for one in self._gateways))
        assert [one.status for one in answers] == [200, 200]
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
        ("c1", "approval_required"),
        ("c2", None),
    ]
    assert [(one.tool, one.by, one.state) for one in approvals] == [("book", "customer", "used")]


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
