"""Chooses the tool that a message asks for: which may be called, how well each fits, what a question never leads to.

Tools are ranked by embedding, then by the values that the message contains. A model of some size chooses one of the
best; for a smaller one the rank decides, and a question such as "Did you refund it?" never leads to a consequential
call.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from handrail.core.lazy_loading import LazyPattern
from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.formats.definitions import check_tool_choice
from handrail.providers.embedded.engine import Completion
from handrail.providers.embedded.prompts import PromptTurns, build_choice_prompt
from handrail.providers.embedded.schema_reduction import as_list, as_mapping, has_mention
from handrail.providers.embedded.spans import extract, extract_numbers, find_kind
from handrail.providers.provider import ModelRequest
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


_REQUEST: Final = LazyPattern(
    r"^\W*(?:(?:hi|hello|hey|ok|okay|yes|please|so|and|well)\W+)*"
    r"(?:(?:can|could|would|may)\b|will\s+you\b)",
    re.IGNORECASE,
)
_QUESTION: Final = LazyPattern(
    r"^\W*(?:(?:hi|hello|hey|ok|okay|so|and|but|well)\W+)*"
    r"(?:did|do|does|was|were|is|are|has|have|had|when|why|who|whom|whose|how|what|which|where|should|shall)\b",
    re.IGNORECASE,
)


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


def select_tools(request: ModelRequest) -> tuple[Sequence[Tool[..., Any]], bool]:
    """Return the tools that may be called, and whether one must be."""
    choice = request.tool_choice
    want = check_tool_choice(choice.mode, choice.tool, choice.allowed, None)
    names = [tool.name for tool in request.tools]
    chosen = (want.tool,) if want.tool is not None else want.allowed
    for name in chosen:
        if name not in names:
            listed = ", ".join(names) or "none"
            raise ConfigError(f"`{name}` is not a tool of this request; its tools are: {listed}.")
    must = want.mode == "required" or want.tool is not None
    if must and not names:
        raise ConfigError("tool_choice requires a call, but the request has no tools.")
    if want.mode == "none":
        return (), False
    return [tool for tool in request.tools if not chosen or tool.name in chosen], must


async def choose_tool(
    tools: Sequence[Tool[..., Any]],
    message: str,
    *,
    must: bool,
    is_demonstration: bool,
    ranker: ToolRanker,
    ask: Callable[[PromptTurns, dict[str, Any]], Awaitable[Completion]],
) -> Tool[..., Any] | None:
    """Choose the tool that a message asks for; None if it gets a text.

    Args:
        tools: Those that may be called.
        message: What the customer wrote.
        must: Whether one of them has to be called.
        is_demonstration: Whether the model is too small to choose, so that the rank decides.
        ranker: Ranks the tools.
        ask: Sends a prompt to the model, with the schema of its answer.
    """
    if must and len(tools) == 1:
        return tools[0]
    if is_demonstration and not must and not is_request(message):
        tools = [tool for tool in tools if tool.read_only]  # A question about a refund is no order to refund.
        if not tools:
            return None
    picked = await asyncio.to_thread(ranker.rank, tools, message)
    if is_demonstration:
        return picked.tools[0] if must or not picked.is_small_talk else None
    turns, schema = build_choice_prompt(picked.tools, message, can_reply=not must)
    chosen = await ask(turns, schema)
    return next((tool for tool in picked.tools if chosen.text == f'"{tool.name}"'), picked.tools[0] if must else None)


def is_request(message: str) -> bool:
    """Whether a message asks for something to be done, rather than a question such as "Did you refund it?"."""
    if _REQUEST.compiled.search(message):
        return True
    return _QUESTION.compiled.search(message) is None and not message.rstrip().endswith("?")


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
