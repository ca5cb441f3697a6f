"""A bank's agent, for `handrail chat`. No real money is moved.

`handrail chat FILE.py` runs any file like this one: it defines `TOOLS`, and optionally `POLICY`, `INSTRUCTIONS` and
`make_deps()`, whose value the tools get as `context.deps`.
"""

from dataclasses import dataclass, field
from typing import Literal

from handrail import Control, Policy, Rule, ToolContext, ToolError, ToolResult, tool


@dataclass(slots=True, kw_only=True)
class Bank:
    """The state that the tools read and change."""

    accounts: dict[str, int] = field(default_factory=lambda: {"savings": 2_400, "current": 310})
    orders: dict[str, str] = field(default_factory=lambda: {"A-17": "on its way, due tomorrow"})
    done: list[str] = field(default_factory=list[str])


@tool(read_only=True, concurrency_safe=True)
async def get_balance(account: Literal["current", "savings"], context: ToolContext[Bank]) -> str:
    """Look up the balance of one of the customer's accounts.

    Args:
        account: Which account.
    """
    return f"{context.deps.accounts[account]} EUR"


@tool(read_only=True, concurrency_safe=True)
async def get_order_status(order_id: str, context: ToolContext[Bank]) -> str:
    """Look up where an order is.

    Args:
        order_id: The number of the order, such as A-17.
    """
    if order_id not in context.deps.orders:
        raise ToolError(f"There is no order {order_id!r}. Ask the customer for the number on the confirmation.")
    return context.deps.orders[order_id]


@tool(key=("to", "amount"), timeout=10)
async def transfer(to: str, amount: int, context: ToolContext[Bank]) -> str:
    """Transfer money from the customer's current account.

    Args:
        to: The name of the person who gets the money.
        amount: How much, in whole euros.
    """
    bank = context.deps
    if amount > bank.accounts["current"]:
        raise ToolError(f"The current account holds only {bank.accounts['current']} EUR.")
    bank.accounts["current"] -= amount
    bank.done.append(f"{amount} EUR to {to}")
    return f"Transferred {amount} EUR to {to}. {bank.accounts['current']} EUR are left."


@tool(idempotent=True)
async def hand_off(reason: str) -> ToolResult:
    """Hand the conversation to a person.

    Args:
        reason: Why, in a few words.
    """
    return ToolResult(output="A person takes over now.", control=Control(mode="manual"))


TOOLS = [get_balance, get_order_status, transfer, hand_off]

POLICY = Policy(
    [
        Rule.deny("transfer", where={"amount": {"above": 10_000}}, reason="transfers are limited to 10,000 EUR"),
        Rule.ask("transfer", by="customer", reason="money leaves the account"),
        Rule.allow("hand_off"),
    ]
)

INSTRUCTIONS = """You are the agent of a small bank. Answer in one or two short sentences.
Use the tools for everything about accounts, orders and money; never make up a number.
If a tool says that the customer must approve a call, say what it will do and ask.
If you may not do what the customer wants, hand off to a person."""

make_deps = Bank
