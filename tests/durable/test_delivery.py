"""Delivery within one process: who gets which id when, and what is left when it ends."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import pytest

from handrail.execute import MemoryDelivery
from tests.execute.helpers import quiet
from tests.warped import warped


class Handler:
    """A worker that notes what it gets, and holds it until it is told to go on."""

    owner, lease, definitions = "w-1", 15.0, frozenset[str]()

    def __init__(self, *, is_held: bool = False, again: Iterable[float] = ()) -> None:
        self.ids: list[str] = []
        self.running = self.most = self.ended = 0
        self.go = asyncio.Event()
        if not is_held:
            self.go.set()
        self.again = list(again)

    async def __call__(self, id: str) -> float | None:
        self.ids.append(id)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go.wait()
        self.running -= 1
        self.ended += 1
        return self.again.pop() if self.again else None


class CountedEvent(asyncio.Event):
    """An event that counts how often it is looked at."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return super().is_set()


@asynccontextmanager
async def serving(
    delivery: MemoryDelivery, handler: Handler, *, max_running: int = 1
) -> AsyncGenerator[tuple[CountedEvent, "asyncio.Task[None]"]]:
    """Serve a handler until it is stopped here; nothing of it is left after that."""
    before = asyncio.all_tasks()
    stopping = CountedEvent()
    task = asyncio.create_task(delivery.serve(handler, max_running=max_running, stopping=stopping))
    await quiet(lambda: len(handler.ids))
    yield stopping, task
    stopping.set()
    handler.go.set()
    await asyncio.wait([task])
    await quiet()
    assert asyncio.all_tasks() == before
    assert not delivery._changed  # pyright: ignore[reportPrivateUsage]


async def test_tenants_take_turns_and_of_each_the_highest_priority_comes_first() -> None:
    delivery, handler = MemoryDelivery(), Handler()
    for tenant, number, priority in [("a", 1, 0), ("a", 2, 0), ("a", 3, 5), ("b", 1, 0), (None, 1, 1), (None, 2, 2)]:
        await delivery.send(f"{tenant}-{number}", tenant=tenant, priority=priority)

    async with serving(delivery, handler) as (_, task):
        assert handler.ids == ["a-3", "b-1", "None-2", "a-1", "None-1", "a-2"]
        await delivery.send("a-4", tenant="a", priority=0)
        await quiet()
        assert handler.ids[-1] == "a-4"
    assert task.exception() is None


async def test_an_id_that_waits_is_delivered_once_and_may_be_sent_again_after_that() -> None:
    delivery, handler = MemoryDelivery(), Handler()
    for _ in range(3):
        await delivery.send("c-1", tenant="a", priority=0)

    async with serving(delivery, handler):
        assert handler.ids == ["c-1"]
        await delivery.send("c-1", tenant="a", priority=0)
        await quiet()
        assert handler.ids == ["c-1", "c-1"]


@pytest.mark.parametrize("max_running", [1, 3])
async def test_at_most_so_many_are_handled_at_once_and_who_waits_does_nothing(max_running: int) -> None:
    delivery, handler = MemoryDelivery(), Handler(is_held=True)
    for number in range(8):
        await delivery.send(f"c-{number}", tenant="a", priority=0)

    async with serving(delivery, handler, max_running=max_running) as (stopping, _):
        assert (handler.running, len(handler.ids)) == (max_running, max_running)
        looks = stopping.looks
        await quiet()
        assert stopping.looks == looks  # It does not look again and again until something changes.
        handler.go.set()
        await quiet(lambda: handler.ended)
        assert (handler.most, handler.ended) == (max_running, 8)


async def test_who_is_stopped_finishes_what_it_has_and_takes_nothing_more() -> None:
    delivery, handler = MemoryDelivery(), Handler(is_held=True)
    for number in range(2):
        await delivery.send(f"c-{number}", tenant="a", priority=0)

    async with serving(delivery, handler) as (stopping, task):
        stopping.set()
        await quiet()
        assert not task.done()
        handler.go.set()
        await asyncio.wait([task])
        assert (task.exception(), handler.ids, handler.ended) == (None, ["c-0"], 1)


async def test_who_is_cancelled_leaves_nothing_that_waits() -> None:
    async with serving(MemoryDelivery(), Handler()) as (_, task):
        task.cancel()


@warped
async def test_what_cannot_be_handled_now_comes_again_when_it_asked_for() -> None:
    delivery, handler = MemoryDelivery(), Handler(again=[30.0])
    await delivery.send("c-1", tenant="a", priority=0)

    async with serving(delivery, handler):
        await asyncio.sleep(29)
        assert handler.ids == ["c-1"]
        await asyncio.sleep(2)
        assert handler.ids == ["c-1", "c-1"]


@warped
async def test_an_id_that_cannot_be_sent_again_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Full(MemoryDelivery):
        """A delivery that takes one id."""

        async def send(self, id: str, *, tenant: str | None, priority: int) -> None:
            if self.is_full:
                raise ConnectionError("full")
            await super().send(id, tenant=tenant, priority=priority)

        is_full = False

    delivery, handler = Full(), Handler(again=[30.0])
    await delivery.send("c-1", tenant="a", priority=0)
    delivery.is_full = True
    async with serving(delivery, handler):
        await asyncio.sleep(31)

    assert handler.ids == ["c-1"]
    assert "a call could not be sent again" in caplog.text
