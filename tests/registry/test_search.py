"""Tools by what a text asks for: by meaning where the model is there, else by words in common."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from handrail import ConfigError, Tool, ToolRegistry, tool
from handrail.registry import ToolSearch
from handrail.registry.text_similarity import TextSimilarity
from handrail.testing.evaluations import DOMAINS, TOOLS, load_domain_prompts, load_prompts
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
    assert all(0 < item.score <= 1 for item in found)


def test_what_has_nothing_in_common_is_not_found() -> None:
    search = ToolSearch(POOL, embedder=Absent())

    assert search.search("photosynthesis") == []
    assert search.search("") == []
    assert ToolSearch([], embedder=Absent()).search("money") == []


def test_of_two_tools_that_fit_alike_the_one_that_only_reads_comes_first() -> None:
    pool = [replace(get_balance, name="close_account", read_only=False), get_balance]

    found = ToolSearch(pool, embedder=Absent()).search("account money")

    assert [item.tool.name for item in found] == ["get_balance", "close_account"]


def test_no_more_than_asked_for_and_always_in_the_same_order() -> None:
    search = ToolSearch(POOL, embedder=Absent())

    assert [item.tool.name for item in search.search("parcel weather money")] == [
        "forecast",
        "get_balance",
        "track_parcel",
    ]
    assert len(search.search("parcel weather money", limit=2)) == 2
    with pytest.raises(ConfigError, match="at least 1"):
        search.search("money", limit=0)


def test_the_recall_of_the_search_by_words_is_what_the_page_says() -> None:
    prompts = [*load_prompts(), *(prompt for prompts in load_domain_prompts().values() for prompt in prompts)]
    wanted = [prompt for prompt in prompts if prompt.tool is not None]
    pool = [*TOOLS, *(tool for tools in DOMAINS.values() for tool in tools)]
    search = ToolSearch(pool, embedder=Absent())
    found = [[result.tool.name for result in search.search(prompt.message, limit=3)] for prompt in wanted]

    first = sum(names[:1] == [prompt.tool] for names, prompt in zip(found, wanted, strict=True))
    among = sum(prompt.tool in names for names, prompt in zip(found, wanted, strict=True))
    assert (len(pool), len(wanted), first, among) == (19, 82, 50, 66)


# Large pools: what is embedded is counted, times would be noise.


class Counting:
    """An embedder whose vectors are the letters of a text, not of length 1; it counts what it is given."""

    is_available = True

    def __init__(self) -> None:
        self.embedded: list[int] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.embedded.append(len(texts))
        return [[float(text.count(letter)) for letter in "abcdefghij"] for text in texts]


def numbered(count: int) -> list[Tool[..., Any]]:
    """Tools whose numbers are written in letters."""
    words = [f"{number:05}".translate({ord("0") + n: "abcdefghij"[n] for n in range(10)}) for number in range(count)]
    return [replace(get_balance, name=f"tool_{word}", description=word) for word in words]


class Source:
    """Tools that change."""

    def __init__(self, tools: list[Tool[..., Any]]) -> None:
        self.tools = tools

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def test_a_query_of_a_large_pool_embeds_one_text() -> None:
    embedder, source = Counting(), Source(numbered(10_000))
    search = ToolSearch(source, embedder=embedder)
    search.search("first")
    assert embedder.embedded == [10_000, 1]

    embedder.embedded.clear()
    for text in ("abcde", "ajjjj", "aiiii"):
        best = search.search(text, limit=3)
        assert "".join(sorted(best[0].tool.description)) == "".join(sorted(text))
        assert [item.score for item in best] == sorted((item.score for item in best), reverse=True)
        assert best[0].score == pytest.approx(1.0)
    assert embedder.embedded == [1, 1, 1]


def test_a_tool_that_is_added_to_a_large_pool_is_embedded_alone() -> None:
    embedder, source = Counting(), Source(numbered(4_200))
    search = ToolSearch(source, embedder=embedder)
    search.search("first")
    embedder.embedded.clear()

    source.tools.append(replace(get_balance, name="new", description="jjjjjjjj"))
    assert search.search("jj", limit=1)[0].tool.name == "new"
    del source.tools[:2]
    search.search("jj")

    assert embedder.embedded == [1, 1, 1]


def test_other_texts_push_out_the_oldest_vectors_one_by_one() -> None:
    embedder = Counting()
    meaning = TextSimilarity(embedder)
    texts = [f"a{number}" for number in range(4_096)]
    meaning.measure(texts, "a")
    meaning.measure(["b1", "b2"], "a")
    embedder.embedded.clear()

    assert len(meaning.measure(texts[2:], "a")) == 4_094
    assert embedder.embedded == [1]
    meaning.measure(texts[:2], "a")
    assert embedder.embedded == [1, 2, 1]
    assert meaning.measure([], "a") == []


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
