"""How costs grow with a size: between neighbouring sizes, and over all of them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

NOISE = 1.5
"""By this factor a cost may be above what is expected before it is called a step."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The part of a curve between two neighbouring sizes."""

    start: int
    end: int
    exponent: float
    excess: float
    """How many times what is expected the cost grows, after the quartiles of both ends were taken from it."""

    @property
    def is_step(self) -> bool:
        return self.excess > NOISE


def fit_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The slope of the line through all the points, both axes logarithmic."""
    slope, _ = statistics.linear_regression([math.log(siz) for siz in sizes], [math.log(cost) for cost in costs])
    return slope


def list_segments(curve: dict[str, Any]) -> list[Segment]:
    """Each part of a curve of benchmarks/growth.json."""
    costs = curve["microseconds"]
    points = zip(curve["sizes"], costs, curve.get("low", costs), curve.get("high", costs), strict=True)
    segments: list[Segment] = []
    for (start, cost, _, high), (end, next_cost, low, _) in pairwise(points):
        exponent = math.log(next_cost / cost) / math.log(end / start)
        excess = low / high / (end / start) ** curve["expected"]
        segments.append(Segment(start=start, end=end, exponent=exponent, excess=excess))
    return segments


def find_steepest(curve: dict[str, Any]) -> Segment:
    """The part that grows most beyond what is expected; of two alike, the one of larger sizes."""
    return max(reversed(list_segments(curve)), key=lambda segment: segment.excess)
