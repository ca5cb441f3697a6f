"""The benchmark of growth still measures what it says."""

from pathlib import Path

import pytest

from benchmarks.growth import AXES, Axis, fit_exponent


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
