"""docs/faults.md is made from benchmarks/faults/results.json, and shows what is promised of the adapters."""

import json
from typing import Any

import pytest

from benchmarks.faults.cells import NAMES
from benchmarks.faults.page import PAGE, RESULTS, ROWS, render

MEASURED: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))


def test_the_page_is_the_one_that_the_results_make() -> None:
    """Red means: run `python -m benchmarks.faults --render`."""
    assert PAGE.read_text("utf-8") == render(MEASURED)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_was_measured_and_with_handrail_nothing_is_double_lost_or_falsely_reported(row: Any) -> None:
    cells = MEASURED[row.name]["cells"]

    assert set(cells) == set(NAMES) - set(row.not_run)
    if row.guarded:
        sums = {key: sum(cell[key] for cell in cells.values()) for key in ("double", "lost", "falsely_reported")}
        assert sums == {"double": 0, "lost": 0, "falsely_reported": 0}
        assert {cell["letters"] for cell in cells.values()} <= {"✓", "H"}
