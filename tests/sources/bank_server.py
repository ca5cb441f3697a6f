"""An executor that is served over MCP on standard input and output."""

import asyncio

from handrail import Executor, Policy, Rule, ToolContext, ToolError, tool
from handrail.sources import serve_mcp

done: list[str] = []


@tool(read_only=True)
def balance(account: str) -> dict[str, object]:
    """The balance of an account."""
    return {"account": account, "balance": 120}


@tool
def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    done.append(to)
    return f"paid {amount} to {to} ({len(done)} in all)"


@tool
def close_account(account: str) -> str:
    """Close an account."""
    return f"closed {account}"


@tool(read_only=True)
async def work(steps: int, context: ToolContext) -> str:
    """Work for a while."""
    for step in range(1, steps + 1):
        context.progress(f"step {step}", fraction=step / steps)
    if steps > 5:
        raise ToolError("too much work")
    return "worked"


def make_executor() -> Executor:
    policy = Policy([Rule.ask("close_account", by="operator")])
    return Executor([balance, pay, close_account, work], policy=policy)


if __name__ == "__main__":
    asyncio.run(serve_mcp(make_executor(), transport="stdio"))
