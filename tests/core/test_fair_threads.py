"""Threads for what takes long: what one owner asks for keeps no other waiting."""

import asyncio
import threading

import pytest

from handrail.core.fair_threads import FairThreads


async def test_what_one_owner_asks_for_runs_one_at_a_time_and_keeps_no_other_waiting() -> None:
    threads, running, most = FairThreads("test", max_workers=2), 0, 0
    begun, ends = threading.Event(), threading.Event()

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        begun.set()
        ends.wait()
        running -= 1

    flood = [asyncio.create_task(threads.run("acme", work)) for _ in range(20)]
    await asyncio.to_thread(begun.wait)
    assert await threads.run("globex", str.upper, "x") == "X"
    ends.set()
    await asyncio.gather(*flood)
    assert most == 1


async def test_what_was_given_up_still_counts_until_it_has_ended() -> None:
    threads, begun, ends, order = FairThreads("test"), threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        ends.wait()
        order.append("first")

    first = asyncio.create_task(threads.run("acme", work))
    await asyncio.to_thread(begun.wait)
    second = asyncio.create_task(threads.run("acme", order.append, "second"))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not second.done()
    ends.set()
    await second
    assert order == ["first", "second"]


async def test_an_error_is_raised_to_the_caller_and_the_next_one_runs() -> None:
    threads = FairThreads("test")
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.run("acme", int, "x")
    assert await threads.run("acme", int, "5") == 5


def test_what_goes_on_after_the_end_of_an_event_loop_keeps_no_other_loop_waiting() -> None:
    threads, begun, ends = FairThreads("test"), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        ends.wait()

    async def give_up() -> None:
        running = asyncio.create_task(threads.run("acme", work))
        await asyncio.to_thread(begun.wait)
        running.cancel()

    async def ask() -> str:
        async with asyncio.timeout(10):
            return await threads.run("acme", str.upper, "x")

    asyncio.run(give_up())
    try:
        assert asyncio.run(ask()) == "X"
    finally:
        ends.set()
