"""Which tool is picked, with vectors that a test can read: one direction for each topic."""

from collections.abc import Sequence
from typing import Literal

import pytest

from handrail import tool
from handrail.providers.embedded.picking import CHATTER, Picker
from handrail.registry import search

TOPICS = ("money", "parcel", "weather", "person", "chatter")


class Topics:
    """Vectors by the topics that a text names."""

    def __init__(self, *, present: bool = True) -> None:
        self.present = present
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.embedded += texts
        found = [
            [float(topic in text or (topic == "chatter" and text in CHATTER)) for topic in TOPICS] for text in texts
        ]
        return [[one / (sum(map(abs, vector)) or 1.0) for one in vector] for vector in found]


@tool(read_only=True)
async def pay(amount: int) -> str:
    """Send money."""
    return ""


@tool(read_only=True)
async def look(account: Literal["current", "savings"]) -> str:
    """Look up money."""
    return ""


@tool(read_only=True)
async def track(number: str) -> str:
    """Track a parcel."""
    return ""


@tool(read_only=True)
async def forecast() -> str:
    """Tell the weather."""
    return ""


TOOLS = (pay, look, track, forecast)


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ("my money: 50", "pay"),
        ("my money in the savings", "look"),
        ("my parcel", "track"),
        ("how will the weather be", "forecast"),
    ],
)
def test_the_closest_is_first_and_what_the_message_names_decides_between_equals(said: str, first: str) -> None:
    picked = Picker(Topics()).pick(TOOLS, said)

    assert picked.tools[0].name == first
    assert len(picked.tools) == 3
    assert not picked.chatter


def test_what_is_closer_to_small_talk_is_small_talk() -> None:
    assert Picker(Topics()).pick(TOOLS, "chatter").chatter
    assert Picker(Topics()).pick(TOOLS, "something else").chatter
    assert Picker(Topics()).pick((), "my money").chatter


def test_a_description_is_embedded_once_and_nothing_of_the_tool_beside_it() -> None:
    topics = Topics()
    picker = Picker(topics)

    for _ in range(3):
        picker.pick(TOOLS, "my parcel")

    assert sorted(topics.embedded) == sorted([*(one.description for one in TOOLS), *CHATTER, *["my parcel"] * 3])


def test_more_descriptions_than_are_remembered_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_REMEMBERED", 5)
    picker = Picker(Topics())

    for said in ("my parcel", "the weather", "my parcel"):
        assert picker.pick(TOOLS, said).tools[0].name == ("forecast" if "weather" in said else "track")
        assert picker.pick((track,), "my parcel").tools == (track,)


def test_without_vectors_words_in_common_do() -> None:
    topics = Topics(present=False)
    picker = Picker(topics)

    assert picker.pick(TOOLS, "Where are my parcels?").tools[0].name == "track"
    assert picker.pick(TOOLS, "Hello, you!").chatter
    assert topics.embedded == []
