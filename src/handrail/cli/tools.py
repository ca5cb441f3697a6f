"""`handrail tools`: lists, shows and calls tools, and says what could be better about them."""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from msgspec import Struct

from handrail.authorize.policy import Policy
from handrail.authorize.policy_file import load_policy
from handrail.cli.agent_file import load_agent_file
from handrail.cli.policy import add_tool_options, open_tools
from handrail.core.context import ToolContext
from handrail.core.text import escape_invisible, escape_line
from handrail.core.tool import Tool
from handrail.core.values import ToolCall
from handrail.errors import ConfigError
from handrail.execute.executor import Executor
from handrail.formats import anthropic, gemini, mcp, openai_chat, openai_realtime, openai_responses
from handrail.registry.registry import ToolRegistry

FORMATS: Final = {
    "openai_responses": openai_responses,
    "openai_chat": openai_chat,
    "openai_realtime": openai_realtime,
    "anthropic": anthropic,
    "gemini": gemini,
    "mcp": mcp,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listed = actions.add_parser("list", help="list tools", description="List tools with their flags.")
    show = actions.add_parser(
        "show", help="show one tool", description="Show a tool as it is, or as a provider gets it."
    )
    show.add_argument("name", metavar="NAME")
    show.add_argument("--format", choices=sorted(FORMATS), help="the definition as this provider gets it")
    call = actions.add_parser(
        "call",
        help="call one tool",
        description="Call a tool through an executor: validated, and decided by the rules. Without --policy only a "
        "read-only tool runs. Exits with 0 if it succeeded, with 1 if it was refused or failed.",
    )
    call.add_argument("name", metavar="NAME")
    call.add_argument("arguments", nargs="?", default="{}", metavar="JSON", help="the arguments (default: {})")
    call.add_argument("--policy", metavar="FILE", help="the rules that decide")
    call.add_argument("--store", metavar="URL", help="keep the ledger and the approvals here (default: in memory)")
    call.add_argument("--session", default="command-line")
    call.add_argument("--customer", help="whose call it is")
    call.add_argument("--call-id", default="call-1", help="the same id again is the same call (default: call-1)")
    lint = actions.add_parser(
        "lint",
        help="say what could be better",
        description="Say what could be better about tools: thin descriptions, consequential tools without a key or a "
        "timeout, what a provider drops. Exits with 1 if there is anything.",
    )
    for part in (listed, show, call, lint):
        add_tool_options(part)
        part.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    async with open_tools(options) as tools:
        if options.action == "list":
            return _list(tools, as_json=options.json)
        if options.action == "show":
            return _show(ToolRegistry(tools), options)
        if options.action == "call":
            return await _call(tools, options)
        return _lint(tools, as_json=options.json)


def _list(tools: list[Tool[..., Any]], *, as_json: bool) -> int:
    for tool in tools:
        if as_json:
            print(escape_invisible(json.dumps(describe(tool), ensure_ascii=False)))
            continue
        first = tool.description.strip().splitlines()[0] if tool.description.strip() else "(no description)"
        print(escape_line(f"{tool.name}  {', '.join(list_flags(tool))}  {tool.source}  {first}"))
    print(f"{len(tools)} tools", file=sys.stderr)
    return 0


def list_flags(tool: Tool[..., Any]) -> list[str]:
    """The flags of a tool, in words."""
    flags = ["read-only" if tool.read_only else "consequential"]
    named = (("concurrency_safe", "concurrency-safe"), ("idempotent", "idempotent"), ("repeatable", "repeatable"))
    flags += [text for name, text in named if getattr(tool, name)]
    flags += ["key"] * (tool.key is not None) + ["verify"] * (tool.verify is not None)
    return flags


def describe(tool: Tool[..., Any]) -> dict[str, Any]:
    """A tool as JSON."""
    return {
        "name": tool.name,
        "description": tool.description,
        "source": tool.source,
        "flags": list_flags(tool),
        "timeout": tool.timeout,
        "input_schema": dict(tool.input_schema),
        "output_schema": None if tool.output_schema is None else dict(tool.output_schema),
    }


def _show(registry: ToolRegistry, options: argparse.Namespace) -> int:
    tool = registry.get(options.name)
    if options.format is None:
        print(escape_invisible(json.dumps(describe(tool), indent=2, ensure_ascii=False)))
        return 0
    definitions = FORMATS[options.format].tools([tool])
    print(escape_invisible(json.dumps(list(definitions), indent=2, ensure_ascii=False)))
    for note in (*definitions.notes, *definitions.skipped):
        print(escape_line(f"{note.tool}: {note.text}"), file=sys.stderr)
    return 1 if definitions.skipped else 0


async def _call(tools: list[Tool[..., Any]], options: argparse.Namespace) -> int:
    policy = None
    if options.policy is not None:
        read = load_policy(options.policy)
        policy = Policy(read.rules, default=read.default, asks="operator")
    deps = None if options.agent is None else load_agent_file(options.agent).make_deps()
    executor = Executor(tools, policy=policy or Policy(asks="operator"), store=options.store, scope="session")
    context = ToolContext(session_id=options.session, customer_id=options.customer, deps=deps)
    async with executor:
        result = await executor.run(
            ToolCall(id=options.call_id, name=options.name, arguments_json=options.arguments), context
        )
    if options.json:
        failure = result.error
        error = None if failure is None else {"code": failure.code, "message": failure.message}
        print(
            escape_invisible(
                json.dumps({"ok": result.ok, "output": result.output, "error": error}, default=str, ensure_ascii=False)
            )
        )
    else:
        print(result.for_model())
    if result.approval is not None and options.store is not None:
        print(f"handrail approvals approve {result.approval.token} --who NAME --store {options.store}", file=sys.stderr)
    return 0 if result.ok else 1


def _lint(tools: list[Tool[..., Any]], *, as_json: bool) -> int:
    if not tools:
        raise ConfigError("There are no tools to look at.")
    problems = [problem for tool in tools for problem in lint_tool(tool)]
    for name, wire in FORMATS.items():
        definitions = wire.tools(tools)
        problems += [LintProblem(tool=note.tool, text=f"{name}: {note.text}") for note in definitions.notes]
        problems += [LintProblem(tool=note.tool, text=f"{name}: not sent: {note.text}") for note in definitions.skipped]
    for problem in problems:
        if as_json:
            print(escape_invisible(json.dumps({"tool": problem.tool, "text": problem.text}, ensure_ascii=False)))
        else:
            print(escape_line(f"{problem.tool}: {problem.text}"))
    print(f"{len(tools)} tools, {len(problems)} notes", file=sys.stderr)
    return 1 if problems else 0


_MIN_DESCRIPTION: Final = 20
"""Characters below which a description says little more than the name."""


class LintProblem(Struct, frozen=True, kw_only=True):
    """Something about one tool."""

    tool: str
    text: str


def lint_tool(tool: Tool[..., Any]) -> Iterator[LintProblem]:
    """What could be better about a tool, whatever provider it is for."""
    description = tool.description.strip()
    if not description:
        yield LintProblem(tool=tool.name, text="has no description: a model knows its name only; write a docstring")
    elif len(description) < _MIN_DESCRIPTION or description.lower().replace("_", " ") == tool.name.replace("_", " "):
        yield LintProblem(tool=tool.name, text=f"its description is thin: {description!r}; say when to call it")
    properties = tool.input_schema.get("properties", {})
    if isinstance(properties, Mapping):
        for name, schema in cast(Mapping[str, Any], properties).items():
            if isinstance(schema, Mapping) and not _says_something(cast(Mapping[str, Any], schema)):
                yield LintProblem(tool=tool.name, text=f"the argument {name!r} has neither a description nor a type")
    if tool.read_only:
        return
    if tool.key is None and not tool.repeatable:
        yield LintProblem(
            tool=tool.name,
            text="is consequential and has no key: two calls are the same effect only if all arguments are equal",
        )
    if tool.timeout is None:
        yield LintProblem(tool=tool.name, text="is consequential and has no timeout: it has the executor's")
    if tool.verify is None and not tool.idempotent:
        yield LintProblem(
            tool=tool.name,
            text="is consequential and neither idempotent nor has verify: after a crash an operator has to find out",
        )


def _says_something(schema: Mapping[str, Any]) -> bool:
    return bool(schema.keys() & {"description", "type", "$ref", "enum", "const", "anyOf", "oneOf", "allOf", "title"})
