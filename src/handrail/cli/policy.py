"""`handrail policy check`: finds rules that can never apply to the tools."""

import argparse
import asyncio
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from handrail.authorize.policy import Policy
from handrail.authorize.policy_file import load_policy
from handrail.cli.agent_file import AgentFile, load_agent_file
from handrail.cli.object_reference import load_object
from handrail.core.tool import Tool
from handrail.define.options import ToolFlags
from handrail.errors import ConfigError
from handrail.execute.executor import Executor
from handrail.sources.connection import connect
from handrail.sources.source import Source


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
    check.add_argument(
        "--tools",
        action="append",
        default=[],
        metavar="OBJECT",
        help="module:object or file.py:object: tools, sources such as an McpServer or an OpenApi, a mapping of names "
        "to ToolFlags, or an Executor; can be repeated",
    )
    check.add_argument(
        "--agent", metavar="FILE", help="an agent file, as for `handrail chat`: its tools, sources and policy"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a rule can never apply, 2 if that was not checked."""
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
            print(f"{status.name} is {status.state}: {status.reason}")
        listed = Executor([*tools, *opened.tools], declared=declared)
    return _report(policy, listed, is_open=bool(unknown))


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
