"""Values that code copies out of a message: exactly as they are written, or not at all."""

import json
from datetime import date
from typing import Any

import pytest

from handrail import Tool, tool
from handrail.providers.embedded.prompts import ask_for_missing_value
from handrail.providers.embedded.schema_reduction import build_decodable_schema
from handrail.providers.embedded.spans import extract, extract_money, extract_numbers, find_kind
from handrail.providers.embedded.tool_choice import is_request
from handrail.testing.evaluations import DOMAINS, load_domain_prompts


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("email", "Write to anna.berg+x@mail.example.org.", ["anna.berg+x@mail.example.org"]),
        ("email", "no address @ all", []),
        ("url", "See https://a.example/b?c=1, or (http://10.0.0.8:80/x).", ["https://a.example/b?c=1", "http://10.0.0.8:80/x"]),
        ("phone", "Call +49 30 901820 or 030-5550123.", ["+49 30 901820", "030-5550123"]),
        ("phone", "It is 25 euros for 3 days.", []),
        ("date", "On 3 December 2026, 5.1.2027 or March 5th, 2027.", ["2026-12-03", "2027-01-05", "2027-03-05"]),
        ("date", "Not on 31.2.2027, and not on 2026-13-01.", []),
        ("id", "Refund A-17 and INC2044 of anna1@example.org at 2026-12-03.", ["A-17", "INC2044"]),
        ("id", "Restart db-primary.", ["db-primary"]),
        ("id", "Why the e-mail?", []),
    ],
)  # fmt: skip
def test_typed_values_are_found_as_they_are_written(kind: Any, text: str, found: list[str]) -> None:
    assert extract(kind, text) == found


@pytest.mark.parametrize(
    ("text", "money", "numbers"),
    [
        ("Refund €12.50 for 2 cups.", [12.5], [12.5, 2]),
        ("1,200 dollars in 30 days", [1200], [1200, 30]),
        ("49,90 EUR for A-17", [49.9], [49.9]),
        ("Call 030-5550123 on 3 May 2027 about http://10.0.0.8", [], []),
    ],
)
def test_money_and_numbers_are_not_parts_of_other_values(text: str, money: list[float], numbers: list[float]) -> None:
    assert (extract_money(text), extract_numbers(text)) == (money, numbers)


@pytest.mark.parametrize(
    ("message", "wants"),
    [
        ("Refund order A-17.", True),
        ("Please could you cancel it?", True),
        ("Can a member of your staff take over?", True),
        ("I want my money back.", True),
        ("Did you refund order A-17?", False),
        ("And when was it restarted", False),
        ("My card was blocked?", False),
        ("Why was m-204 cancelled?", False),
    ],
)
def test_a_question_about_the_past_is_no_request(message: str, wants: bool) -> None:
    assert is_request(message) is wants


@tool
async def book(email: str, day: date, price: float, note: str = "") -> str:
    """Book."""
    return ""


def lowered(found: Tool[..., Any], message: str) -> dict[str, Any]:
    return build_decodable_schema(found.input_schema, copy_from=message)["properties"]


def test_a_parameter_takes_only_values_of_its_kind() -> None:
    properties = lowered(book, "Book ann@example.org on 3 May 2027 for €40, table 7.")
    assert {name: properties[name] for name in ("email", "day", "price")} == {
        "email": {"enum": ["ann@example.org"]},
        "day": {"enum": ["2027-05-03"]},
        "price": {"enum": [40]},
    }
    assert find_kind("note", {"type": "string"}) is None


@pytest.mark.parametrize(
    ("message", "asks"),
    [
        ("Book ann@example.org on 3 May 2027 for 40.", ""),
        ("Book a table on 3 May 2027 for 40.", "For that I need the email"),
        ("Book ann@example.org for 40.", "For that I need the day"),
    ],
)
def test_a_missing_address_or_date_is_asked_for_and_never_made_up(message: str, asks: str) -> None:
    question = ask_for_missing_value(book, message, is_order=is_request(message))
    assert question.startswith(asks)
    assert bool(question) is bool(asks)


def test_the_prompts_of_the_other_domains_fit_their_tools() -> None:
    prompts = load_domain_prompts()
    assert sum(map(len, prompts.values())) == 40
    for domain, every in prompts.items():
        tools = {item.name: item for item in DOMAINS[domain]}
        for prompt in every:
            if prompt.tool is not None:
                arguments = {name: "any" if value is None else value for name, value in prompt.arguments.items()}
                tools[prompt.tool].parse(json.dumps(arguments))
