"""`handrail policy check`: finds rules that can never apply to the tools."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, cast

from handrail.authorize.policy import Policy
from handrail.authorize.policy_file import load_policy
from handrail.cli.agent_file import load_agent_file
from handrail.cli.object_reference import load_object
from handrail.core.tool import Tool
from handrail.define.flags import ToolFlags
from handrail.errors import ConfigError
from handrail.execute.executor import Executor


def add_parser(subparsers: Any) -> None:
    """Add the parser of the command."""
    policy: argparse.ArgumentParser = subparsers.add_parser("policy", help="check a policy against tools")
    actions = policy.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="find rules that can never apply")
    check.add_argument(
        "policy", nargs="?", metavar="POLICY", help="a YAML file (default: the policy of the agent file)"
    )
    check.add_argument(
        "--tools",
        action="append",
        default=[],
        metavar="OBJECT",
        help="module:object or file.py:object: tools, a mapping of names to ToolFlags, or an Executor; can be repeated",
    )
    check.add_argument(
        "--agent", metavar="FILE", help="an agent file, as for `handrail chat`: its tools and its policy"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a rule is an error; notes do not count."""
    agent = None if options.agent is None else load_agent_file(options.agent)
    if options.policy is None and agent is None:
        raise ConfigError("Name a policy file, or an agent file with --agent.")
    executor = _build_executor([load_object(text) for text in options.tools], agent.tools if agent else ())
    if options.policy is not None:
        policy = load_policy(options.policy)
    else:
        assert agent is not None
        policy = agent.policy
    return _report(policy, executor, is_open=executor.is_open or bool(agent and agent.sources))


def _build_executor(given: Sequence[object], agent_tools: Any) -> Executor:
    tools, declared = list(agent_tools), dict[str, ToolFlags]()
    for one in given:
        if isinstance(one, Executor):
            if len(given) > 1 or tools:
                raise ConfigError("An Executor has all of its tools; name it alone.")
            return one
        if isinstance(one, Mapping) and all(isinstance(flags, ToolFlags) for flags in cast(Any, one).values()):
            declared.update(cast(Mapping[str, ToolFlags], one))
        elif isinstance(one, Tool | Mapping | type) or not hasattr(one, "__iter__"):
            tools.append(one)
        else:
            tools.extend(cast(Any, one))
    return Executor(tools, declared=declared)


def _report(policy: Policy, executor: Executor, *, is_open: bool) -> int:
    count = f"{len(policy.rules)} rule{'s' * (len(policy.rules) != 1)}"
    if not executor.known_tools:
        print(f"{count} read; without tools their names and arguments are not checked.")
        return 0
    problems = executor.find_policy_problems(policy)
    for one in problems:
        print(f"{one.source}: {'note' if is_open else 'error'}: rule {one.number}: {one.text}")
    found = f"{len(problems)} can never apply" if problems else "all can apply"
    print(f"{count}, {len(executor.known_tools)} tools: {found}.")
    if problems and is_open:
        print("These tools may change or are not all known, so that these are notes.")
    return 1 if problems and not is_open else 0
