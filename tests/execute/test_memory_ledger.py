"""The ledger in memory has limits, and never forgets that something was done."""

from typing import Any

import pytest

from handrail import ConfigError, Executor, tool
from handrail.execute import MemoryLedger
from tests.execute.helpers import ALLOWED, at, call, code_of


@pytest.mark.parametrize("output", ["x" * 10_000, ["x" * 9_996]], ids=["text", "json"])
async def test_over_its_bytes_the_ledger_forgets_results_and_not_that_they_were_done(output: Any) -> None:
    paid: list[str] = []

    @tool(key="invoice")
    async def pay(invoice: str, note: str) -> Any:
        """Pay."""
        paid.append(invoice)
        return output

    executor = Executor([pay], policy=ALLOWED, ledger=MemoryLedger(max_bytes=35_000))
    calls = [call("pay", f"c-{n}", invoice=f"i-{n}", note="n" * 2_000) for n in range(5)]
    for item in calls:
        assert (await executor.run(item, at())).output == output
    again = [await executor.run(item, at()) for item in calls]

    assert len(paid) == 5
    assert [item.origin for item in again] == ["replayed"] * 5
    left_out = "[The result of `pay` is left out: it is not kept any more.]"
    assert [item.output for item in again] == [left_out] * 3 + [output] * 2

    other = await executor.run(call("pay", "c-9", invoice="i-0", note="another"), at())
    assert code_of(other) == "duplicate_call"
    assert other.error is not None
    assert "the rest is left out: it is not kept any more" in other.error.message
    assert len(other.error.message) < 2_000
    assert len(paid) == 5


async def test_entries_whose_outcome_is_unknown_are_found_among_many_that_are_settled() -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        if amount % 5 == 0:
            raise ConnectionError("lost")
        return "paid"

    executor = Executor([pay], policy=ALLOWED, ledger=MemoryLedger(max_entries=8, keep_for=0))
    codes = [code_of(await executor.run(call("pay", f"c-{n}", amount=n), at())) for n in range(20)]

    assert codes == ["outcome_unknown" if n % 5 == 0 else None for n in range(20)]
    assert [doubt.call_id for doubt in await executor.doubts()] == ["c-0", "c-5", "c-10", "c-15"]
    await executor.resolve(session_id="s-1", call_id="c-0", happened=False, who="ann")
    assert [doubt.call_id for doubt in await executor.doubts()] == ["c-5", "c-10", "c-15"]


def test_the_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_bytes must be 0 or more, got -1"):
        MemoryLedger(max_bytes=-1)
