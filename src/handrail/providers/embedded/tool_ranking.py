"""Ranks tools for a message: by embedding, then by the values that the message contains."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.providers.embedded.schema_reduction import as_list, as_mapping, has_mention
from handrail.providers.embedded.spans import extract, extract_numbers, find_kind
from handrail.registry.search import get_search_text, get_search_words
from handrail.registry.text_similarity import Embedder, TextSimilarity, WordIndex, extract_words

SMALL_TALK: Final = (
    "Greeting or small talk",
    "Saying thank you or goodbye",
    "A question about general knowledge",
    "Asking the assistant about itself",
    "Saying yes or no, agreeing",
    "Asking for a joke, a story or a recommendation",
    "Hello, how are you?",
    "Thank you, that was helpful. Goodbye.",
    "What is the meaning of this word?",
)
"""Messages that need no tool. A message that is more similar to one of these than to any tool gets a text reply."""

MAX_CANDIDATES: Final = 3
"""The number of tools that are ranked again by values. There is no threshold: a match may have a cosine of 0.2."""
EVIDENCE_WEIGHT: Final = 0.1
"""The weight of a value that the message contains or lacks, compared with the cosine."""


class ToolRanking(Struct, frozen=True, kw_only=True):
    """The best tools, in order."""

    tools: tuple[Tool[..., Any], ...]
    is_small_talk: bool
    """Whether the message probably asks for none of them."""


class ToolRanker:
    """Ranks tools for a message. The embedding of a description is computed once."""

    def __init__(self, embedder: Embedder) -> None:
        self._meaning = TextSimilarity(embedder)

    def rank(self, tools: Sequence[Tool[..., Any]], message: str) -> ToolRanking:
        """Rank the tools for a message."""
        if self._meaning.is_available:
            every = self._meaning.measure([*map(get_search_text, tools), *SMALL_TALK], message)
            scores, chatter = every[: len(tools)], max(every[len(tools) :])
        else:
            scores, chatter = WordIndex([*map(get_search_words, tools)]).measure(message), 0.0
        best = sorted(zip(scores, tools, strict=True), key=lambda scored: -scored[0])[:MAX_CANDIDATES]
        ranked = sorted(
            ((score + EVIDENCE_WEIGHT * score_evidence(tool, message), tool) for score, tool in best),
            key=lambda scored: -scored[0],
        )
        return ToolRanking(
            tools=tuple(tool for _, tool in ranked),
            is_small_talk=not ranked or max(score for score, _ in best) <= 0 or chatter > ranked[0][0],
        )


def score_evidence(tool: Tool[..., Any], message: str) -> int:
    """Score how well the values in a message fit the required arguments of a tool."""
    properties = as_mapping(tool.input_schema.get("properties"))
    found = extract_numbers(message)
    score, takes_number, takes_text = 0, False, False
    for name in as_list(tool.input_schema.get("required")):
        node = as_mapping(properties.get(name))
        if values := as_list(node.get("enum")):
            score += 1 if has_mention(message, values) else -1
        elif node.get("type") in ("integer", "number"):
            takes_number = True
            score += 1 if found else -1
        elif (kind := find_kind(str(name), node)) is not None:
            takes_text = True
            score += 1 if extract(kind, message) else -1
        else:
            takes_text = True
    if found and not takes_number and not takes_text:
        score -= 1
    named = extract_words(tool.name.replace("_", " ")) & extract_words(message)
    return score + bool(named)
