"""The simulator through the official SDK: what a client of the real API sees."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from handrail.testing.phone import CallReport, PhoneSimulator, run_warped

TOOLS: list[Any] = [{"type": "function", "name": "lookup", "parameters": {"type": "object"}}]


@asynccontextmanager
async def simulator_and_client() -> AsyncIterator[tuple[PhoneSimulator, AsyncOpenAI]]:
    async with PhoneSimulator() as simulator:
        client = AsyncOpenAI(base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret)
        async with client:
            yield simulator, client


def reference_client(client: AsyncOpenAI) -> Callable[[Any, bytes], Coroutine[Any, Any, None]]:
    """A small correct client: greets, answers all calls of a response, then asks for one response."""

    async def converse(call_id: str) -> None:
        await client.realtime.calls.accept(call_id, type="realtime", tools=TOOLS)
        async with client.realtime.connect(call_id=call_id) as connection:
            await connection.response.create()
            async for event in connection:
                if event.type != "response.done":
                    continue
                calls = [item for item in event.response.output or [] if item.type == "function_call"]
                for call in (call for call in calls if call.status == "completed"):
                    await connection.conversation.item.create(
                        item={"type": "function_call_output", "call_id": call.call_id or "", "output": "42"}
                    )
                    if call.name == "request_transfer":
                        await client.realtime.calls.refer(call_id, target_uri="tel:+33155550100")
                if calls:
                    await connection.response.create()

    tasks: set[asyncio.Task[None]] = set()

    async def handle_webhook(headers: Any, body: bytes) -> None:
        event = client.webhooks.unwrap(body, dict(headers))
        assert event.type == "realtime.call.incoming"
        task = asyncio.create_task(converse(event.data.call_id))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return handle_webhook


def test_a_whole_call_through_the_real_sdk_in_warped_time() -> None:
    script = {
        "model": [
            {"say": "Bonjour, que puis-je faire pour vous ?"},
            {"calls": [{"id": "c1", "name": "lookup", "args": {"q": "stock"}}]},
            {"say": "Il y en a 42."},
            {"say": "Je vous transfère.", "calls": [{"id": "c2", "name": "request_transfer", "args": {}}]},
        ],
        "caller": [
            {"say": "Combien en avez-vous ?"},
            {"say": "Le service commercial, s'il vous plaît."},
            {"sleep": 30},
        ],
        "expect": [
            {"client": "conversation.item.create", "where": {"item.call_id": "c1"}, "within": 2.0},
            {"never": "response.create", "while": "response_active"},
            {"http": "refer", "times": 1},
            {"heard": "Il y en a 42."},
            {"ended": "transferred"},
        ],
    }

    async def main() -> CallReport:
        async with simulator_and_client() as (simulator, client):
            return await simulator.play(script, reference_client(client))

    started = time.monotonic()
    report = run_warped(main())
    report.check()
    assert report.duration > 5
    assert time.monotonic() - started < 60
    assert [line.text for line in report.transcript][:3] == [
        "Bonjour, que puis-je faire pour vous ?",
        "Combien en avez-vous ?",
        "Il y en a 42.",
    ]
    assert report.error_codes == ()
    assert set(report.time_to_voice) == {"c1"}  # the caller was gone before anything was said about the other


async def test_call_control_answers_404_for_a_call_that_does_not_exist() -> None:
    async with simulator_and_client() as (_, client):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.realtime.calls.hangup("rtc_nobody")
    assert caught.value.code == "call_id_not_found"
