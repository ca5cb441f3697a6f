"""What is promised about speed, and how much of each limit is left: a function of the results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.slopes import find_steepest

Results = dict[str, Any]
"""What benchmarks/results.json or growth.json holds."""

MARGIN = 0.15
"""The part of a limit that has to be left: a target with less is met by chance, on a machine like this one."""
DISPATCH_ROW, DISPATCH_LIMIT = "Handrail facade, sync", 2.5
EXECUTOR_LIMITS = (
    ("Handrail executor, a listener", "a read-only call through the executor, with a listener", 3.3),
    ("Handrail executor, a listener, context", "… whose handler takes the context", 5.0),
    ("Handrail executor, waiting", "… whose handler waits", 3.5),
)
CONSEQUENTIAL_ROW, CONSEQUENTIAL_LIMIT_US = "Handrail executor, consequential", 50.0
POSTGRES_WALL_LIMIT = 3.0
SQLITE_CPU_LIMIT, SQLITE_WALL_LIMIT, SQLITE_TOGETHER_LIMIT = 5.0, 3.0, 0.2
SERVICE_LIMIT = 3.0
EVERY_MONITOR_ROW, IN_BACKGROUND_ROW = "Log, Metrics, Traces", "Log in the background, Metrics, Traces"
AUDIT_ROW = "Audit"
LISTENER_LIMITS = {
    EVERY_MONITOR_ROW: ("with log, metrics and traces", 12.0),
    IN_BACKGROUND_ROW: ("with log (in the background), metrics and traces", 12.0),
    AUDIT_ROW: ("with the audit in SQLite, without its writing", 4.0),
}
DURABLE_LIMITS = {"run": 1.5, "round trip": 3.5}
IMPORT_ROW, IMPORT_LIMIT = "from handrail import tool", 1.3
IMPORT_LIMITS = {
    IMPORT_ROW: IMPORT_LIMIT,
    "from handrail import Executor": 1.6,
    "from handrail import Agent": 2.5,
    "from handrail.phone import PhoneGateway": 3.0,
}
DEFINITIONS_LIMIT = 1.5
MEANING_ROW, MEANING_SIZES, MEANING_LIMIT = "search by meaning, without the model", (1_000, 10_000), 12.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """What was promised, and what was measured."""

    what: str
    measured: float
    limit: float
    unit: str = "×"
    free: float = 0.0
    """The part of the limit that is not Handrail's, and of which no margin is wanted: the floor of an import."""

    @property
    def margin(self) -> float | None:
        """The part of the limit that is left, negative if it was missed; none of what must not be there at all."""
        return (self.limit - self.measured) / (self.limit - self.free) if self.limit else None

    @property
    def verdict(self) -> str:
        if self.measured > self.limit:
            return "missed"
        return "kept" if self.margin is None or self.margin >= MARGIN else "met narrowly"


def list_targets(results: Results, growth: Results) -> list[Target]:
    """Every promise of which there are figures."""
    facade = find_named(results["dispatch"], DISPATCH_ROW)["ratio"]
    cached = max(row["ratio"] for row in results["definitions"]["served"] if row["name"].startswith("`registry."))
    count = results["definitions"]["count"]
    floor = "× `import asyncio, pydantic`"
    return [
        Target(
            what=f"a sync call through the facade: at most {DISPATCH_LIMIT:g} × the floor",
            measured=facade,
            limit=DISPATCH_LIMIT,
        ),
        *_list_executor_targets(results),
        *_list_stored_targets(results),
        *(
            Target(
                what=f"`{item['name']}`: at most {IMPORT_LIMITS[item['name']]:g} {floor}",
                measured=item["ratio"],
                limit=IMPORT_LIMITS[item["name"]],
                free=1.0,
            )
            for item in results["imports"]
            if item["name"] in IMPORT_LIMITS
        ),
        Target(
            what="… and the number of providers' SDKs that come with the first of these",
            measured=len(results["sdks_loaded"]),
            limit=0,
            unit="",
        ),
        Target(
            what=f"definitions of {count:,} tools from the cache, in the slowest of the formats: "
            f"at most {DEFINITIONS_LIMIT:g} × `json.loads` of the same",
            measured=cached,
            limit=DEFINITIONS_LIMIT,
        ),
        *_list_growth_targets(growth),
    ]


def _list_executor_targets(results: Results) -> list[Target]:
    found: list[Target] = []
    for row, what, limit in EXECUTOR_LIMITS:
        ratio = find_named(results["dispatch"], row)["ratio"]
        found.append(Target(what=f"{what}: at most {limit:g} × its floor", measured=ratio, limit=limit))
    for row, (what, limit) in LISTENER_LIMITS.items() if "listeners" in results else ():
        ratio = find_named(results["listeners"], row)["ratio"]
        what = f"a read-only call {what}, CPU: at most {limit:g} × one without a listener"
        found.append(Target(what=what, measured=ratio, limit=limit))
    us = find_named(results["dispatch"], CONSEQUENTIAL_ROW)["ns"] / 1e3
    what = f"a consequential call, its ledger in memory: at most {CONSEQUENTIAL_LIMIT_US:g} µs"
    found.append(Target(what=what, measured=us, limit=CONSEQUENTIAL_LIMIT_US, unit="µs"))
    return found


def _list_stored_targets(results: Results) -> list[Target]:
    """What is stored: results of before something was measured have no target for it."""
    bare, stored = results["database"]
    found = [
        Target(
            what=f"… in Postgres, wall time, median: at most {POSTGRES_WALL_LIMIT:g} × a bare transaction of two "
            "statements",
            measured=stored["median"] / bare["median"],
            limit=POSTGRES_WALL_LIMIT,
        )
    ]
    if (sqlite := results.get("sqlite")) is not None:
        wanted = (
            ("CPU: at most {} × the same statements in `sqlite3`", "bare_cpu_us", "cpu_us", SQLITE_CPU_LIMIT),
            ("wall time: at most {} × the same", "bare_wall_us", "wall_us", SQLITE_WALL_LIMIT),
            ("100 at once: at most {} × one at a time", "alone_wall_us", "together_wall_us", SQLITE_TOGETHER_LIMIT),
        )
        found += [
            Target(what=f"… in SQLite, {what.format(f'{limit:g}')}", measured=sqlite[high] / sqlite[low], limit=limit)
            for what, low, high, limit in wanted
        ]
    for name, figures in results.get("durable", {}).items():
        for kind, limit in DURABLE_LIMITS.items():
            what = f"a durable {kind} in {name}, CPU: at most {limit:g} × a `run` that is not durable"
            found.append(Target(what=what, measured=figures[kind] / figures["plain"], limit=limit))
    if (service := results.get("service")) is not None:
        what = f"a read-only call through the service, CPU: at most {SERVICE_LIMIT:g} × a bare FastAPI route"
        ratio = service["served"]["read"] / service["served"]["bare"]
        found.append(Target(what=what, measured=ratio, limit=SERVICE_LIMIT))
    return found


def _list_growth_targets(growth: Results) -> list[Target]:
    curve = next(item for item in growth["curves"] if item["operation"] == MEANING_ROW)
    costs = dict(zip(curve["sizes"], curve["microseconds"], strict=True))
    small, large = MEANING_SIZES
    return [
        Target(
            what=f"a search by meaning in {large:,} tools: at most {MEANING_LIMIT:g} × one in {small:,}",
            measured=costs[large] / costs[small],
            limit=MEANING_LIMIT,
        ),
        Target(
            what="operations with a [step](#what-grows-and-what-does-not)",
            measured=sum(find_steepest(item).is_step for item in growth["curves"]),
            limit=0,
            unit="",
        ),
    ]


def find_named(figures: Sequence[Results], name: str) -> Results:
    """The row of this name."""
    return next(figure for figure in figures if figure["name"] == name)
