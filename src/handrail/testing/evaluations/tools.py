"""The tools of the evaluation, those of a bank. They are never run."""

from typing import Final, Literal

from handrail.core.tool import Tool
from handrail.define.function import tool

Account = Literal["current", "savings"]


@tool(read_only=True)
async def get_balance(account: Account) -> str:
    """Look up the balance of one of the customer's accounts: how much money is in it.

    Args:
        account: Which account.
    """
    return ""


@tool
async def transfer(to: str, amount: int) -> str:
    """Transfer or send money to a person.

    Args:
        to: The name of the person who gets the money.
        amount: How much, in whole euros.
    """
    return ""


@tool(read_only=True)
async def get_order_status(order_id: str) -> str:
    """Look up where an order or a parcel is.

    Args:
        order_id: The number of the order, such as A-17.
    """
    return ""


@tool
async def hand_over(reason: str) -> str:
    """Hand the conversation over to a human employee.

    Args:
        reason: Why, in a few words.
    """
    return ""


@tool
async def block_card(card: Literal["debit", "credit"]) -> str:
    """Block a bank card that was lost or stolen.

    Args:
        card: Which card.
    """
    return ""


@tool(read_only=True)
async def find_branch(city: str) -> str:
    """Find the nearest branch of the bank and its opening hours.

    Args:
        city: The city to look in.
    """
    return ""


@tool(read_only=True)
async def list_transactions(account: Account, days: int) -> str:
    """List the recent transactions and payments of an account.

    Args:
        account: Which account.
        days: How many days to look back.
    """
    return ""


@tool(read_only=True)
async def get_exchange_rate(currency: Literal["USD", "GBP", "CHF", "JPY"]) -> str:
    """Look up the exchange rate of the euro to another currency.

    Args:
        currency: The other currency.
    """
    return ""


TOOLS: Final[tuple[Tool[..., object], ...]] = (
    get_balance,
    transfer,
    get_order_status,
    hand_over,
    block_card,
    find_branch,
    list_transactions,
    get_exchange_rate,
)
