"""Tools and prompts of three domains that no provider was tuned for: a web shop, a calendar, and server operations."""

from datetime import date
from importlib.resources import files
from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct
from pydantic import Field

from handrail.core.tool import Tool
from handrail.define.function import tool
from handrail.testing.evaluations.evaluate import Prompt


@tool
async def refund_order(order_id: str, amount: float) -> str:
    """Refund money for an order.

    Args:
        order_id: The number of the order.
        amount: How much, in euros.
    """
    return ""


@tool(read_only=True)
async def get_order(order_id: str) -> str:
    """Look up an order: its status, and whether it was refunded.

    Args:
        order_id: The number of the order.
    """
    return ""


@tool
async def change_email(email: Annotated[str, Field(json_schema_extra={"format": "email"})]) -> str:
    """Change the e-mail address of the customer's account.

    Args:
        email: The new address.
    """
    return ""


@tool(read_only=True)
async def search_products(query: str, max_price: float | None = None) -> str:
    """Search for products in the shop.

    Args:
        query: What to search for.
        max_price: The highest price in euros.
    """
    return ""


@tool
async def book_meeting(email: str, day: date) -> str:
    """Book a meeting with a person.

    Args:
        email: The e-mail address of the person.
        day: The day of the meeting.
    """
    return ""


@tool(read_only=True)
async def list_meetings(day: date) -> str:
    """List the meetings of a day.

    Args:
        day: The day.
    """
    return ""


@tool
async def cancel_meeting(meeting_id: str) -> str:
    """Cancel a meeting.

    Args:
        meeting_id: The id of the meeting, such as m-204.
    """
    return ""


@tool
async def restart_server(host: str) -> str:
    """Restart a server.

    Args:
        host: The name of the server.
    """
    return ""


@tool(read_only=True)
async def check_url(url: Annotated[str, Field(json_schema_extra={"format": "uri"})]) -> str:
    """Check whether a web address responds.

    Args:
        url: The address.
    """
    return ""


@tool
async def call_on_duty(phone: str, message: str) -> str:
    """Call the person on duty.

    Args:
        phone: The phone number.
        message: What to tell them.
    """
    return ""


@tool(read_only=True)
async def get_incident(incident_id: str) -> str:
    """Look up an incident.

    Args:
        incident_id: The id of the incident.
    """
    return ""


DOMAINS: Final[dict[str, tuple[Tool[..., Any], ...]]] = {
    "shop": (refund_order, get_order, change_email, search_products),
    "calendar": (book_meeting, list_meetings, cancel_meeting),
    "operations": (restart_server, check_url, call_on_duty, get_incident),
}


class _Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    domain: str
    message: str
    tool: str | None
    arguments: dict[str, Any] = {}


def load_domain_prompts() -> dict[str, tuple[Prompt, ...]]:
    """Load the prompts of each domain. They were written before the provider could copy addresses, dates and ids."""
    text = files("handrail.testing.evaluations").joinpath("domains.jsonl").read_bytes()
    lines = [msgspec.json.decode(line, type=_Line) for line in text.splitlines() if line]
    return {
        domain: tuple(
            Prompt(message=line.message, tool=line.tool, arguments=line.arguments, held_out=True)
            for line in lines
            if line.domain == domain
        )
        for domain in DOMAINS
    }
