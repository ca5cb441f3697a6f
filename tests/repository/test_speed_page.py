"""The page about speed says what was measured."""

import json
from pathlib import Path

import pytest

from benchmarks import dispatch
from benchmarks.harness import Row
from benchmarks.report import build_targets, page
from benchmarks.targets import AUDIT_ROW, IN_BACKGROUND_ROW, Target, list_targets

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_one_that_the_results_make() -> None:
    results = json.loads((ROOT / "benchmarks/results.json").read_text())
    growth = json.loads((ROOT / "benchmarks/growth.json").read_text())

    assert (ROOT / "docs/speed.md").read_text() == page(results, growth)


@pytest.mark.parametrize("row", dispatch.rows(), ids=lambda row: row.name)
def test_every_row_of_handrail_comes_to_the_message_that_it_is_measured_for(row: Row) -> None:
    dispatch.check_row(row)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [(1.0, "kept"), (1.7, "kept"), (1.71, "met narrowly"), (2.0, "met narrowly"), (2.01, "missed")],
)
def test_a_target_is_kept_only_with_a_margin(measured: float, verdict: str) -> None:
    assert Target(what="a call", measured=measured, limit=2.0).verdict == verdict


def test_the_margin_of_an_import_is_that_of_what_is_added_to_the_floor() -> None:
    assert Target(what="an import", measured=1.25, limit=1.3, free=1.0).verdict == "kept"
    assert Target(what="an import", measured=1.26, limit=1.3, free=1.0).verdict == "met narrowly"


def test_what_must_not_be_there_at_all_needs_no_margin() -> None:
    assert Target(what="steps", measured=0, limit=0).verdict == "kept"
    assert Target(what="steps", measured=1, limit=0).verdict == "missed"


def test_the_page_counts_what_is_kept_and_names_what_is_not() -> None:
    targets = [Target(what=f"call {measured}", measured=measured, limit=2.0) for measured in (1.0, 1.9, 1.95, 3.0)]

    _, told, table = build_targets(targets)

    assert told.startswith("Of 4 targets, 1 are kept, 2 met narrowly and 1 missed.")
    assert "| call 1.0 | 1.00 × | 50 % | kept |" in table
    assert "| call 1.95 | 1.95 × | 3 % | **met narrowly** |" in table
    assert "| call 3.0 | 3.00 × | -50 % | **missed** |" in table


def test_the_listeners_have_a_part_of_the_page_and_targets_once_they_are_measured() -> None:
    results = json.loads((ROOT / "benchmarks/results.json").read_text())
    growth = json.loads((ROOT / "benchmarks/growth.json").read_text())
    names = ("none", "Log, Metrics, Traces", IN_BACKGROUND_ROW, AUDIT_ROW)
    figures = [{"name": name, "us": 4.0 * ratio, "ratio": float(ratio)} for ratio, name in enumerate(names, 1)]

    text = page(results | {"listeners": figures}, growth)

    assert "| Log, Metrics, Traces | 8.0 | 2.0 × |" in text or "| Log, Metrics, Traces | 8.00 | 2.00 × |" in text
    found = [
        target
        for target in list_targets(results | {"listeners": figures}, growth)
        if "without a listener" in target.what
    ]
    assert [(item.measured, item.limit) for item in found] == [(2.0, 12.0), (3.0, 12.0), (4.0, 4.0)]
