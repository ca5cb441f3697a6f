"""What the tests of a conversation share: a bank with two tools, a session, and short ways to drive it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from handrail import Executor, ToolContext, ToolError, tool
from handrail.chat import ChatSession, TurnResult
from handrail.testing import ScriptedProvider
from handrail.testing.scripted import ScriptedLine
from handrail.testing.servers import tool_calls


@dataclass
class Bank:
    balance: int = 100
    paid: list[int] = field(default_factory=list)
    reads: int = 0


@tool(read_only=True, concurrency_safe=True)
async def balance(context: ToolContext[Bank]) -> str:
    """How much is there."""
    context.deps.reads += 1
    return f"{context.deps.balance} EUR"


@tool(key="amount")
async def pay(amount: int, context: ToolContext[Bank]) -> str:
    """Pay an amount."""
    if amount > context.deps.balance:
        raise ToolError("There is not enough money.")
    context.progress("paying", fraction=0.5)
    context.deps.balance -= amount
    context.deps.paid.append(amount)
    return f"paid {amount}"


PAY_5 = tool_calls(("pay", {"amount": 5}))


def at(bank: Bank, **more: Any) -> ToolContext[Bank]:
    return ToolContext(**{"session_id": "s-1", "customer_id": "ann", "deps": bank, **more})


def chat(lines: Iterable[ScriptedLine], bank: Bank | None = None, *, executor: Any = None, **more: Any) -> ChatSession:
    executor = executor or Executor([balance, pay])
    context = more.pop("context", None) or at(bank or Bank())
    more.setdefault("allow_memory_ledger", True)  # Where it matters, a test has a store.
    return ChatSession(ScriptedProvider(lines), executor, context=context, **more)


async def yes(session: ChatSession, answer: TurnResult) -> TurnResult:
    """The person agrees to everything that was asked, and the conversation goes on."""
    for approval in answer.approvals:
        await session.approve(approval.token)
    return await session.resume()
