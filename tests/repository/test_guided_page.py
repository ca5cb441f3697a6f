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
    assert rows["50 guidelines"]["model_calls"] <= 3
    before = {"10 guidelines": 2_129, "50 guidelines": 3_897, "200 guidelines": 4_332}
    assert all(rows[name]["tokens"] <= 0.75 * tokens for name, tokens in before.items())
    assert one["tokens"] <= 15_000 / 4
    assert one["ms"] < 2
    assert rows["200 guidelines"]["ms"] < 10
