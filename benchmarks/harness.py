"""Measures rows together, round by round, so that a noisy moment meets all of them and the ratios stay true."""

import asyncio
import gc
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing to measure: it does its work once each time it is called, and returns what it made."""

    name: str
    floor: str
    """The name of the row that this one is divided by; its own name for a floor."""
    run: Callable[[], Any] | Callable[[], Awaitable[Any]]
    is_async: bool = True
    does: str = ""
    leaves_out: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What the rounds say about one row: medians, and the quartiles of the ratio."""

    name: str
    floor: str
    ns: float
    ratio: float
    low: float
    high: float


def _repeat(run: Callable[[], Any], times: int) -> int:
    start = time.process_time_ns()
    for _ in range(times):
        run()
    return time.process_time_ns() - start


async def _repeat_async(run: Callable[[], Awaitable[Any]], times: int) -> int:
    start = time.process_time_ns()
    for _ in range(times):
        await run()
    return time.process_time_ns() - start


def _own_copy(function: Any) -> Any:
    """The interpreter learns per code object; with a loop of its own no row pays for what another one taught it."""
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def figure(name: str, floor: str, samples: Sequence[float], floors: Sequence[float]) -> Figure:
    """Medians over the rounds; each sample is divided by the floor of the same round."""
    ratios = [sample / base for sample, base in zip(samples, floors, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Figure(
        name=name, floor=floor, ns=statistics.median(samples), ratio=statistics.median(ratios), low=low, high=high
    )


def measure(rows: Sequence[Row], *, rounds: int, sample_ms: float = 4.0, warm_up: int = 3) -> list[Figure]:
    """CPU time of each row, per call.

    A round has one sample of each row, in an order of its own. The garbage collector is off while a sample runs, as in
    `timeit`, and runs between samples; what was there before the first one is out of its sight.
    """
    samples: dict[str, list[float]] = {row.name: [] for row in rows}
    order = list(rows)
    shuffled = random.Random(0)
    with asyncio.Runner() as runner:
        take = {row.name: _sampler(row, runner) for row in rows}
        times = {row.name: _enough(take[row.name], sample_ms) for row in rows}
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            for number in range(-warm_up, rounds):
                shuffled.shuffle(order)
                for row in order:
                    gc.collect()
                    spent = take[row.name](times[row.name])
                    if number >= 0:
                        samples[row.name].append(spent / times[row.name])
        finally:
            gc.enable()
            gc.unfreeze()
    return [figure(row.name, row.floor, samples[row.name], samples[row.floor]) for row in rows]


def _sampler(row: Row, runner: asyncio.Runner) -> Callable[[int], int]:
    if row.is_async:
        repeat_async = _own_copy(_repeat_async)
        return lambda times: runner.run(repeat_async(row.run, times))
    repeat = _own_copy(_repeat)
    return lambda times: repeat(row.run, times)


def _enough(take: Callable[[int], int], sample_ms: float) -> int:
    """How many calls make a sample long enough for the clock."""
    times = 1
    while (spent := take(times)) < sample_ms * 1e6 / 2:
        times *= 2
    return max(1, round(times * sample_ms * 1e6 / spent))
