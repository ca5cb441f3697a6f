"""The benchmark of growth still measures what it says."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.growth import AXES, Axis
from benchmarks.slopes import find_steepest, fit_exponent, list_segments


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: f"{axis.grows}: {axis.operation}")
async def test_every_axis_can_be_set_up_and_its_operation_runs(axis: Axis, tmp_path: Path) -> None:
    async with axis.prepare(40, tmp_path) as operation:
        for _ in range(2):
            assert await operation() != []  # A query that finds nothing would measure nothing.


def test_the_exponent_is_the_slope_between_logarithms() -> None:
    sizes = (10, 100, 1_000, 10_000)

    assert fit_exponent(sizes, [7.0] * 4) == pytest.approx(0)
    assert fit_exponent(sizes, [3.0 * size for size in sizes]) == pytest.approx(1)
    assert fit_exponent(sizes, [float(size * size) for size in sizes]) == pytest.approx(2)


def build_curve(costs: list[float], *, expected: int, spread: float = 0.0) -> dict[str, Any]:
    sizes = (10, 100, 1_000, 4_200, 10_000)
    low, high = ([cost * (1 + change) for cost in costs] for change in (-spread, spread))
    return {"sizes": sizes, "microseconds": costs, "low": low, "high": high, "expected": expected}


def test_a_step_that_a_line_through_all_sizes_hides_is_found() -> None:
    # The search by meaning, before large products were done in blocks.
    curve = build_curve([33.0, 46.0, 135.0, 560.0, 7_988.0], expected=1)

    assert fit_exponent(curve["sizes"], curve["microseconds"]) < 1
    step = find_steepest(curve)
    assert (step.start, step.end) == (4_200, 10_000)
    assert step.exponent > 3
    assert [part.is_step for part in list_segments(curve)] == [False, False, False, True]


def test_what_grows_as_expected_has_no_step() -> None:
    assert not find_steepest(build_curve([10, 12, 11, 13, 12], expected=0)).is_step
    assert not find_steepest(build_curve([30, 45, 130, 560, 1_400], expected=1)).is_step
    assert find_steepest(build_curve([10, 12, 30, 31, 30], expected=0)).is_step


def test_what_may_be_noise_is_no_step() -> None:
    costs = [10.0, 10.0, 18.0, 18.0, 18.0]

    assert find_steepest(build_curve(costs, expected=0)).is_step
    assert not find_steepest(build_curve(costs, expected=0, spread=0.2)).is_step
