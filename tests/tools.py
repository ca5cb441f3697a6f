"""Tools that tests of several packages use."""

from handrail import tool


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"Paid {amount}."
