"""What the tests of the simulator share: a server with the official client, and calls in memory."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from handrail.testing.phone import Frame, PhoneSimulator, SimulatedCall

TOOLS: list[Any] = [{"type": "function", "name": "lookup", "parameters": {"type": "object"}}]


@asynccontextmanager
async def simulated_api() -> AsyncIterator[tuple[PhoneSimulator, AsyncOpenAI]]:
    """A simulator, and the official client that talks to it without retries."""
    async with PhoneSimulator() as simulator:
        client = AsyncOpenAI(
            base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret, max_retries=0
        )
        async with client:
            yield simulator, client


async def read_until(connection: Any, kind: str) -> list[Any]:
    """The events of a sideband up to the first of a type."""
    events: list[Any] = []
    async for event in connection:
        events.append(event)
        if event.type == kind:
            return events
    raise AssertionError(f"the sideband closed before {kind}: {[event.type for event in events]}")


def open_call(script: Mapping[str, Any] | None = None, **session: Any) -> SimulatedCall:
    """An accepted call in memory, with one sideband whose greeting of the server was taken."""
    call = SimulatedCall(script)
    assert call.request("accept", {"type": "realtime", "tools": TOOLS, **session}).status == 200
    call.connect()
    assert [frame.event and frame.event["type"] for frame in call.take()] == ["session.created"]
    return call


def types(frames: list[Frame]) -> list[str]:
    """The types of the events among frames."""
    return [frame.event["type"] for frame in frames if frame.event is not None]


def output(call_id: str, text: str = "42") -> dict[str, Any]:
    """The client event with the output of a tool."""
    item = {"type": "function_call_output", "call_id": call_id, "output": text}
    return {"type": "conversation.item.create", "item": item}


def answering(*, delay: float = 0.5, greet: bool = True) -> Callable[[SimulatedCall, Frame], None]:
    """A small correct client for calls in memory."""
    done: list[str] = []

    def answer(call: SimulatedCall, call_ids: list[str]) -> None:
        for call_id in call_ids:
            call.feed(output(call_id))
        if not call.is_response_active and not call.is_caller_speaking:
            call.feed({"type": "response.create"})

    def on_frame(call: SimulatedCall, frame: Frame) -> None:
        event = frame.event
        if event is None:
            return
        if event["type"] == "session.created" and greet:
            call.feed({"type": "response.create"})
        if event["type"] == "response.output_item.done":
            item = event["item"]
            if item["type"] == "function_call" and item["status"] == "completed":
                done.append(item["call_id"])
        if event["type"] == "response.done" and done:
            ready = list(done)
            done.clear()
            call.after(delay, lambda: answer(call, ready))

    return on_frame
