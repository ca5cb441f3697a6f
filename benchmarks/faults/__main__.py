"""Plays the faults and writes the page: `python -m benchmarks.faults [--rows NAME,…] [--faults F1,…] [--write]`.

It plays the rows whose framework is installed here; `--rows` takes the beginnings of their names. With `--write` the
rows go into `benchmarks/faults/results.json`, beside those of other environments, and `docs/faults.md` is written from
all of them. `benchmarks/run-faults` makes the environments and plays everything.
"""

import argparse
import asyncio
import json
import os
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.faults.cells import SCRIPTS, play
from benchmarks.faults.outcome import Outcome, judge
from benchmarks.faults.page import PAGE, RESULTS, ROWS, Row, render
from tests.postgres import PostgresServer


def is_installed(module: str) -> bool:
    """Whether a module can be imported here."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


async def play_row(row: Row, faults: list[str], *, times: int = 1) -> dict[str, Outcome]:
    """Play faults against one row, each time in a directory of its own; the worst outcome of several counts."""
    outcomes: dict[str, Outcome] = {}
    for fault in faults:
        if fault in row.not_run:
            continue
        played: list[Outcome] = []
        for _ in range(times if row.guarded else 1):
            with tempfile.TemporaryDirectory() as directory:
                played.append(judge(await play(row.host, fault, Path(directory), guarded=row.guarded)))
        outcomes[fault] = max(played, key=lambda one: (one.double + one.lost + one.falsely_reported, one.letters))
        print(row.name, fault, *(item.letters for item in played), flush=True)
    return outcomes


def play_on_postgres(row: Row, faults: list[str], *, times: int) -> dict[str, Outcome]:
    """The same with a server of its own, and a database for each fault."""
    server = PostgresServer()
    outcomes: dict[str, Outcome] = {}
    try:
        server.start()
        for fault in faults:
            for _ in range(times):
                os.environ["HANDRAIL_FAULTS_URL"] = server.new_database()
                outcomes |= asyncio.run(play_row(row, [fault]))
    finally:
        os.environ.pop("HANDRAIL_FAULTS_URL", None)
        server.remove()
    return outcomes


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults")
    parser.add_argument("--rows", help="only those whose names begin so, with commas")
    parser.add_argument("--faults", default=",".join(SCRIPTS), help="only these")
    parser.add_argument("--times", type=int, default=1, help="how often each cell with Handrail is played")
    parser.add_argument("--write", action="store_true", help="write the results and the page")
    parser.add_argument("--render", action="store_true", help="play nothing: write the page from the committed results")
    options = parser.parse_args()
    known = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    wanted = tuple(options.rows.split(",")) if options.rows else ("",)
    faults = options.faults.split(",")
    for row in () if options.render else ROWS:
        if not row.name.startswith(wanted) or not all(map(is_installed, row.modules)):
            continue
        if row.on_postgres:
            outcomes = play_on_postgres(row, faults, times=options.times)
        else:
            outcomes = asyncio.run(play_row(row, faults, times=options.times))
        cells = known.get(row.name, {}).get("cells", {}) | {name: asdict(one) for name, one in outcomes.items()}
        known[row.name] = {"versions": {name: version(name) for name in row.packages}, "cells": cells}
    if options.write or options.render:
        ordered = {row.name: known[row.name] for row in ROWS if row.name in known}
        RESULTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", "utf-8")
        PAGE.write_text(render(ordered), "utf-8")


if __name__ == "__main__":
    main()
