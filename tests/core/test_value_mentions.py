"""Whether a text supports a value: words, numbers, dates and names, in the notations that people use."""

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.core.value_mentions import contains_words, mentions_value, repeats_numbers

MONDAY = date(2026, 11, 16)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("send 500 please", 500),
        ("send five hundred please", 500),
        ("one thousand two hundred and fifty", 1250),
        ("1,500 EUR", 1500),
        ("5,00,000 INR", 500_000),
        ("1.500,00 EUR", 1500),
        ("1 500 EUR", 1500),
        ("1'500", 1500),
        ("$1500.50", 1500.5),
        ("2k", 2000),
        ("５００", 500),
        ("to SOPHIE  chapman!", "Sophie Chapman"),
        ("à Zoé", "Zoe"),
        ("to IBAN DE89 3704 0044 0532 0130 00", "DE89370400440532013000"),
        ("pin 12 34", "1234"),
        ("the 16th of November", "2026-11-16"),
        ("16.11.2026", "2026-11-16"),
        ("immediately", "2026-11-16"),
        ("tomorrow", "2026-11-17"),
        ("in two days", "2026-11-18"),
        ("on Friday", "2026-11-20"),
        ("eggs and milk", ["milk", "eggs"]),
        ("3 to Ann", {"count": 3, "to": "Ann"}),
        ("whatever", True),
        ("whatever", None),
        ("给王芳转账", "王芳"),
    ],
)
def test_a_text_supports_a_value_in_the_notations_of_people(text: str, value: Any) -> None:
    assert mentions_value(text, value, today=MONDAY)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("my", 99999),
        ("500", 5000),
        ("5000", 500),
        ("5,00,000", 500),
        ("1,500,000", 1500),
        ("some money", "me"),
        ("to Sophie", "Sophie Chapman"),
        ("on Friday", "2026-11-21"),
        ("tomorrow", "2026-11-16"),
        ("eggs", ["eggs", "milk"]),
        ("", 5),
        ("account 12345", "1234"),
        ("16.12.2026", "2026-11-16"),
        ("16 November 2025", "2026-11-16"),
    ],
)
def test_a_text_does_not_support_another_value(text: str, value: Any) -> None:
    assert not mentions_value(text, value, today=MONDAY)


def test_a_quote_stands_in_a_text_word_by_word() -> None:
    text = "Please send 500 to Sophie, my sister."
    assert contains_words(text, "send 500")
    assert contains_words(text, '"Send 500 … my sister"')
    assert not contains_words(text, "end 500")
    assert not contains_words(text, "500 send")
    assert not contains_words(text, "")
    assert not contains_words(text, "…")


@given(st.integers(0, 10**9))
def test_every_number_is_found_with_and_without_separators(number: int) -> None:
    for text in (str(number), f"{number:,}", f"{number:,}".replace(",", "."), f"{number:,}".replace(",", " ")):
        assert mentions_value(f"send {text} now", number)
        assert repeats_numbers(text, f"amount: {number}")
    assert not mentions_value(f"send {number} now", number + 1)


def test_a_number_that_is_too_large_to_count_with_is_mentioned_by_no_text() -> None:
    assert not mentions_value("I pay 500", "9" * 1_000_001)
