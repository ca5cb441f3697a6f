"""`handrail mcp`: serves tools, inspects servers, and pins the definitions of their tools."""

import argparse
import asyncio
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, cast

from handrail.cli.agent_file import load_object
from handrail.cli.store_option import choose_store_url, find_user_store
from handrail.core.text import escape_line
from handrail.core.tool import Tool
from handrail.errors import ConfigError, MissingExtraError, shorten
from handrail.execute.executor import Executor
from handrail.sources.mcp.endpoint import serve_mcp
from handrail.sources.mcp.server_options import McpServer, import_with_sdk
from handrail.sources.pins import compare_pins, read_pins, write_pins
from handrail.sources.source import connect

_WHICH = "module:object or file.py:object, an McpServer or a list of them; or the URL of a server, or its command"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    serves = actions.add_parser("serve", help="serve an executor, or tools, to an MCP client")
    serves.add_argument("object", help="module:object or file.py:object, an Executor or a list of tools")
    serves.add_argument("--http", action="store_true", help="over HTTP instead of standard input and output")
    serves.add_argument("--host", default="127.0.0.1")
    serves.add_argument("--port", type=int, default=8000)
    gates = actions.add_parser(
        "gateway",
        help="put policy, approvals and a ledger between an MCP client and a server, over stdio",
        description="For the configuration file of a desktop client: start the server's COMMAND, and serve its tools "
        "over standard input and output. An operator approves with `handrail approvals`.",
    )
    gates.add_argument("--name", default="server", help="the prefix of the tools' names (default: server)")
    gates.add_argument("--trusted", action="store_true", help="trust the annotations of its tools")
    gates.add_argument("--policy", metavar="FILE", help="a policy file (default: ask for all that is not read-only)")
    gates.add_argument("--pins", metavar="FILE", help="the file of the pinned definitions")
    gates.add_argument("--approval-wait", type=float, default=25.0, metavar="SECONDS", help="0 to 55 (default: 25)")
    gates.add_argument(
        "--errors",
        choices=("nothing_happened", "unknown"),
        help="what an error that the server reports means for a call that is not read-only (default: nothing_happened)",
    )
    gates.add_argument("--timeout", type=float, metavar="SECONDS", help="how long a call may take (default: 30)")
    gates.add_argument("--store", metavar="URL", help="the database (default: $HANDRAIL_STORE, else ~/.handrail.db)")
    gates.add_argument(
        "server_command", nargs=argparse.REMAINDER, metavar="COMMAND…", help="the server and its options"
    )
    inspects = actions.add_parser("inspect", help="list the tools of a server, and those that cannot be used")
    inspects.add_argument("server", help=_WHICH)
    inspects.add_argument("--trusted", action="store_true", help="trust the annotations of its tools")
    for name, text in (
        ("pin", "pin the current definitions of all tools of a server"),
        ("diff", "show what differs from the pinned definitions"),
        ("accept", "accept changed tools"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("server", help=_WHICH)
        action.add_argument("--pins", help="the file of the pinned definitions (default: that of the server)")
        if name == "accept":
            action.add_argument(
                "tools", nargs="*", metavar="TOOL", help="the names of the tools at the server (default: all)"
            )


def run(given: argparse.Namespace) -> int:
    """Run the command and return its exit code; `diff` returns 1 if something differs."""
    if given.action == "serve":
        if not 0 <= given.port < 65536:
            raise ConfigError(f"port must be 0 to 65535, got {given.port}.")
        executor = _load_executor(given.object)
        transport = "http" if given.http else "stdio"
        asyncio.run(serve_mcp(executor, transport=transport, host=given.host, port=given.port))
        return 0
    if given.action == "gateway":
        return asyncio.run(_serve_gateway(given))
    servers = _load_servers(given.server)
    if given.action == "inspect":
        return asyncio.run(_inspect([replace(server, trusted=server.trusted or given.trusted) for server in servers]))
    return asyncio.run(_pins(given, servers))


async def _serve_gateway(given: argparse.Namespace) -> int:
    for package in ("starlette", "jinja2", "sqlalchemy", "httpx2"):
        if find_spec(package) is None:
            raise MissingExtraError(package, extra="serve")
    from handrail.serve.gateway import serve_over_stdio  # noqa: PLC0415  # optional

    command = given.server_command[1:] if given.server_command[:1] == ["--"] else given.server_command
    if not command:
        raise ConfigError("Name the command of the MCP server: handrail mcp gateway npx some-server.")
    await serve_over_stdio(
        command,
        name=given.name,
        trusted=given.trusted,
        policy=given.policy,
        pins=given.pins,
        timeout=given.timeout,
        errors=given.errors,
        approval_wait=given.approval_wait,
        store=choose_store_url(given.store, default=find_user_store),
    )
    return 0


async def _inspect(servers: Sequence[McpServer]) -> int:
    async with connect(servers) as sources:
        for name, status in sources.status.items():
            why = f": {status.reason.rstrip('.')}" if status.reason else ""
            print(escape_line(f"{name}: {status.state}{why}, {status.tools} tools"))
            for tool in sources.tools:
                if tool.source == f"mcp:{name}":
                    kind = "read-only" if tool.read_only else "consequential"
                    print(f"  {tool.name}  ({kind})  {shorten(tool.description, 100)}")
            for skipped in status.skipped:
                print(escape_line(f"  skipped: {skipped.name}: {skipped.reason}"))
            for difference in status.differences:
                print(f"  not accepted: {shorten(difference.tool)} ({difference.kind}); see `handrail mcp diff`")
        return 0 if all(status.state == "connected" for status in sources.status.values()) else 1


async def _pins(given: argparse.Namespace, servers: Sequence[McpServer]) -> int:
    code = 0
    for server in servers:
        path = given.pins or server.pins
        if path is None:
            raise ConfigError(f"{server.name!r} has no file of pins; pass --pins FILE, or McpServer(…, pins='FILE').")
        current = await _definitions(server)
        pinned = read_pins(path, server.name)
        if given.action == "pin":
            write_pins(path, server.name, current)
            print(f"{server.name}: {len(current)} tools are pinned in {path}")
        elif given.action == "accept":
            _accept(path, server.name, pinned, current, given.tools)
        else:
            differences = compare_pins(pinned, current)
            code = 1 if differences else code
            for difference in differences:
                print(f"{server.name}: {shorten(difference.tool)} is {difference.kind}\n{difference.diff}\n")
            if not differences:
                print(f"{server.name}: as accepted")
    return code


def _accept(path: Any, server: str, pinned: Any, current: dict[str, Any], tools: Sequence[str]) -> None:
    if unknown := [tool for tool in tools if tool not in current and tool not in pinned]:
        raise ConfigError(f"{server!r} has no tool {unknown[0]!r}; it has: {', '.join(map(shorten, current))}.")
    chosen = set(tools) or current.keys() | pinned.keys()
    kept = {tool: one for tool, one in pinned.items() if tool not in chosen}
    write_pins(path, server, {**kept, **{tool: one for tool, one in current.items() if tool in chosen}})
    changed = [difference.tool for difference in compare_pins(pinned, current) if difference.tool in chosen]
    print(f"{server}: {len(changed)} accepted{': ' + ', '.join(map(shorten, changed)) if changed else ''}")


async def _definitions(server: McpServer) -> dict[str, Any]:
    """Read the current definitions of a server's tools."""
    client = import_with_sdk("handrail.sources.mcp.client")
    opened = client.OpenMcpServer(replace(server, pins=None), on_change=lambda: None, secrets={})
    try:
        await opened.start()
        if opened.status.state != "connected":
            raise ConfigError(f"The MCP server {server.name!r} cannot be reached: {opened.status.reason}.")
        return opened.definitions
    finally:
        await opened.aclose()


def _load_servers(text: str) -> list[McpServer]:
    if text.startswith(("http://", "https://")):
        return [McpServer("server", url=text)]
    if " " in text:
        try:
            return [McpServer("server", command=shlex.split(text))]
        except ValueError as error:
            raise ConfigError(f"{text} is not a command: {error}.") from error
    given: object = load_object(text)
    servers = list(cast(Sequence[object], given)) if isinstance(given, list | tuple) else [given]
    if not servers or not all(isinstance(server, McpServer) for server in servers):
        raise ConfigError(f"{text} must be an McpServer or a list of them, got {type(cast(object, given)).__name__}.")
    return cast(list[McpServer], servers)


def _load_executor(text: str) -> Executor:
    given = load_object(text)
    if callable(given) and not isinstance(given, type) and not hasattr(given, "input_schema"):
        given = given()
    if isinstance(given, Executor):
        return given
    tools: object = [cast(object, given)] if isinstance(given, Tool) else given
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise ConfigError(f"{text} must be an Executor or a list of tools, got {type(tools).__name__}.")
    return Executor(cast(Any, tools))
