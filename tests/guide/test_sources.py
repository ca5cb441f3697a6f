"""Tools that live elsewhere are candidates like any other, also when they come and go."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from handrail import Agent, Policy, Rule, Tool, tool
from handrail.sources import McpServer, connect
from tests.guide.kit import Bank, agent_with, get_balance, needs, open_session, plan, scripted

SHOP = '''
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("shop")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def find_order(order_id: int) -> str:
    """Find an order."""
    return f"order {order_id} is paid"


@server.tool()
def refund(order_id: int, amount: int) -> str:
    """Give money back."""
    return f"refunded {amount}"


server.run(transport="stdio")
'''


async def test_the_tools_of_an_mcp_server_are_candidates_and_pass_the_same_policy(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    server = McpServer("shop", command=[sys.executable, str(tmp_path / "shop.py")], trusted=True)
    refund = {"order_id": 7, "amount": 5}
    judge = scripted(
        [plan(["g1"], needs("shop__find_order", {"order_id": 7}), needs("shop__refund", refund))],
        ["Shall I refund 5 of 7?"],
    )
    async with connect([server]) as sources:
        agent = Agent(judge=judge, tools=[sources], policy=Policy([Rule.ask("shop__refund", by="customer")]))
        await agent.create_guideline("Customer complains about an order", tools=["shop__find_order", "shop__refund"])
        result = await agent.session("s-1", customer_id="c-1").send("Order 7 was broken, I want 5 back.")

    assert "order 7 is paid" in result.results[0].for_model()
    assert (result.stop_reason, [approval.tool for approval in result.approvals]) == (
        "approval_required",
        ["shop__refund"],
    )


class Changing:
    """A source whose tools come and go."""

    def __init__(self, *tools: Tool[..., Any]) -> None:
        self.tools: Sequence[Tool[..., Any]] = tools
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: None

    def change(self, *tools: Tool[..., Any]) -> None:
        self.tools = tools
        for listener in self._listeners:
            listener()


async def test_a_tool_whose_source_is_away_is_an_insight_and_works_again_when_it_is_back() -> None:
    @tool(read_only=True)
    async def remote(what: str) -> str:
        """Ask a server."""
        return what

    source = Changing(remote)
    asks = plan(["g1"], needs("remote", {"what": "x"}))
    judge = scripted([asks] * 3, ["Fine."] * 3)
    agent = agent_with(judge, [source, get_balance])  # pyright: ignore[reportArgumentType]
    await agent.create_guideline("Customer asks", tools=["remote"])
    session = open_session(agent, Bank())
    there = await session.send("Go.")
    source.change()
    away = await session.send("Go.")
    source.change(remote)
    back = await session.send("Go.")

    assert [len(item.results) for item in (there, away, back)] == [1, 0, 1]
    (evaluation,) = away.insights.evaluations
    assert (evaluation.state, "its source is not connected" in evaluation.reason) == ("cannot_run", True)
