"""Tools by what a text asks for: by meaning where the model is there, else by words in common."""

from collections.abc import Sequence

import pytest

from handrail import ConfigError, ToolRegistry, tool
from handrail.registry.search import ToolSearch
from tests.models.weights import fetched


@tool(read_only=True)
async def get_balance() -> str:
    """Look up how much money is in an account."""
    return ""


@tool(read_only=True)
async def track_parcel() -> str:
    """Say where a parcel is that was sent."""
    return ""


@tool(read_only=True)
async def forecast() -> str:
    """Tell the weather of the next days."""
    return ""


POOL = ToolRegistry([get_balance, track_parcel, forecast])


class Absent:
    """A machine without the model."""

    is_available = False

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        raise AssertionError("there is no model")


@pytest.mark.parametrize(
    ("text", "first"),
    [("Where is my parcel?", "track_parcel"), ("money", "get_balance"), ("the WEATHER, please", "forecast")],
)
def test_words_in_common_find_a_tool(text: str, first: str) -> None:
    found = ToolSearch(POOL, embedder=Absent()).search(text)

    assert found[0].tool.name == first
    assert all(0 < one.score <= 1 for one in found)


def test_what_has_nothing_in_common_is_not_found() -> None:
    search = ToolSearch(POOL, embedder=Absent())

    assert search.search("photosynthesis") == []
    assert search.search("") == []
    assert ToolSearch([], embedder=Absent()).search("money") == []


def test_no_more_than_asked_for_and_always_in_the_same_order() -> None:
    search = ToolSearch(POOL, embedder=Absent())

    assert [one.tool.name for one in search.search("parcel weather money")] == [
        "forecast",
        "get_balance",
        "track_parcel",
    ]
    assert len(search.search("parcel weather money", limit=2)) == 2
    with pytest.raises(ConfigError, match="at least 1"):
        search.search("money", limit=0)


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("When does my package arrive?", "track_parcel"),
        ("Am I broke?", "get_balance"),
        ("Do I need an umbrella tomorrow?", "forecast"),
    ],
)
def test_the_meaning_finds_a_tool_without_a_word_in_common(text: str, first: str) -> None:
    fetched("minilm")
    assert ToolSearch(POOL).search(text, limit=1)[0].tool.name == first
