"""Tools of an MCP server under a policy in a file: some run, some wait for an operator, one never runs.

    python examples/mcp_policy/agent.py                     # a script stands for the model
    OPENAI_API_KEY=… python examples/mcp_policy/agent.py    # with OpenAI

Needs `pip install 'handrail[mcp,openai,yaml]'`.
"""

import asyncio
import os
import sys
from pathlib import Path

from handrail import ChatSession, Executor, ToolContext
from handrail.authorize import load_policy
from handrail.core import CallFinished, Event
from handrail.providers import OpenAIResponses
from handrail.sources import McpServer, connect
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls

HERE = Path(__file__).parent
# `trusted`: what the server says about its tools (read-only or not) is believed. Without it, everything needs a rule.
FILES = McpServer("files", command=[sys.executable, str(HERE / "server.py")], trusted=True)


def show(event: Event) -> None:
    """Print every call, with the decision about it."""
    if isinstance(event, CallFinished):
        decision = event.decision
        rule = f"{decision.action}, {Path(decision.source).name}" if decision else "-"
        result = event.result.error.code if event.result.error else event.result.output
        print(f"  {event.call.name} {event.call.arguments_json}: {rule}: {result}")


async def main() -> None:
    """One conversation: publish for the board, publish for everybody, delete."""
    provider = OpenAIResponses("gpt-5-mini") if os.environ.get("OPENAI_API_KEY") else ScriptedProvider(SCRIPT)
    async with connect([FILES]) as sources:
        executor = Executor([sources], policy=load_policy(HERE / "policy.yaml"), listeners=[show])
        session = ChatSession(provider, executor, context=ToolContext(session_id="s-1", customer_id="c-1"))
        print(f"> {MESSAGE}")
        result = await session.send(MESSAGE)
        while result.approvals:
            for approval in result.approvals:  # In production the operator sits elsewhere: `handrail approvals list`.
                print(f"  operator ann: yes to {approval.tool} {dict(approval.arguments)}")
                await executor.approvals.approve(approval.token, by="operator", who="ann")
            result = await session.resume()
        print(result.text)


MESSAGE = "Publish the newest report, to the board and to the press, and delete the old one."
SCRIPT = [
    tool_calls(("files__list_reports", {})),
    tool_calls(("files__publish_report", {"name": "2026-11", "audience": "board"})),
    tool_calls(("files__delete_report", {"name": "2026-10"})),
    tool_calls(("files__publish_report", {"name": "2026-11", "audience": "press"})),
    "Published to the board and, after an operator agreed, to the press. I may not delete reports.",
]
"""What stands for the model."""

if __name__ == "__main__":
    asyncio.run(main())
