"""Tools that tests of several packages use."""

from importlib.util import find_spec

from handrail import tool


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"Paid {amount}."


def is_installed(module: str) -> bool:
    """Whether a module can be imported here; a framework may be in no environment but its own."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # The package around it.
        return False
