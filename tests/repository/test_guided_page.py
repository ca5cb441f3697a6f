"""The page about guided calling says what was measured."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_figures_of_the_page_are_those_of_the_results() -> None:
    rows = json.loads((ROOT / "benchmarks/guided.json").read_text())["rows"]
    page = (ROOT / "docs/guided.md").read_text()

    for name, row in rows.items():
        assert f"| {name} | {row['ms']:.2f} ms | {row['model_calls']} | {row['tokens']:,} |" in page
    one, cascade, argued = (
        rows[name] for name in ("1 tool, 2 guidelines", "cascade, no arguments", "cascade, with arguments")
    )
    assert (one["model_calls"], cascade["model_calls"], argued["model_calls"]) == (2, 3, 4)
    assert rows["22 guidelines"]["model_calls"] <= 3
    assert one["tokens"] <= 15_000 / 4
    assert one["ms"] < 2
    assert rows["200 guidelines"]["ms"] < 10
