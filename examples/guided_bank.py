"""A bank's agent that follows guidelines: `handrail chat examples/guided_bank.py`. No real money is moved.

`handrail chat FILE.py` runs any file that defines an `AGENT`, and optionally `make_deps()`, whose value the tools get
as `context.deps`. Ask "how much do I have?", "send 50 to my friend", "yes"; `/trace` shows why each tool was called.
"""

from dataclasses import dataclass, field
from typing import Annotated

from handrail import Agent, Control, Guideline, Policy, Rule, ToolContext, ToolError, ToolResult, tool
from handrail.guide import ParameterOptions


@dataclass(slots=True, kw_only=True)
class Bank:
    """The state that the tools read and change."""

    balance: int = 12_400
    sent: list[str] = field(default_factory=list[str])


@tool(read_only=True, concurrency_safe=True)
async def get_balance(context: ToolContext[Bank]) -> str:
    """Look up the balance of the customer's account."""
    return f"{context.deps.balance} EUR"


@tool(read_only=True, concurrency_safe=True)
async def get_investment_options() -> list[str]:
    """List the investments that may be recommended."""
    return ["government bonds, 3 % a year", "a world fund"]


@tool(key=("recipient_name", "amount"), timeout=10)
async def transfer_money(
    recipient_name: Annotated[
        str,
        ParameterOptions(
            display_name="the recipient's full name", significance="so that the money reaches them", precedence=1
        ),
    ],
    amount: Annotated[int, ParameterOptions(display_name="the amount in euros", source="customer", precedence=2)],
    context: ToolContext[Bank],
) -> str:
    """Transfer money from the customer's account to another person."""
    bank = context.deps
    if amount > bank.balance:
        raise ToolError(f"There is not enough money: the balance is {bank.balance} EUR.")
    bank.balance -= amount
    bank.sent.append(f"{amount} EUR to {recipient_name}")
    return f"Transferred {amount} EUR to {recipient_name}. The balance is {bank.balance} EUR."


@tool(read_only=True)
async def call_a_person() -> ToolResult:
    """Hand the conversation to a person at the bank."""
    return ToolResult(output="A colleague takes over.", control=Control(mode="manual"))


AGENT = Agent(
    agent_id="bank",
    instructions="You work for a small bank. You are brief and polite.",
    tools=[get_balance, get_investment_options, transfer_money, call_a_person],
    policy=Policy(
        [
            Rule.deny(
                "transfer_money", where={"amount": {"above": 10_000}}, reason="more than 10,000 EUR needs a visit"
            ),
            Rule.ask("transfer_money", by="customer", reason="money leaves the account"),
        ]
    ),
    guidelines=[
        Guideline(
            id="balance",
            condition="The customer asks how much money they have",
            action="Look up the balance and tell them",
            tools=("get_balance",),
        ),
        Guideline(
            id="invest",
            condition="The balance was looked up and is above 10,000 EUR",
            action="Mention that the money could be invested, and how",
            tools=("get_investment_options",),
            criticality="low",
        ),
        Guideline(
            id="transfer",
            condition="The customer wants to send or transfer money to somebody",
            action="Transfer it, after the customer has confirmed it",
            tools=("transfer_money",),
            criticality="high",
        ),
        Guideline(
            id="angry",
            condition="The customer is angry or asks for a person",
            action="Hand the conversation over",
            tools=("call_a_person",),
            criticality="high",
        ),
    ],
    relationships=[("angry", "takes_priority_over", "invest")],
    variables={"customer_name": "Jerry"},
    terms={"IBAN": "the international number of an account"},
)


def make_deps() -> Bank:
    """A new bank for each chat."""
    return Bank()
