"""Time that jumps, sockets that are real, threads that are waited for."""

import asyncio
import threading
import time

import pytest

from handrail.testing.phone import run_warped


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
