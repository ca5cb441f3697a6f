"""What runs within the time that a call has left: steps of a store are driven in the caller's own task."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from handrail.core import time_budget
from handrail.core.time_budget import ShieldedStep, TimeBudget
from tests.clocks import stopped_clock

Run = Callable[[TimeBudget, Awaitable[object]], Awaitable[object]]


async def run_step(budget: TimeBudget, awaitable: Awaitable[object]) -> object:
    return await budget.run_step(awaitable, is_plain=True)


async def run_other_step(budget: TimeBudget, awaitable: Awaitable[object]) -> object:
    return await budget.run_step(awaitable, is_plain=False)


async def run_shielded(budget: TimeBudget, awaitable: Awaitable[object]) -> object:
    return await budget.run_shielded(ShieldedStep(awaitable, is_plain=True))


async def run_other_shielded(budget: TimeBudget, awaitable: Awaitable[object]) -> object:
    return await budget.run_shielded(ShieldedStep(awaitable, is_plain=False))


every_run = pytest.mark.parametrize(
    "run", [TimeBudget.run, run_step, run_other_step, run_shielded, run_other_shielded], ids=lambda run: run.__name__
)
cancelling = pytest.mark.parametrize("run", [TimeBudget.run, run_step, run_other_step], ids=lambda run: run.__name__)


async def wait_forever(seen: list[str]) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise


async def let_others_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@every_run
async def test_the_value_of_a_step_is_returned_and_its_exception_raised(run: Run) -> None:
    async def give(value: int) -> int:
        await asyncio.sleep(0)
        waiting = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(waiting.set_result, value)
        return await waiting

    async def fail() -> None:
        waiting = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(waiting.set_exception, ValueError("no"))
        await waiting

    assert await run(TimeBudget(10), give(3)) == 3
    with pytest.raises(ValueError, match="no"):
        await run(TimeBudget(10), fail())


@every_run
async def test_anything_that_can_be_awaited_is_a_step(run: Run) -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, 5)

    assert await run(TimeBudget(10), future) == 5


@cancelling
async def test_a_step_that_is_late_is_cancelled_and_only_the_time_inside_counts(run: Run) -> None:
    seen: list[str] = []
    budget = TimeBudget(0.02)

    with pytest.raises(TimeoutError):
        await run(budget, wait_forever(seen))
    await let_others_run()
    assert seen == ["cancelled"]
    with pytest.raises(TimeoutError):  # Nothing is left.
        await run(budget, wait_forever(seen))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@cancelling
@pytest.mark.parametrize("is_late", [True, False])
async def test_a_step_that_ignores_its_cancellation_is_abandoned_and_goes_on(run: Run, is_late: bool) -> None:
    end, seen = asyncio.Event(), []

    async def ignore() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await end.wait()
            seen.append("ended")
        return "late"

    waiting = asyncio.create_task(_run(run, ignore(), 0.02 if is_late else 10))
    await asyncio.sleep(0)
    if not is_late:
        await let_others_run()
        waiting.cancel()
    with pytest.raises(TimeoutError if is_late else asyncio.CancelledError):
        await waiting
    assert seen == []
    end.set()
    await let_others_run()
    assert seen == ["ended"]


async def _run(run: Run, awaitable: Awaitable[object], seconds: float) -> object:
    return await run(TimeBudget(seconds), awaitable)


@every_run
@pytest.mark.parametrize("reaction", ["raise", "return", "fail"])
async def test_a_caller_that_is_cancelled_ends_whatever_the_step_makes_of_it(run: Run, reaction: str) -> None:
    async def react() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if reaction == "raise":
                raise
            if reaction == "fail":
                raise ValueError("cleaning up failed") from None
        return "a value"

    waiting = asyncio.create_task(_run(run, react(), 10))
    await let_others_run()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert waiting.cancelled()


@every_run
async def test_a_step_has_timeouts_of_its_own(run: Run) -> None:
    async def try_twice() -> str:
        for _ in range(2):
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.get_running_loop().create_future()
            except TimeoutError:
                await asyncio.sleep(0)
        return "after two"

    assert await run(TimeBudget(10), try_twice()) == "after two"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@every_run
async def test_a_future_that_somebody_else_cancels_does_not_cancel_the_caller(run: Run) -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)

    async def wait() -> str:
        try:
            await future
        except asyncio.CancelledError:
            return "it was cancelled"
        return "it was not"

    assert await run(TimeBudget(10), wait()) == "it was cancelled"


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_shielded_step_goes_on_when_its_time_is_used_up(is_plain: bool) -> None:
    gate = asyncio.get_running_loop().create_future()

    async def write() -> str:
        await asyncio.sleep(0)
        await gate
        await asyncio.sleep(0)
        return "written"

    step = ShieldedStep(write(), is_plain=is_plain)
    with pytest.raises(TimeoutError):
        await TimeBudget(0.02).run_shielded(step)
    assert step.rest is not None
    assert not gate.cancelled()
    gate.set_result(None)
    assert await step.rest == "written"


@pytest.mark.parametrize("is_plain", [True, False])
async def test_what_a_shielded_step_waited_for_may_fail_after_its_time(is_plain: bool) -> None:
    gate = asyncio.get_running_loop().create_future()
    seen: list[str] = []

    async def write() -> None:
        try:
            await gate
        except ValueError:
            seen.append("told")
            raise

    step = ShieldedStep(write(), is_plain=is_plain)
    with pytest.raises(TimeoutError):
        await TimeBudget(0.02).run_shielded(step)
    gate.set_exception(ValueError("disk"))
    assert step.rest is not None
    with pytest.raises(ValueError, match="disk"):
        await step.rest
    assert seen == ["told"]


async def test_a_step_inside_a_step_keeps_both_limits() -> None:
    seen: list[str] = []
    with pytest.raises(TimeoutError):
        await run_step(TimeBudget(10), run_step(TimeBudget(0.02), wait_forever(seen)))
    with pytest.raises(TimeoutError):
        await run_step(TimeBudget(0.02), run_step(TimeBudget(10), wait_forever(seen)))
    assert seen == ["cancelled", "cancelled"]


async def test_a_step_that_never_waits_for_anything_but_its_turn_is_late_too() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        await run_step(TimeBudget(0.02), spin())


async def test_a_caller_that_is_closed_closes_the_step() -> None:
    seen: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append("closed")

    running = run_step(TimeBudget(10), wait())
    running.send(None)  # As a task does.
    running.close()
    assert seen == ["closed"]


@pytest.mark.parametrize("run", [run_other_step, run_other_shielded], ids=lambda run: run.__name__)
async def test_a_timeout_inside_a_step_that_is_not_plain_never_cancels_its_caller_later(run: Run) -> None:
    ended = asyncio.Event()

    async def connect() -> None:
        try:
            async with asyncio.timeout(0.1):
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:  # What cleans up may wait, too.
                    await asyncio.sleep(0.15)
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await run(TimeBudget(0.02), connect())
    await ended.wait()
    await let_others_run()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_of_many_steps_each_ends_in_its_own_time_in_whatever_order_they_begin() -> None:
    ended: list[float] = []

    async def end(seconds: float) -> None:
        with pytest.raises(TimeoutError):
            await TimeBudget(seconds).run_step(wait_forever([]), is_plain=True)
        ended.append(seconds)

    with stopped_clock() as clock:
        began = clock.now
        steps = [asyncio.create_task(end(seconds)) for seconds in (10, 5, 30, 7, 20)]
        await TimeBudget(3).run_step(asyncio.sleep(0), is_plain=True)  # It is over before its time.
        for after, expected in ((4.9, []), (5.1, [5]), (7.1, [5, 7]), (10.1, [5, 7, 10]), (29.9, [5, 7, 10, 20])):
            clock.now = began + after
            await let_others_run()
            assert ended == expected
        clock.now = began + 30.1
        await asyncio.gather(*steps)
    assert ended == [5, 7, 10, 20, 30]


def test_the_timer_of_steps_is_that_of_their_event_loop() -> None:
    async def be_late() -> None:
        with pytest.raises(TimeoutError):
            await TimeBudget(0.01).run_step(wait_forever([]), is_plain=True)

    for _ in range(3):
        asyncio.run(be_late())
    assert sum(loop.is_closed() for loop in time_budget._timers) == 1  # Those before it are forgotten.
