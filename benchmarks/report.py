"""The results as a page of the docs: a function of benchmarks/results.json, so that the two cannot drift apart."""

from collections.abc import Iterable, Sequence

from benchmarks.slopes import NOISE, find_steepest
from benchmarks.targets import CONSEQUENTIAL_ROW, MARGIN, Results, Target, find_named, list_targets


def build_targets(targets: Sequence[Target]) -> list[str]:
    """The part of the page about targets."""
    narrow = sum(target.verdict == "met narrowly" for target in targets)
    missed = sum(target.verdict == "missed" for target in targets)
    return [
        "## Targets",
        f"Of {len(targets)} targets, {len(targets) - narrow - missed} are kept, {narrow} met narrowly and {missed} "
        f"missed. A target is kept if at least {_percent(MARGIN)} of its limit are left; with less it is met narrowly: "
        "on another day or another machine it may be missed. The margin of an import is that of what Handrail adds to "
        "the floor.",
        _table(
            ("target", "measured", "margin", ""),
            [
                (
                    target.what,
                    _measured(target),
                    _percent(target.margin) if target.margin is not None else "",
                    target.verdict if target.verdict == "kept" else f"**{target.verdict}**",
                )
                for target in targets
            ],
            right=(1, 2),
        ),
    ]


def _measured(target: Target) -> str:
    return f"{_figure(target.measured)} {target.unit}" if target.unit else f"{target.measured:g}"


def _build_postgres(figures: Sequence[Results]) -> list[str]:
    cpu = [_figure(figure["cpu_us"]) if "cpu_us" in figure else "not measured" for figure in figures]
    bare, stored = figures
    ratio = _figure(stored["median"] / bare["median"])
    told = f"A call takes {ratio} × the wall time of the transaction"
    if "cpu_us" in bare:
        told += f" and {_figure(stored['cpu_us'] / bare['cpu_us'])} × its CPU, without that of the server"
    return [
        "## A consequential call in Postgres",
        "This is the cost of a [ledger](executor.md#at-most-once) that survives the process. A call is recorded before "
        "it runs, unless it is known already, and settled afterwards; each of the two waits for the disk. The first "
        "row, for comparison, is a transaction that inserts and updates a row, with the same driver and the same "
        "server, measured alternately with the second row.",
        _table(
            ("", "wall time, median, ms", "99th percentile, ms", "CPU, median, µs"),
            [
                (one["name"], _figure(one["median"]), _figure(one["p99"]), us)
                for one, us in zip(figures, cpu, strict=True)
            ],
            right=(1, 2, 3),
        ),
        f"{told}.",
    ]


def _build_durable(figures: dict[str, dict[str, float]] | None) -> list[str]:
    """The part of the page about durable calls; results of before they were measured have none."""
    if figures is None:
        return []
    return [
        "## A durable call",
        "CPU of one process, median: a `run` whose [ledger](executor.md#at-most-once) is in the database, the same of "
        "a [durable](durable.md) tool, and a round trip: `submit`, a worker in the same process, `wait`. Measured in "
        "turns.",
        _table(
            ("", "`run`, µs", "durable `run`, µs", "ratio", "round trip, µs", "ratio"),
            [
                (
                    name,
                    _figure(one["plain"]),
                    _figure(one["run"]),
                    f"{_figure(one['run'] / one['plain'])} ×",
                    _figure(one["round trip"]),
                    f"{_figure(one['round trip'] / one['plain'])} ×",
                )
                for name, one in figures.items()
            ],
            right=(1, 2, 3, 4, 5),
        ),
    ]


def _build_listeners(figures: list[Results] | None) -> list[str]:
    """The part of the page about listeners; results of before they were measured have none."""
    if figures is None:
        return []
    return [
        "## Listeners",
        "CPU of a read-only call in the thread that makes it, with the listeners for [logs, metrics and "
        "traces](monitoring.md) and the [audit](storage.md). The log writes a line of JSON for each call to a stream "
        "that forgets it; every call is traced, by the SDK of OpenTelemetry without an exporter. What other threads "
        "write later is not counted: for a log in the background that is about what the row of the log has more, and "
        "for the audit the writing to SQLite.",
        _table(
            ("listeners", "µs", "ratio"),
            [(figure["name"], _figure(figure["us"]), f"{_figure(figure['ratio'])} ×") for figure in figures],
            right=(1, 2),
        ),
    ]


def _build_service(figures: dict[str, dict[str, float]] | None) -> list[str]:
    """The part of the page about the service; results of before it was measured have none."""
    if figures is None:
        return []
    names = {
        "served": "through a socket, with SQLite: CPU of the server",
        "SQLite": "without a socket, with SQLite",
        "Postgres": "without a socket, with Postgres, without its server",
    }

    def build_cells(one: dict[str, float], kind: str) -> tuple[str, str]:
        return (_figure(one[kind]), f"{_figure(one[kind] / one['bare'])} ×") if kind in one else ("", "")

    return [
        "## A call through the service",
        "CPU of one request to [`POST /v1/calls`](service.md), beside a route of FastAPI that validates the same body "
        "and returns about the same answer. A call of the service has an API key, limits, a policy and an audit, whose "
        "writing is counted; a consequential one has a ledger in the database.",
        _table(
            ("", "bare route, µs", "read-only, µs", "ratio", "consequential, µs", "ratio"),
            [
                (name, _figure(one["bare"]), *build_cells(one, "read"), *build_cells(one, "consequential"))
                for key, name in names.items()
                if (one := figures.get(key)) is not None
            ],
            right=(1, 2, 3, 4, 5),
        ),
    ]


def _build_sqlite(figures: dict[str, float] | None) -> list[str]:
    """The part of the page about SQLite; results of before it was measured have none."""
    if figures is None:
        return []
    pairs = (
        ("CPU, a file in memory", "bare_cpu_us", "cpu_us"),
        ("wall time, on the disk", "bare_wall_us", "wall_us"),
        ("wall time of a call, one at a time and of 100 at once", "alone_wall_us", "together_wall_us"),
    )
    return [
        "## A consequential call in SQLite",
        "The first column is the ledger's own three statements (look up, claim, settle) on its own tables in bare "
        "`sqlite3`, the second one a call through the executor, which claims a new call without looking it up; both "
        "with `synchronous=FULL`, measured in turns, medians. The last row compares calls with calls: those that "
        "arrive together share commits.",
        _table(
            ("", "bare, µs", "Handrail, µs", "ratio"),
            [
                (what, _figure(figures[low]), _figure(figures[high]), f"{_figure(figures[high] / figures[low])} ×")
                for what, low, high in pairs
            ],
            right=(1, 2, 3),
        ),
    ]


def page(results: Results, growth: Results) -> str:
    """docs/speed.md."""
    machine, rounds, definitions = results["machine"], results["rounds"], results["definitions"]
    packages = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    consequential = find_named(results["dispatch"], CONSEQUENTIAL_ROW)
    low, high = (f"{load:.1f}" for load in sorted(machine["load"]))
    blocks = [
        "# Speed",
        "<!-- Written by benchmarks/run from benchmarks/results.json and growth.json: change those. -->",
        "This page shows what Handrail itself costs, compared with other libraries and with a *floor*: the code that "
        "you would write by hand. The *facade* is [`handrail.openai`](facade.md). A model responds in hundreds of "
        "milliseconds and a tool call costs microseconds, so no figure on this page is a reason to choose a library. "
        "The page exists so that it is noticed if Handrail gets slower.",
        *build_targets(list_targets(results, growth)),
        "## One tool call",
        "![One tool call and one import, as multiples of their floors](speed.svg)",
        "Each row measures the function of a library that runs one tool call, without the agent loop around it. Every "
        "row starts from the JSON text of the arguments, runs a handler that only formats a string, and ends with the "
        "same message for the model. If a library leaves a step to its caller, the benchmark does this step in the "
        "cheapest way. The floor is the code that you would write by hand for one known tool. **The rows do not do the "
        "same work**: read the last two columns first.",
        _table(
            ("row", "µs", "× floor", "quartiles", "does", "leaves out"),
            [
                (
                    item["name"],
                    _figure(item["ns"] / 1e3),
                    _figure(item["ratio"]),
                    _quartiles(item),
                    item["does"],
                    item["leaves_out"],
                )
                for item in results["dispatch"]
            ],
            right=(1, 2, 3),
        ),
        "## Import",
        "The CPU time of one statement in a new interpreter, with bytecode that is already compiled, and without the "
        "start of the interpreter itself.",
        _table(
            ("statement", "ms", "× floor", "quartiles"),
            [
                (f"`{item['name']}`", _figure(item["ns"] / 1e6), _figure(item["ratio"]), _quartiles(item))
                for item in results["imports"]
            ],
            right=(1, 2, 3),
        ),
        f"## Definitions of {definitions['count']:,} tools",
        f"Each tool has four arguments with descriptions. Making {definitions['count']:,} tools from functions with "
        f'`@tool` takes {_figure(definitions["made_ms"])} ms, once. If the column "sent" has a smaller number, the '
        "API accepts no more tools in one request, and the rest is skipped. Each caller gets definitions of its own, "
        "which it may change: the last column compares that with `json.loads`, which builds the same of their text.",
        _table(
            ("definitions", "sent", "first, ms", "again, ms", "× `json.loads`"),
            [
                (
                    row["name"],
                    f"{row['sent']:,}",
                    _figure(row["first_ms"]),
                    _figure(row["again_ms"]),
                    _figure(row["ratio"]),
                )
                for row in definitions["served"]
            ],
            right=(1, 2, 3, 4),
        ),
        *_build_listeners(results.get("listeners")),
        *_build_postgres(results["database"]),
        *_build_sqlite(results.get("sqlite")),
        *_build_durable(results.get("durable")),
        *_build_service(results.get("service")),
        "## Ten thousand calls at once",
        "The handlers sleep, and each call has its own session. The table shows the memory for each call, including "
        "its task.",
        _table(
            ("calls that", "at once", "bytes each"),
            [
                (
                    f"only {item['kind']}" if item["kind"] == "read" else "change something",
                    f"{item['calls']:,}",
                    f"{item['bytes']:,.0f}",
                )
                for item in results["crowd"]
            ],
            right=(1, 2),
        ),
        *_growth(growth),
        "## How it is measured",
        _list(
            f"The figures are CPU time of the process, not wall-clock time. There are {rounds['dispatch']} rounds. "
            "Each round takes one sample of some milliseconds of every row, in random order, all in one process and "
            "one environment. What is measured beside a database has a process of its own, without the other "
            "libraries: there a call costs a fifth less.",
            "A ratio is taken within a round, against the floor of that round; the table has the median of the ratios "
            "and their quartiles. Async rows are divided by the async floor.",
            "The garbage collector is off while a sample runs, and runs between samples. Every row is checked to give "
            "the right message before it is measured. Tracing and update checks of the other libraries are switched "
            "off.",
            f'Imports are measured in {rounds["imports"]} rounds. For definitions, "first" is the median of '
            f'{rounds["first"]} runs and "again" that of {rounds["definitions"]} rounds; for the facade and '
            'toolcall, "first" is a single run.',
        ),
        "## How to read it",
        _list(
            f"The machine is a small shared one, and other programs ran at the same time (load {low} to {high} on "
            f"{machine['cores']} cores). Trust the ratios, to about 10 %; do not compare the "
            "microseconds with those of another machine or another day.",
            f"A consequential call with its ledger in memory took {_figure(consequential['ns'] / 1e3)} µs, "
            f"{_figure(consequential['ratio'])} × its floor, on Python {machine['python']}. Python 3.11 has no eager "
            "tasks, and such a call costs more there.",
            "Calls to a database are compared by their medians: under load the slowest transactions of the driver get "
            "slower, too, and a ratio of 99th percentiles would look better for it.",
            "A handler that does nothing is the worst case for every library: the more a tool "
            "does, the smaller the share of the dispatch.",
            'The other libraries are measured without their agent loops. These loops do what the column "leaves out" '
            "lists, at a cost that this page does not show.",
        ),
        f"Measured on {results['date']}: Handrail {results['handrail']}, {packages}; pydantic {results['pydantic']}, "
        f"Python {machine['python']}, {machine['system']}, {machine['cpu']}, {machine['cores']} cores.",
        "## Run it yourself",
        "```sh\nbenchmarks/run             # measures all, and writes this page and its plots; needs Python 3.12\n"
        "benchmarks/run --quick     # fewer rounds, printed, nothing written\n"
        "benchmarks/run --growth    # what grows only: writes that section and its plot\n"
        "benchmarks/run --render    # this page and its plots from the committed results\n```",
    ]
    return "\n\n".join(blocks) + "\n"


def _growth(growth: Results) -> list[str]:
    low, high = (f"{load:.1f}" for load in sorted(growth["load"]))
    steepest = [find_steepest(curve) for curve in growth["curves"]]
    steps = [
        f"{one['grows']}, {one['operation']}, from {part.start:,} to {part.end:,}"
        for one, part in zip(growth["curves"], steepest, strict=True)
        if part.is_step
    ]
    return [
        "## What grows, and what does not",
        "![The cost of an operation against the size of what is stored, waiting or said](growth.svg)",
        "Each row measures one operation while something else grows: what is stored, waiting or said. The exponent is "
        "the slope of the line in the plot. At 0, the cost does not depend on the size. At 1, it grows in proportion "
        "to the size, which is expected only if the operation has to look at everything. A line through all sizes can "
        "hide a step, so the steepest part between two neighbouring sizes has a column of its own.",
        _table(
            ("what grows", "operation", "sizes", "µs", "exponent", "steepest part", "expected", ""),
            [
                (
                    one["grows"],
                    one["operation"],
                    " · ".join(f"{size:,}" for size in one["sizes"]),
                    " · ".join(_figure(cost) for cost in one["microseconds"]),
                    _exponent(one["exponent"]),
                    f"{_exponent(part.exponent)} ({part.start:,} … {part.end:,})",
                    f"{one['expected']}",
                    "**step**" if part.is_step else "",
                )
                for one, part in zip(growth["curves"], steepest, strict=True)
            ],
            right=(3, 4, 5, 6),
        ),
        f"A part is a step if the cost grows to more than {NOISE:g} times what is expected, even between the quartiles "
        f"that are nearest to each other. Steps: {'; '.join(steps) or 'none'}.",
        f"CPU time, the median of {growth['rounds']} samples at each size, Python {growth['python']}, on "
        f"{growth['date']}, while other programs ran (load {low} to {high}). Continuous integration asserts counts in "
        "place of times: statements of a call, rows written in a turn, messages compared in a save, texts embedded for "
        "a search, and that every query of the store uses an index.",
    ]


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _exponent(value: float) -> str:
    return f"{value + 0:.2f}".replace("-0.00", "0.00")


def _figure(value: float) -> str:
    """Three digits at most: there are no more in the measurement."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _quartiles(one: Results) -> str:
    return "" if one["name"] == one["floor"] else f"{_figure(one['low'])} – {_figure(one['high'])}"


def _list(*points: str) -> str:
    return "\n".join(f"- {point}" for point in points)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    rule = ["--:" if column in right else "---" for column in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))
