"""Which tool is picked, with vectors that a test can read: one direction for each topic."""

from collections.abc import Sequence
from typing import Literal

import pytest

from handrail import tool
from handrail.providers.embedded.tool_choice import SMALL_TALK, ToolRanker
from handrail.registry import text_similarity

TOPICS = ("money", "parcel", "weather", "person", "chatter")


class Topics:
    """Vectors by the topics that a text names."""

    def __init__(self, *, present: bool = True) -> None:
        self.is_available = present
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.embedded += texts
        found = [
            [float(topic in text or (topic == "chatter" and text in SMALL_TALK)) for topic in TOPICS] for text in texts
        ]
        return [[item / (sum(map(abs, vector)) or 1.0) for item in vector] for vector in found]


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
    picked = ToolRanker(Topics()).rank(TOOLS, said)

    assert picked.tools[0].name == first
    assert len(picked.tools) == 3
    assert not picked.is_small_talk


def test_what_is_closer_to_small_talk_is_small_talk() -> None:
    assert ToolRanker(Topics()).rank(TOOLS, "chatter").is_small_talk
    assert ToolRanker(Topics()).rank(TOOLS, "something else").is_small_talk
    assert ToolRanker(Topics()).rank((), "my money").is_small_talk


def test_a_description_is_embedded_once_and_nothing_of_the_tool_beside_it() -> None:
    topics = Topics()
    picker = ToolRanker(topics)

    for _ in range(3):
        picker.rank(TOOLS, "my parcel")

    assert sorted(topics.embedded) == sorted([*(item.description for item in TOOLS), *SMALL_TALK, *["my parcel"] * 3])


def test_more_descriptions_than_are_remembered_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_similarity, "_MAX_CACHED_VECTORS", 5)
    picker = ToolRanker(Topics())

    for said in ("my parcel", "the weather", "my parcel"):
        assert picker.rank(TOOLS, said).tools[0].name == ("forecast" if "weather" in said else "track")
        assert picker.rank((track,), "my parcel").tools == (track,)


def test_without_vectors_words_in_common_do() -> None:
    topics = Topics(present=False)
    picker = ToolRanker(topics)

    assert picker.rank(TOOLS, "Where are my parcels?").tools[0].name == "track"
    assert picker.rank(TOOLS, "Hello, you!").is_small_talk
    assert topics.embedded == []
