"""The hostile loops of `benchmarks.hostile`, a few rounds of each: they find nothing, and they can find something."""

import random
import time

import pytest

from benchmarks import hostile
from handrail.execute import MemoryLedger


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
async def test_a_few_rounds_of_every_loop_are_clean() -> None:
    row, chance = hostile.Row("rounds"), random.Random(7)
    for number in range(15):
        await hostile.cancel_one(row, chance, MemoryLedger(), f"c-{number}")
        await hostile.return_one(row, chance, MemoryLedger(), f"r-{number}")
    await hostile.mutate_responses(row, chance, time.monotonic())

    assert row.is_clean, row
    assert row.tries > 45


async def test_a_ledger_that_forgets_is_found_out() -> None:
    class Forgetful(MemoryLedger):
        async def settle(self, entry: object) -> None:
            self.__init__()

    row = hostile.Row("forgetful")
    for number in range(10):
        await hostile.return_one(row, random.Random(number), Forgetful(), f"r-{number}")

    assert row.double > 0
