"""Docstrings of the common styles say the same to the model."""

from inspect import cleandoc
from typing import Any

import pytest

from handrail import tool
from handrail.schema.signature import parse_docstring

GOOGLE = """Book a table.

    Only for today.

    Args:
        place (str): Where to eat. It
            may be far.
        seats: How many: at least one.

    Returns:
        str: A number.

    Raises:
        ValueError: If it is full.
    """
NUMPY = """Book a table.

    Only for today.

    Parameters
    ----------
    place : str
        Where to eat. It
        may be far.
    seats : int, optional
        How many: at least one.

    Returns
    -------
    str
        A number.
    """
SPHINX = """Book a table.

    Only for today.

    :param place: Where to eat. It
        may be far.
    :param int seats: How many: at least one.
    :type place: str
    :returns: A number.
    :raises ValueError: If it is full.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_a_docstring_of_any_style_describes_the_tool_and_its_arguments(docstring: str) -> None:
    def book(place: str, seats: int = 2) -> str:
        return place

    book.__doc__ = docstring
    made = tool(book)

    assert made.description == "Book a table.\n\nOnly for today."
    properties: dict[str, Any] = made.input_schema["properties"]
    assert properties["place"]["description"] == "Where to eat. It\nmay be far."
    assert properties["seats"]["description"] == "How many: at least one."


@pytest.mark.parametrize(
    "docstring",
    [
        "One line.",
        "One line: with a colon.",
        "Look (twice): then\n\n    - one: two\n    - three: four",
        'Send\n\n    {"json": "as it is"}',
        "Use with care.\n\n    Note: not on Sundays.",
        ":not a field",
        "Über Größen 👋",
    ],
)
def test_a_docstring_without_sections_is_the_description(docstring: str) -> None:
    assert parse_docstring(docstring).summary == cleandoc(docstring)
    assert parse_docstring(docstring).parameters == {}


@pytest.mark.parametrize("docstring", [None, "", "  \n "])
def test_no_docstring_is_no_description(docstring: str | None) -> None:
    assert parse_docstring(docstring).summary == ""


def test_a_docstring_that_is_only_sections_describes_the_arguments() -> None:
    found = parse_docstring("\n    Args:\n        place: Where.\n    ")

    assert (found.summary, found.parameters) == ("", {"place": "Where."})


def test_arguments_that_the_function_does_not_have_are_passed_over() -> None:
    @tool
    def book(place: str) -> str:
        """Book.

        Args:
            place: Where.
            gone: Not here any more.
        """
        return place

    assert list(book.input_schema["properties"]) == ["place"]


def test_half_a_character_in_a_docstring_is_replaced() -> None:
    assert parse_docstring("Half \ud800.").summary == "Half ?."
