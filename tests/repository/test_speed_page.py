"""The page about speed says what was measured."""

import json
from pathlib import Path

from benchmarks.report import page

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_one_that_the_results_make() -> None:
    results = json.loads((ROOT / "benchmarks/results.json").read_text())
    growth = json.loads((ROOT / "benchmarks/growth.json").read_text())

    assert (ROOT / "docs/speed.md").read_text() == page(results, growth)
