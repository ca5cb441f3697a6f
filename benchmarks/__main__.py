"""The command behind benchmarks/run."""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import (
    crowd,
    definitions,
    dispatch,
    growth,
    harness,
    imports,
    listeners,
    peers,
    plot,
    report,
    service,
    targets,
)

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "speed.md"
PLOT = ROOT / "docs" / "speed.svg"
GROWTH_RESULTS = ROOT / "benchmarks" / "growth.json"
GROWTH_PLOT = ROOT / "docs" / "growth.svg"


def main() -> None:
    """Measure and write, or only write."""
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, printed, nothing written")
    parser.add_argument("--growth", action="store_true", help="measure what grows only, and write its part of the page")
    parser.add_argument("--render", action="store_true", help="the page and the plot from the committed results")
    options = parser.parse_args()
    if options.quick:
        quick = measure({"dispatch": 25, "imports": 5, "first": 1, "definitions": 10, "database": 100, "service": 1})
        sys.stdout.write(report.page(quick, growth.measure(rounds=3)))
        return
    if not options.render:
        growing = growth.measure()
        GROWTH_RESULTS.write_text(json.dumps(growing, indent=2, ensure_ascii=False) + "\n", "utf-8")
    if not options.render and not options.growth:
        results = measure(
            {"dispatch": 200, "imports": 25, "first": 3, "definitions": 50, "database": 2000, "service": 5}
        )
        RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", "utf-8")
    results = json.loads(RESULTS.read_text("utf-8"))
    PAGE.parent.mkdir(exist_ok=True)
    growing = json.loads(GROWTH_RESULTS.read_text("utf-8"))
    PAGE.write_text(report.page(results, growing), "utf-8")
    plot.draw(results, PLOT)
    plot.draw_growth(growing, GROWTH_PLOT)
    for target in targets.list_targets(results, growing):
        print(f"{target.verdict:12}  {target.what}: {target.measured:.3g} {target.unit}")


def measure(rounds: dict[str, int]) -> targets.Results:
    """Everything, in this process and in interpreters of its own."""
    load = os.getloadavg()[0]
    rows = [*dispatch.rows(), *asyncio.run(peers.rows())]
    for row in rows:
        dispatch.check_row(row)
    print("one tool call …", file=sys.stderr)
    calls = harness.measure(rows, rounds=rounds["dispatch"])
    print("listeners …", file=sys.stderr)
    listened = listeners.measure_all(rounds=rounds["dispatch"])
    print("imports …", file=sys.stderr)
    imported = imports.measure(rounds=rounds["imports"])
    print("definitions …", file=sys.stderr)
    made_ms, served = definitions.measure(rounds=rounds["definitions"], first_rounds=rounds["first"])
    print("Postgres …", file=sys.stderr)
    stored = measure_alone("database", calls=rounds["database"])
    print("SQLite …", file=sys.stderr)
    in_file = measure_alone("sqlite_file", calls=rounds["database"] // 2)
    print("durable calls …", file=sys.stderr)
    durable = measure_alone("durable_cost", calls=rounds["database"] // 5)
    print("the service …", file=sys.stderr)
    through_service = service.measure_all(rounds=rounds["service"])
    print("ten thousand calls at once …", file=sys.stderr)
    crowded = crowd.measure()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "handrail": version("handrail"),
        "pydantic": version("pydantic"),
        "versions": peers.versions(),
        "machine": {
            "cpu": cpu(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "load": [load, os.getloadavg()[0]],
        },
        "rounds": rounds,
        "dispatch": [
            {**asdict(one), "does": row.does, "leaves_out": row.leaves_out}
            for row, one in zip(rows, calls, strict=True)
        ],
        "listeners": listened,
        "imports": [asdict(item) for item in imported],
        "sdks_loaded": imports.sdks_loaded(imports.TOOL),
        "definitions": {
            "count": definitions.COUNT,
            "made_ms": made_ms,
            "served": [asdict(item) for item in served],
        },
        "database": stored,
        "sqlite": in_file,
        "durable": durable,
        "service": through_service,
        "crowd": crowded,
    }


def measure_alone(module: str, *, calls: int) -> Any:
    """What `measure` of a module says in a process that has nothing but Handrail, as a user's has.

    In this one all the other libraries are loaded, and calls to a database cost a fifth more.
    """
    program = f"import json, sys; from benchmarks import {module} as m; json.dump(m.measure(calls={calls}), sys.stdout)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def cpu() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


if __name__ == "__main__":
    main()
