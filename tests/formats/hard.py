"""Tools with every kind of argument that a Python function may have."""

import datetime as dt
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from handrail import Tool, tool


class Cat(BaseModel):
    """A cat."""

    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str
    tricks: list[str] = []


class Node(BaseModel):
    label: str
    children: list["Node"] = []


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


@dataclass
class Address:
    street: str
    zip: Annotated[str, Field(pattern=r"^\d{5}$")]
    country: str = "CH"


class Window(TypedDict):
    start: dt.date
    end: NotRequired[dt.date]


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
Even = Annotated[int, Field(ge=1, le=10, multiple_of=2)]


async def sayable(
    pet: Annotated[Pet, "Which animal."],
    tree: Annotated[Node, "Where it sits."],
    when: Annotated[dt.datetime, "From when on."],
    price: Annotated[Decimal, "What it costs."],
    color: Annotated[Color, "Its colour."],
    address: Annotated[Address, "Where it lives."],
    window: Annotated[Window, "When to come."],
    reference: Annotated[UUID, "Its number."],
    tags: Annotated[set[str], "Words for it."],
    n: Annotated[Even, "How many."] = 2,
    note: Annotated[str | None, "Anything else."] = None,
) -> str:
    """Take an animal."""
    return "taken"


async def unsayable(
    meta: Annotated[dict[str, int], "Counts by name."],
    pair: Annotated[tuple[int, str], "A number and a name."],
    anything: Annotated[Any, "Whatever."] = None,
) -> str:
    """Take things that a strict mode has no words for."""
    return "taken"


def hard_tools(*, strict: bool) -> list[Tool[..., Any]]:
    return [tool(strict=strict)(sayable), tool(strict=strict)(unsayable)]


SAYABLE: dict[str, Any] = {
    "pet": {"kind": "dog", "name": "Rex"},
    "tree": {"label": "root", "children": [{"label": "leaf"}]},
    "when": "2026-01-02T03:04:05Z",
    "price": "12.50",
    "color": "red",
    "address": {"street": "Main", "zip": "12345"},
    "window": {"start": "2026-01-02"},
    "reference": "12345678-1234-5678-1234-567812345678",
    "tags": ["a", "b"],
}
"""Arguments of `sayable`, with everything left out that can be."""
SAYABLE_STRICT: dict[str, Any] = {
    "pet": {"kind": "dog", "name": "Rex", "tricks": None},
    "tree": {"label": "root", "children": [{"label": "leaf", "children": None}]},
    "when": "2026-01-02T03:04:05Z",
    "price": "12.50",
    "color": "red",
    "address": {"street": "Main", "zip": "12345", "country": None},
    "window": {"start": "2026-01-02", "end": None},
    "reference": "12345678-1234-5678-1234-567812345678",
    "tags": ["a", "b"],
    "n": None,
    "note": None,
}
"""The same, as OpenAI's strict mode has it: nothing is left out."""
UNSAYABLE: dict[str, Any] = {"meta": {"a": 1, "b": 2}, "pair": [1, "x"]}
