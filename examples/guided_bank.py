"""A bank's agent that follows guidelines: `handrail chat examples/guided_bank.py`. No real money is moved.

`handrail chat FILE.py` runs any file that defines an `AGENT`, and optionally `make_deps()`, whose value the tools get
as `context.deps`. Ask "how much do I have?", "send 50 to my friend", "yes"; `/trace` shows why each tool was called.

`guided_bank.yaml` has the same agent without its tools and policy: `load_agent()` reads it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from handrail import Agent, Control, Guideline, Policy, Rule, ToolContext, ToolError, ToolResult, tool
from handrail.guide import ParameterOptions, Term


@dataclass(slots=True, kw_only=True)
class Bank:
    """The state that the tools read and change."""

    balance: int = 12_400
    sent: list[str] = field(default_factory=list[str])
    cards: dict[str, str] = field(default_factory=lambda: {"debit": "active", "credit": "active"})


@tool(read_only=True, concurrency_safe=True)
async def get_balance(context: ToolContext[Bank]) -> str:
    """Look up the balance of the customer's account."""
    return f"{context.deps.balance} EUR"


@tool(read_only=True, concurrency_safe=True)
async def get_investment_options() -> list[str]:
    """List the investments that may be recommended."""
    return ["government bonds, 3 % a year", "a world fund"]


@tool(key=("recipient_name", "amount"), timeout=10)
async def transfer_money(recipient_name: str, amount: int, context: ToolContext[Bank]) -> str:
    """Transfer money from the customer's account to another person."""
    bank = context.deps
    if amount > bank.balance:
        raise ToolError(f"There is not enough money: the balance is {bank.balance} EUR.")
    bank.balance -= amount
    bank.sent.append(f"{amount} EUR to {recipient_name}")
    return f"Transferred {amount} EUR to {recipient_name}. The balance is {bank.balance} EUR."


async def list_cards(context: ToolContext[Bank]) -> list[str]:
    """The cards that can be blocked: choices that depend on the customer."""
    return [card for card, state in context.deps.cards.items() if state == "active"]


@tool(key=("card",), timeout=10)
async def block_card(
    card: Annotated[str, ParameterOptions(display_name="your card", choices=list_cards)], context: ToolContext[Bank]
) -> str:
    """Block a card of the customer, so that nobody can pay with it."""
    context.deps.cards[card] = "blocked"
    return f"The {card} card is blocked."


@tool(read_only=True)  # It changes nothing at the bank, and nobody should have to confirm that they want a person.
async def call_a_person() -> ToolResult:
    """Hand the conversation to a person at the bank."""
    return ToolResult(output="A colleague takes over.", control=Control(mode="manual"))


BANK_TOOLS = [get_balance, get_investment_options, transfer_money, block_card, call_a_person]
BANK_POLICY = Policy(
    [
        Rule.deny("transfer_money", where={"amount": {"above": 10_000}}, reason="more than 10,000 EUR needs a visit"),
        Rule.ask("transfer_money", by="operator", where={"amount": {"above": 1_000}}, reason="a large amount"),
        Rule.ask("transfer_money", by="customer", reason="money leaves the account"),
        Rule.ask("block_card", by="customer", reason="a blocked card cannot be used again"),
    ]
)


def build_agent(**options: Any) -> Agent:
    """Build the agent in Python; the options are those of `Agent`, such as a provider and a store."""
    agent = Agent(
        agent_id="bank",
        instructions="You work for a small bank. You are brief and polite.",
        tools=BANK_TOOLS,
        policy=BANK_POLICY,
        guidelines=[
            Guideline(id="greeting", action="Greet the customer by their name", always=True, track=True),
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
                id="stolen",
                condition="The customer has lost a card, or it was stolen",
                action="Block the card, and say that a new one takes five days",
                tools=("block_card",),
                criticality="high",
            ),
            Guideline(
                id="fees", condition="The customer asks about fees", action="Say that transfers in euros are free"
            ),
            Guideline(
                id="advice", condition="The customer asks what they should invest in", action="Give no personal advice"
            ),
            Guideline(
                id="person",
                condition="The customer is angry or asks for a person",
                action="Hand the conversation over",
                tools=("call_a_person",),
                criticality="high",
                priority=10,
            ),
        ],
        relationships=[
            ("stolen", "takes_priority_over", "transfer"),  # Also withdraws a transfer that waits for a yes.
            ("invest", "depends_on_any", "balance"),
            ("invest", "depends_on_any", "advice"),
        ],
        variables={"customer_name": "Jerry"},
        terms={"IBAN": "the international number of an account", "balance": Term("what is in it", ("nest egg",))},
        **options,
    )
    agent.add_parameter_options(
        "transfer_money",
        {
            "recipient_name": ParameterOptions(
                display_name="the recipient's full name", significance="so that the money reaches them", precedence=1
            ),
            "amount": ParameterOptions(display_name="the amount in euros", source="customer", precedence=2),
        },
    )
    return agent


def load_agent(**options: Any) -> Agent:
    """Read the same agent from `guided_bank.yaml`."""
    return Agent.from_file(Path(__file__).with_suffix(".yaml"), tools=BANK_TOOLS, policy=BANK_POLICY, **options)


AGENT = build_agent()


def make_deps() -> Bank:
    """A new bank for each chat."""
    return Bank()
