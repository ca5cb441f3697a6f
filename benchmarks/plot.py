"""The results as a picture."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.slopes import find_steepest, list_segments
from benchmarks.targets import DISPATCH_LIMIT, DISPATCH_ROW, IMPORT_LIMIT, IMPORT_ROW, Results

OURS, THEIRS, FLOOR, LIMIT = "#1f6feb", "#6e7781", "#afb8c1", "#cf222e"


def draw(results: Results, file: Path) -> None:
    """Write docs/speed.svg."""
    dispatch, imports = results["dispatch"], results["imports"]
    # Text stays text, and equal results give equal bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "handrail", "font.size": 9}):
        picture = Figure(figsize=(8.5, 0.32 * (len(dispatch) + len(imports)) + 1.6), layout="constrained")
        upper, lower = picture.subplots(2, 1, height_ratios=[len(dispatch), len(imports)])
        title = "One tool call, × floor (median, quartiles)"
        _points(upper, dispatch, title, DISPATCH_LIMIT, DISPATCH_ROW)
        _points(lower, imports, "Import, × import asyncio, pydantic", IMPORT_LIMIT, IMPORT_ROW)
        picture.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


def draw_growth(growth: Results, file: Path) -> None:
    """Write docs/growth.svg: cost against size, both logarithmic."""
    groups = {0: "These should stay level", 1: "These have to look at all of it"}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "handrail", "font.size": 9}):
        picture = Figure(figsize=(8.5, 9.5), layout="constrained")
        for axes, (expected, title) in zip(picture.subplots(2, 1), groups.items(), strict=True):
            curves = [curve for curve in growth["curves"] if curve["expected"] == expected]
            for number, one in enumerate(curves):
                colour = matplotlib.colormaps["tab20"](number / max(len(curves) - 1, 1))
                steepest = find_steepest(one)
                label = f"{one['grows']}: {one['operation']} ({one['exponent']:.2f}, {steepest.exponent:.2f})"
                axes.plot(one["sizes"], one["microseconds"], "o-", color=colour, label=label, markersize=4)
                costs = dict(zip(one["sizes"], one["microseconds"], strict=True))
                for step in (part for part in list_segments(one) if part.is_step):
                    ends = (step.start, step.end)
                    axes.plot(ends, [costs[end] for end in ends], color=LIMIT, linewidth=4, alpha=0.4, zorder=0)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_title(
                f"{title}: CPU time in µs (exponent, that of the steepest part; a step is red)",
                loc="left",
                fontweight="bold",
            )
            axes.set_xlabel("how much there is")
            axes.grid(color="#eaeef2")
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
        picture.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


def _points(axes: Axes, figures: list[dict[str, Any]], title: str, limit: float, limited: str) -> None:
    for place, one in enumerate(figures):
        ours = "handrail" in one["name"].lower()
        colour = FLOOR if one["name"] == one["floor"] else OURS if ours else THEIRS
        axes.hlines(place, 1, one["ratio"], color=colour, linewidth=3, alpha=0.35)
        axes.hlines(place, one["low"], one["high"], color=colour, linewidth=1.2)
        axes.plot(one["ratio"], place, "o", color=colour, markersize=6)
        axes.text(max(one["ratio"], one["high"]) * 1.08, place, f"{one['ratio']:.3g}", va="center")
    place = [figure["name"] for figure in figures].index(limited)
    axes.vlines(limit, place - 0.4, place + 0.4, color=LIMIT, linewidth=1.5)
    axes.text(limit, place - 0.45, f"target {limit}", color=LIMIT, ha="center", va="bottom", fontsize=7)
    axes.set_yticks(range(len(figures)), [figure["name"] for figure in figures])
    axes.set_xscale("log")
    axes.set_xlim(0.9, max(figure["high"] for figure in figures) * 1.6)
    axes.margins(y=0.08)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(axis="x", color="#eaeef2")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
