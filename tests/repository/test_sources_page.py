"""The page about sources has the figures that were measured, and they keep what was promised."""

import json
from pathlib import Path

from benchmarks.openapi import END, START, table, targets

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks/openapi.json").read_text())


def test_the_page_has_the_figures_of_the_results() -> None:
    assert f"{START}{table(RESULTS)}{END}" in (ROOT / "docs/sources.md").read_text()


def test_what_was_promised_of_large_documents_was_measured() -> None:
    assert [what for what, is_kept in targets(RESULTS) if not is_kept] == []
