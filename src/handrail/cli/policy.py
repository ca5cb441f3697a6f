"""`handrail policy check` finds rules that can never apply; `handrail policy test` decides recorded calls again."""

import argparse
import asyncio
import inspect
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from handrail.authorize.policy import Policy
from handrail.authorize.policy_file import load_policy
from handrail.cli.agent_file import AgentFile, load_agent_file, load_object
from handrail.cli.store_option import add_store_option, open_chosen_store
from handrail.core.failure_results import format_time
from handrail.core.text import escape_line, parse_duration
from handrail.core.tool import Tool
from handrail.define.options import ToolFlags
from handrail.errors import ConfigError
from handrail.execute.executor import Executor
from handrail.registry.registry import ToolRegistry
from handrail.serve.policy_replay import replay_policy
from handrail.sources.source import Source, connect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="find rules that can never apply",
        description="Find rules that can never apply. Exits with 0 if every rule can, with 1 if one cannot, and with 2 "
        "if names were not checked, because tools are missing: none were given, or a source cannot be reached.",
    )
    check.add_argument(
        "policy", nargs="?", metavar="POLICY", help="a YAML or JSON file (default: the policy of the agent file)"
    )
    add_tool_options(check)
    test = actions.add_parser(
        "test",
        help="decide recorded calls again, under other rules",
        description="Decide the recorded calls again, under the rules of a file, and print what would change and why. "
        "Nothing runs. Needs a store with audit_values. Exits with 0 if nothing would change, with 1 if something "
        "would, and with 2 if no call could be decided.",
    )
    test.add_argument("policy", metavar="POLICY", help="a YAML or JSON file with the new rules")
    add_tool_options(test)
    test.add_argument("--asks", choices=("customer", "operator"), default="operator", help="who is asked by default")
    test.add_argument("--tenant", help="only the calls of this tenant")
    test.add_argument("--since", metavar="AGE", help="only calls that are not older: 90s, 5m, 2h, 7d")
    test.add_argument("--limit", type=int, default=10_000, help="the newest so many calls (default: 10000)")
    test.add_argument("--json", action="store_true", help="one JSON object a line: each call that would change")
    add_store_option(test)


def add_tool_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name tools."""
    parser.add_argument(
        "--tools",
        action="append",
        default=[],
        metavar="OBJECT",
        help="module:object or file.py:object: tools, sources such as an McpServer or an OpenApi, a mapping of names "
        "to ToolFlags, or an Executor; can be repeated",
    )
    parser.add_argument(
        "--agent", metavar="FILE", help="an agent file, as for `handrail chat`: its tools, sources and policy"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a rule can never apply, 2 if that was not checked."""
    if options.action == "test":
        return asyncio.run(_test(options))
    agent = None if options.agent is None else load_agent_file(options.agent)
    if options.policy is not None:
        policy = load_policy(options.policy)
    elif agent is not None:
        policy = agent.policy
    else:
        raise ConfigError("Name a policy file, or an agent file with --agent.")
    return asyncio.run(_check(policy, [load_object(text) for text in options.tools], agent))


async def _check(policy: Policy, given: Sequence[object], agent: AgentFile | None) -> int:
    """Check a policy against tools, of which those of sources are listed now."""
    if executor := next((value for value in given if isinstance(value, Executor)), None):
        if len(given) > 1 or agent is not None:
            raise ConfigError("An Executor has all of its tools; name it alone.")
        return _report(policy, executor, is_open=executor.is_open)
    if agent is not None and agent.agent is not None and not given:
        return _report(policy, agent.agent.executor, is_open=agent.agent.executor.is_open)
    tools, sources, declared = _sort_objects(given)
    if agent is not None:
        tools, sources = [*agent.tools, *tools], [*agent.sources, *sources]
    async with connect(sources) as opened:
        unknown = [status for status in opened.status.values() if status.state != "connected"]
        for status in unknown:
            print(escape_line(f"{status.name} is {status.state}: {status.reason}"))
        listed = Executor([*tools, *opened.tools], declared=declared)
    return _report(policy, listed, is_open=bool(unknown))


async def _test(options: argparse.Namespace) -> int:
    """Decide recorded calls again, and print what would change."""
    read = load_policy(options.policy)
    policy = Policy(read.rules, default=read.default, asks=options.asks)
    since = None if options.since is None else time.time() - parse_duration(options.since)
    async with open_tools(options) as tools, open_chosen_store(options.store) as store:
        found = await replay_policy(
            store,
            {tool.name: tool for tool in tools},
            policy,
            tenant_id=options.tenant,
            since=since,
            max_calls=options.limit,
        )
    for changed in found.changed:
        row = changed.row
        if options.json:
            values = {"session_id": row.session_id, "call_id": row.call_id, "tool": row.tool, "at": row.at}
            values |= {
                "before": changed.before,
                "after": changed.after_text,
                "rule": changed.after.rule,
                "source": changed.after.source,
            }
            print(json.dumps(values))
            continue
        where = f"session {row.session_id}  call {row.call_id or '-'}"
        print(escape_line(f"{format_time(row.at)}  {row.tool}  {changed.before} -> {changed.after_text}  {where}"))
        print(escape_line(f"  by {changed.after.rule} ({changed.after.source}) {changed.after.reason}".rstrip()))
        for line in changed.lines:
            print(escape_line(f"  {line}"))
    for reason, count in found.undecided.items():
        print(escape_line(f"{count} not decided: {reason}"), file=sys.stderr)
    print(f"{found.decided} calls decided again, {len(found.changed)} would change", file=sys.stderr)
    if found.changed:
        return 1
    return 0 if found.decided else 2


@asynccontextmanager
async def open_tools(options: argparse.Namespace) -> AsyncGenerator[list[Tool[..., Any]]]:
    """The tools of `--tools` and `--agent`, with those of their sources, while they are connected."""
    agent = None if options.agent is None else load_agent_file(options.agent)
    given = [load_object(text) for text in options.tools]
    executors = [value for value in given if isinstance(value, Executor)]
    tools, sources, _ = _sort_objects(value for value in given if not isinstance(value, Executor))
    if agent is not None:
        tools, sources = [*agent.tools, *tools], [*agent.sources, *sources]
    if not tools and not sources and not executors:
        raise ConfigError("Name the tools: --tools module:object, or --agent FILE.")
    async with connect(sources) as opened:
        for status in opened.status.values():
            if status.state != "connected":
                print(escape_line(f"{status.name} is {status.state}: {status.reason}"), file=sys.stderr)
        own = [tool for executor in executors for tool in executor.known_tools]
        yield [*own, *ToolRegistry([*tools, *opened.tools])]


def _sort_objects(given: Iterable[object]) -> tuple[list[Any], list[Source], dict[str, ToolFlags]]:
    """The tools, the sources and the declared tools among objects and lists of them."""
    tools, sources, declared = list[Any](), list[Source](), dict[str, ToolFlags]()
    for value in given:
        if isinstance(value, Mapping) and all(isinstance(flags, ToolFlags) for flags in cast(Any, value).values()):
            declared.update(cast(Mapping[str, ToolFlags], value))
        elif _is_source(cast(object, value)):
            sources.append(cast(Source, value))
        elif isinstance(value, Tool | Mapping | type) or not hasattr(value, "__iter__"):
            tools.append(value)
        else:
            for member in cast(Iterable[object], value):
                (sources if _is_source(member) else tools).append(cast(Any, member))
    return tools, sources, declared


def _is_source(value: object) -> bool:
    """Whether it is a source that can be opened, such as an `McpServer`, an `OpenApi`, or a class of one's own."""
    return not isinstance(value, Tool | type) and inspect.iscoroutinefunction(getattr(value, "open", None))


def _report(policy: Policy, executor: Executor, *, is_open: bool) -> int:
    count = f"{len(policy.rules)} rule{'s' * (len(policy.rules) != 1)}"
    known = len(executor.known_tools)
    if not known:
        print(f"{count} read; without tools their names and arguments were not checked.")
        return 2
    problems = executor.find_policy_problems(policy)
    for problem in problems:
        print(f"{problem.source}: {'note' if is_open else 'error'}: rule {problem.number}: {problem.text}")
    found = f"{len(problems)} can never apply" if problems else "all can apply"
    print(f"{count}, {known} tool{'s' * (known != 1)}: {found}.")
    if problems and is_open:
        print("Not all tools are known, so that these rules were not checked.")
        return 2
    return 1 if problems else 0
