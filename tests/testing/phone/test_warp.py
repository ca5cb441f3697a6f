"""Time that jumps, sockets that are real, threads that are waited for."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import aiosqlite
import pytest

from handrail import tool
from handrail.testing.phone import run_warped
from tests.phone.calls import play
from tests.tenants.samples import acme


def test_an_hour_takes_no_time_and_timers_keep_their_order() -> None:
    async def main() -> list[str]:
        done: list[str] = []

        async def sleep(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            done.append(name)

        started = asyncio.get_running_loop().time()
        await asyncio.gather(sleep(3600, "hour"), sleep(1, "second"), sleep(60, "minute"))
        assert asyncio.get_running_loop().time() - started >= 3600
        return done

    before = time.monotonic()
    assert run_warped(main()) == ["second", "minute", "hour"]
    assert time.monotonic() - before < 60


def test_a_timeout_fires_in_warped_time() -> None:
    async def main() -> None:
        async with asyncio.timeout(1000):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_warped(main())


def test_work_in_an_executor_is_not_timed_out_by_a_clock_that_jumps() -> None:
    async def main() -> str:
        async with asyncio.timeout(5):
            return await asyncio.to_thread(lambda: time.sleep(0.05) or "done")

    assert run_warped(main()) == "done"


def test_a_thread_of_somebody_else_is_not_outrun() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def work() -> None:
            time.sleep(0.02)
            loop.call_soon_threadsafe(answer.set_result, "done")

        threading.Thread(target=work).start()
        async with asyncio.timeout(60):
            return await answer

    assert run_warped(main()) == "done"


def test_sockets_carry_data_while_time_jumps() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                await asyncio.sleep(10)
                writer.write(line)
        finally:
            writer.close()

    async def main() -> list[bytes]:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            received: list[bytes] = []
            for number in range(20):
                writer.write(f"{number}\n".encode())
                async with asyncio.timeout(11):
                    received.append(await reader.readline())
            writer.close()
            await writer.wait_closed()
            return received

    assert run_warped(main()) == [f"{number}\n".encode() for number in range(20)]


def test_the_clock_stands_while_a_thread_works_and_jumps_while_it_waits() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        answers: asyncio.Queue[object] = asyncio.Queue()

        def run() -> None:
            while (function := work.get()) is not None:
                answer = function()
                loop.call_soon_threadsafe(answers.put_nowait, answer)

        threading.Thread(target=run).start()
        started = loop.time()
        for number in range(20):
            work.put(lambda: time.sleep(0.01))
            async with asyncio.timeout(0.5):  # Virtual: a clock that goes on would be past it now and then.
                await answers.get()
            if number % 5 == 0:
                await asyncio.sleep(100)
        work.put(None)
        return loop.time() - started

    assert 400 <= run_warped(main()) < 402


def test_a_database_of_a_call_is_not_outrun(tmp_path: Path) -> None:
    @tool(timeout=0.5)
    async def book(slot: str) -> str:
        """Book a slot."""
        async with aiosqlite.connect(tmp_path / "slots.db") as connection:
            await connection.execute("create table if not exists slots (slot text)")
            await connection.execute("insert into slots values (?)", (slot,))
            await connection.create_function("pause", 0, lambda: time.sleep(0.2))
            await connection.execute("select pause()")
            await connection.commit()
        return "booked"

    @tool(timeout=0.5)
    def write(slot: str) -> str:
        """Write a slot down."""
        time.sleep(0.3)
        return "written"

    names = [("c1", "book"), ("c2", "write")]
    played = play(
        {
            "model": [
                {"say": "Hello."},
                *({"calls": [{"id": id, "name": name, "args": {"slot": "9:00"}}]} for id, name in names),
                {"say": "Done."},
            ],
            "caller": [{"say": "At nine."}, {"wait": "results", "patience": 30}],
            "expect": [{"result": "c1"}, {"result": "c2"}],
        },
        tenants=[acme(greeting="Hello.", policy=[{"allow": ["book", "write"]}])],
        tools=[book, write],
    )

    assert played.report.failures == ()
