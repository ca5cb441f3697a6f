"""The program of `benchmarks.durable`, for some seconds: it finds nothing, and it can find something."""

from pathlib import Path

import pytest

from benchmarks.durable import Chaos, Harm, Line, Report
from handrail import ToolResult
from tests.postgres import new_database
from tests.postgres import postgres as postgres


@pytest.mark.proves("DU-01", "DU-02")
@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.slow])]
)
async def test_workers_that_are_killed_and_frozen_lose_nothing_and_pay_nothing_twice(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    chaos = Chaos(new_database(database, tmp_path, request), tmp_path, seed=3)

    report = await chaos.run(6, every=1.0)

    assert report.is_clean, report.wrong
    assert report.calls >= 12
    assert report.harms


def paid(pid: int, *, key: str = "k", began: float = 1.0, at: float = 1.0) -> Line:
    return Line("paid", "pay", pid, key, began, at)


def count(folder: Path, calls: dict[str, tuple[ToolResult | None, list[Line]]], *harms: Harm) -> Report:
    chaos = Chaos("sqlite+aiosqlite://", folder, seed=1)
    chaos.report.harms.extend(harms)
    for invoice, (result, lines) in calls.items():
        chaos.count_call(invoice, result, lines)
    return chaos.report


def test_it_can_find_something(tmp_path: Path) -> None:
    done, failed = ToolResult(output="paid"), ToolResult(error="nothing was done")

    report = count(
        tmp_path,
        {
            "pay_found-1": (done, [paid(1), paid(2)]),
            "pay_idempotent-1": (done, [paid(1), paid(2)]),
            "pay_idempotent-2": (done, [paid(1), paid(2, key="other")]),
            "pay_found-2": (None, [paid(1)]),
            "pay_found-3": (done, []),
            "pay_missed-1": (failed, [paid(1)]),
            "pay_missed-2": (failed, []),
        },
    )

    assert (report.double, report.lost, report.false, report.not_done) == (2, 1, 2, 1)
    assert len(report.wrong) == 5


def test_who_was_frozen_in_the_instant_of_paying_is_counted_on_its_own(tmp_path: Path) -> None:
    frozen = Harm("freeze", 1, began=2.0, ended=6.0)
    done = ToolResult(output="paid")

    across = count(tmp_path, {"pay_missed-1": (done, [paid(2, at=5.0), paid(1, began=1.99, at=6.01)])}, frozen)
    after = count(tmp_path, {"pay_missed-1": (done, [paid(2, at=5.0), paid(1, began=6.01, at=6.02)])}, frozen)

    assert (across.double, across.past_lease) == (0, 1)
    assert (after.double, after.past_lease) == (1, 0)
