"""The pre-filter: what it keeps, how often it keeps the right guideline, and that it can be turned off."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigError, Guideline
from handrail.guide import EmbeddingPrefilter, GuideSettings, LexicalPrefilter, Prefilter
from handrail.models.embedding import Embedding
from tests.guide.kit import agent_with, get_balance, open_session, plan, scripted, transfer_money

PAIRS: list[tuple[str, str]] = json.loads((Path(__file__).parent / "prefilter.json").read_text())["pairs"]
GUIDELINES = tuple(Guideline(condition=condition, id=f"g{number}") for number, (condition, _) in enumerate(PAIRS))


async def recall(prefilter: Prefilter, limit: int) -> float:
    """The share of messages whose guideline is among those that are kept."""
    kept = 0
    for number, (_, message) in enumerate(PAIRS):
        found = await prefilter.select(GUIDELINES, message, limit)
        kept += not found or f"g{number}" in found
    return kept / len(PAIRS)


async def test_the_recall_of_the_lexical_prefilter_is_what_the_page_says() -> None:
    # It knows no synonyms. Where a message shares no word with any guideline, all of them are asked about.
    assert await recall(LexicalPrefilter(), 30) >= 0.98
    assert await recall(LexicalPrefilter(), 50) == 1.0


@pytest.mark.model
async def test_the_recall_of_the_embedding_prefilter_is_what_the_page_says() -> None:
    if not Embedding().is_available:
        pytest.skip("the embedding model is not on this machine")
    assert await recall(EmbeddingPrefilter(), 10) >= 0.94


async def turn(prefilter: Any, text: str, **settings: Any) -> list[str]:
    """The guidelines that the judge is asked about, of an agent with many."""
    judge = scripted([plan([])], ["Hello."])
    agent = agent_with(
        judge,
        guidelines=[Guideline(condition=condition) for condition, _ in PAIRS],
        prefilter=prefilter,
        settings=GuideSettings(prefilter_above=20, prefilter_limit=5, **settings),
    )
    await agent.create_guideline("Be polite", always=True, id="always", tools=[get_balance])
    linked = await agent.create_guideline("Customer wants to sell", id="linked", tools=[transfer_money])
    await agent.create_relationship("g1", "depends_on", linked)
    await open_session(agent).send(text)
    return [guideline.id for guideline in judge.plan_requests[0].guidelines]


async def test_the_judge_is_asked_about_the_best_the_linked_and_those_that_always_apply() -> None:
    asked = await turn("lexical", "What is my account balance?")

    assert {"g1", "always", "linked"} <= set(asked)
    assert len(asked) == 6  # The five best, `always` among them, and what one of them depends on.


async def test_the_prefilter_can_be_turned_off_and_one_that_fails_hides_nothing() -> None:
    class Broken:
        def __init__(self, fault: str) -> None:
            self._fault = fault

        async def select(self, guidelines: Any, text: str, limit: int) -> Any:
            if self._fault == "raises":
                raise RuntimeError("boom")
            if self._fault == "cancels":
                raise asyncio.CancelledError
            if self._fault == "hangs":
                await asyncio.Event().wait()
            return 3 if self._fault == "returns a number" else [["g1"]]

    assert len(await turn(None, "Hello")) == len(PAIRS) + 2
    for fault in ("raises", "cancels", "hangs", "returns a number", "returns lists"):
        assert len(await turn(Broken(fault), "Hello", judge_timeout=0.2)) == len(PAIRS) + 2


def test_an_unknown_prefilter_is_an_error() -> None:
    with pytest.raises(ConfigError, match="prefilter must be 'lexical', 'embedding', None"):
        agent_with(scripted(), prefilter="magic")


async def test_guidelines_that_share_no_word_follow_in_their_order_until_the_limit() -> None:
    conditions = ["a parcel is late", "a refund is wanted", "a parcel is lost", "a refund of a parcel is late", "other"]
    guidelines = [Guideline(id=f"g-{place}", condition=condition) for place, condition in enumerate(conditions)]

    async def select(text: str, limit: int) -> list[str]:
        return [*await LexicalPrefilter().select(guidelines, text, limit)]

    assert await select("my parcel", 10) == ["g-0", "g-2", "g-3", "g-1", "g-4"]
    assert await select("a late refund", 4) == ["g-3", "g-0", "g-1", "g-2"]
    assert await select("a late refund", 1) == ["g-3"]
    assert await select("nothing of it", 4) == []
