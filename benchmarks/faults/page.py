"""The page `docs/faults.md`, made from the results."""

# ruff: noqa: E501  # the lines of a page

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.cells import NAMES
from benchmarks.faults.outcome import LETTERS

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "faults.md"
SOURCE = "../benchmarks/faults"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the matrix."""

    name: str
    host: str
    """The module in `benchmarks/faults/hosts`."""
    guarded: bool
    packages: tuple[str, ...]
    """The distributions whose versions are shown."""
    modules: tuple[str, ...]
    """What has to be installed."""
    on_postgres: bool = False
    not_run: tuple[str, ...] = ()


NEITHER = ("F13", "F14")
"""The framework has no retry right before a tool, and adds no tools at run time."""


def _pair(title: str, host: str, packages: tuple[str, ...], modules: tuple[str, ...], **bare: Any) -> tuple[Row, Row]:
    # FastMCP's own tool asks by itself: only with Handrail an alias is another name.
    host_not_run = NEITHER if host != "fastmcp" else ()
    return (
        Row(name=title, host=host, guarded=False, packages=packages, modules=modules, **bare),
        Row(
            name=f"{title} with Handrail",
            host=host,
            guarded=True,
            packages=packages,
            modules=modules,
            not_run=tuple(fault for fault in bare.get("not_run", ()) if fault in ("F12", *host_not_run)),
        ),
    )


ROWS: tuple[Row, ...] = (
    # A tool is not retried between its approval and itself.
    *_pair("pydantic-ai", "pydantic_ai", ("pydantic-ai-slim",), ("pydantic_ai",), not_run=("F13",)),
    *_pair("LangChain", "langchain", ("langchain", "langgraph"), ("langchain", "langgraph.checkpoint.sqlite")),
    # It refuses a timeout for a sync tool when the tool is defined, so that this fault cannot occur.
    *_pair("OpenAI Agents SDK", "openai_agents", ("openai-agents",), ("agents",), not_run=("F6", *NEITHER)),
    # It has no timeout for a tool, and a model's arguments come as values: they cannot be cut.
    *_pair("Google ADK", "google_adk", ("google-adk",), ("google.adk",), not_run=("F6", "F12", *NEITHER)),
    # A voice agent stores no run and pauses none: alone there is nothing that could be resumed. It has no timeout.
    Row(
        name="LiveKit with Handrail",
        host="livekit",
        guarded=True,
        packages=("livekit-agents",),
        modules=("livekit.agents",),
        not_run=("F6", *NEITHER),
    ),
    # A client of MCP sends arguments as JSON: they cannot be cut.
    Row(
        name="MCP SDK",
        host="mcp_sdk",
        guarded=False,
        packages=("mcp",),
        modules=("fastmcp",),
        not_run=("F12", *NEITHER),
    ),
    Row(
        name="MCP SDK behind `handrail mcp gateway`",
        host="mcp_gateway",
        guarded=True,
        packages=("mcp", "handrail"),
        modules=("mcp", "jinja2"),
        not_run=("F12", *NEITHER),
    ),
    # A tool asks by itself, so that a retry outside of it asks again; an alias is the tool.
    *_pair("FastMCP", "fastmcp", ("fastmcp",), ("fastmcp",), not_run=("F12", "F14")),
    Row(
        name="Handrail on SQLite",
        host="handrail",
        guarded=True,
        packages=("handrail",),
        modules=("aiosqlite",),
        not_run=NEITHER,
    ),
    Row(
        name="Handrail on PostgreSQL",
        host="handrail",
        guarded=True,
        packages=("handrail",),
        modules=("asyncpg",),
        on_postgres=True,
        not_run=NEITHER,
    ),
)


def render(results: Mapping[str, Any]) -> str:
    """The page."""
    rows = [row for row in ROWS if row.name in results]
    faults = "\n".join(f"| {fault} | {name} |" for fault, name in NAMES.items())
    header = "| | " + " | ".join(NAMES) + " | double | lost | falsely reported |"
    table = "\n".join(
        [header, "|" + "---|" * (len(NAMES) + 4), *(_render_row(row, results[row.name]["cells"]) for row in rows)]
    )
    letters = "\n".join(f"- **{letter}** {meaning}" for letter, meaning in LETTERS.items())
    versions = {package: number for row in rows for package, number in results[row.name]["versions"].items() if number}
    measured = ", ".join(f"{package} {number}" for package, number in versions.items())
    hosts = "\n".join(
        f"- {row.name.removesuffix(' with Handrail')}: [{row.host}.py]({SOURCE}/hosts/{row.host}.py)"
        for row in rows
        if (row.guarded or row.host == "mcp_sdk") and not row.on_postgres
    )
    return TEXT.format(faults=faults, table=table, letters=letters, versions=measured, hosts=hosts, source=SOURCE)


def _render_row(row: Row, cells: Mapping[str, Any]) -> str:
    letters = [cells[fault]["letters"] if fault in cells else "–" for fault in NAMES]
    sums = [str(sum(cell[key] for cell in cells.values())) for key in ("double", "lost", "falsely_reported")]
    return "| " + " | ".join([row.name, *letters, *sums]) + " |"


TEXT = """\
# What happens under faults

<!-- Written by `benchmarks/run-faults`: change benchmarks/faults/page.py, not this page. -->

One agent with one tool, `pay(invoice_id, amount)`. A person has to approve each payment. The tool appends to a file and syncs
it, so that what really happened can be counted afterwards, whatever was killed. Fourteen things go wrong:

| | fault |
|---|---|
{faults}

Each cell is one run: the model follows a script, the framework is set up for approval and for persistence as its own
documentation says, and processes are really killed with `kill -9`. The person says yes to the payment that they want, and no to
one that they are told has been made already. After a crash or an exception the application resumes the run.

{table}

{letters}

*Double*, *lost* and *falsely reported* are sums over the row. *Double*: payments beyond the one that was wanted. *Lost*: approved payments
that did not happen, and nobody was told. *Falsely reported*: results that told the model something that is not true.

Measured with {versions}.

## How to read it

- **One run for each cell, three for the adapters and for Handrail on SQLite**, of which the worst counts. All faults but the race (F9) are
  deterministic; a cell shows what can happen, not how often.
- **An H is not a failure.** After a `kill -9` nobody can know by looking at the process whether the payment was made. Handrail
  stops until an operator has checked (`handrail doubts list`) and recorded what happened (`handrail doubts resolve`). Then the run
  continues with that outcome. Here the operator checks when the call can no longer be running; an earlier check can be wrong. An
  idempotent tool, or one with a `verify` function, needs no operator; `pay` is neither. Until the lease of a killed process is over
  (here half a second, by default 15 seconds), its call counts as in progress.
- **A dash** is a fault that the framework cannot have: a retry between the approval and the tool (F13) or a tool that is added at
  run time (F14) need a framework with such a thing.
- **LiveKit** stores no run that could be resumed, so there is no row of it alone. Its model is told that a call needs an approval,
  or is in doubt; after the customer's next words it calls again, with an id of its own. In F8 it calls with other arguments then.
- **MCP**: the server is a process of its own, and the agent is a client that sends a call again after its connection broke or
  its timeout was over, where the other applications resume their runs. A client sends complete JSON, so F12 cannot occur.
- **The gateway** is started with `--errors unknown`, because `pay` can fail after its effect. By default the gateway believes a
  server that reports an error: nothing happened, and the call may be tried again. F10 would be F,A then, as with the SDK alone.
- **What the frameworks do well alone**: a run that was killed *before* the effect is resumed and pays once (F4), with no
  operator. pydantic-ai and the OpenAI Agents SDK never run arguments that were cut off (F12). The OpenAI Agents SDK binds an
  approval to the exact call, refuses a changed state (F8), recognises a call id that comes twice (F1), and does not allow a
  timeout on a sync tool, which cannot be stopped (F6). Pausing a run takes only a few lines in
  these frameworks, and the adapters use these pauses.
- **A framework alone does not promise** at-most-once execution. The letters D and A in its row are not defects of the framework;
  they show what the adapter adds.

## The program behind each cell

The scripts and the steps of each fault are in [cells.py]({source}/cells.py), the tool and the journal in
[world.py]({source}/world.py), and the rules by which a cell gets its letter in [outcome.py]({source}/outcome.py). The agents:

{hosts}

```sh
benchmarks/run-faults                     # every row, each framework in an environment of its own; writes this page
.venv-dev/bin/python -m benchmarks.faults --rows pydantic-ai --faults F5      # one cell
```

How to put Handrail under your framework: [adapters.md](adapters.md).
"""
