"""`handrail openapi`: lists the tools that the operations of an OpenAPI document become."""

import argparse
import asyncio
import json
from typing import Any

from handrail.core.text import escape_invisible, escape_line
from handrail.core.tool import Tool
from handrail.errors import shorten
from handrail.sources.openapi import OpenApi


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    inspects = actions.add_parser(
        "inspect", help="list its operations as tools, and those that are skipped, with the reason"
    )
    inspects.add_argument("document", help="a file, or an http or https URL")
    inspects.add_argument(
        "--include", action="append", metavar="SELECTOR", help="tag:…, path:…, method:…, GET /…, an id"
    )
    inspects.add_argument("--exclude", action="append", metavar="SELECTOR", help="leave these out")
    inspects.add_argument("--base-url", metavar="URL", help="the server, instead of the document's own")
    inspects.add_argument("--allow-private", action="store_true", help="allow servers in private networks")
    inspects.add_argument("--schemas", action="store_true", help="also print the JSON Schema of the arguments")


def run(given: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if the document has no usable operation."""
    api = OpenApi(
        given.document,
        base_url=given.base_url,
        include=given.include,
        exclude=given.exclude,
        allow_private=given.allow_private,
    )
    asyncio.run(api.load())
    for tool in api.tools():
        print(escape_line(_line(tool)))
        if given.schemas:
            print(escape_invisible(json.dumps(tool.input_schema, indent=2, ensure_ascii=False)))
    for skipped in api.skipped:
        print(escape_line(f"skipped: {skipped.name}: {skipped.reason}"))
    consequential = sum(not tool.read_only for tool in api.tools())
    print(f"{len(api.tools())} tools, {consequential} of them consequential; {len(api.skipped)} operations skipped")
    return 0 if api.tools() else 1


def _line(tool: Tool[..., Any]) -> str:
    kind = "read-only" if tool.read_only else "consequential, idempotent" if tool.idempotent else "consequential"
    place = f"{tool.metadata['method']} {tool.metadata['path']}"
    return f"{tool.name}  {place}  ({kind})  {shorten(tool.description.partition(chr(10))[0], 100)}"
