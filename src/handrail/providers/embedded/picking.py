"""Which tool a message asks for: the embedding ranks, what the message names decides between the best."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.models.embedding import closeness
from handrail.providers.embedded.constrain import listed, members, mentions, numbers

CHATTER: Final = (
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
"""What people say that asks for no tool. A message that is closer to one of these than to any tool is answered."""

BEST: Final = 3
"""So many tools are looked at closely. There is no threshold: a true match may have a cosine of 0.2."""
EVIDENCE: Final = 0.1
"""What one value that the message names, or lacks, counts beside the cosine."""
_REMEMBERED: Final = 4096
_COMMON: Final = re.compile(
    r"(a|an|and|are|at|do|find|for|from|get|has|have|how|i|in|is|it|list|look|me|my|of|on|or|please|show|that|the|this|to"
    r"|up|what|where|which|who|with|you|your)"
)


class Embedder(Protocol):
    """What turns texts into vectors: `handrail.models.embedding.Embedding`."""

    @property
    def present(self) -> bool: ...

    def embed(self, texts: Sequence[str]) -> list[list[float]]: ...


class Picked(Struct, frozen=True, kw_only=True):
    """The best tools, the first one the best."""

    tools: tuple[Tool[..., Any], ...]
    chatter: bool
    """Whether the message asks for none of them, as far as this can tell."""


class Picker:
    """Ranks tools for a message. The vector of a description is worked out once."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[str, list[float]] = {}

    def pick(self, tools: Sequence[Tool[..., Any]], said: str) -> Picked:
        """The best of the tools for what was said."""
        if self._embedder.present:
            scores, chatter = self._meant(tools, said)
        else:
            scores, chatter = [overlap(tool, said) for tool in tools], 0.0
        best = sorted(zip(scores, tools, strict=True), key=lambda one: -one[0])[:BEST]
        ranked = sorted(
            ((score + EVIDENCE * evidence(tool, said), tool) for score, tool in best), key=lambda one: -one[0]
        )
        return Picked(
            tools=tuple(tool for _, tool in ranked),
            chatter=not ranked or max(score for score, _ in best) <= 0 or chatter > ranked[0][0],
        )

    def _meant(self, tools: Sequence[Tool[..., Any]], said: str) -> tuple[list[float], float]:
        texts = [_described(tool) for tool in tools]
        vectors = self._known([*texts, *CHATTER])
        (message,) = self._embedder.embed([said])
        scores = [closeness(message, vectors[text]) for text in texts]
        return scores, max(closeness(message, vectors[text]) for text in CHATTER)

    def _known(self, texts: Sequence[str]) -> Mapping[str, list[float]]:
        known = self._vectors if len(self._vectors) < _REMEMBERED else {}
        new = list(dict.fromkeys(text for text in texts if text not in known))
        # A new mapping each time: other threads go on with the one that they have.
        self._vectors = {**known, **dict(zip(new, self._embedder.embed(new), strict=True))} if new else known
        return self._vectors


def evidence(tool: Tool[..., Any], said: str) -> int:
    """How well the values that a message names fit the arguments that a tool must have."""
    properties = members(tool.input_schema.get("properties"))
    found = numbers(said)
    score, takes_number, takes_text = 0, False, False
    for name in listed(tool.input_schema.get("required")):
        node = members(properties.get(name))
        if values := listed(node.get("enum")):
            score += 1 if mentions(said, values) else -1
        elif node.get("type") in ("integer", "number"):
            takes_number = True
            score += 1 if found else -1
        else:
            takes_text = True
    if found and not takes_number and not takes_text:
        score -= 1
    named = _words(tool.name.replace("_", " ")) & _words(said)
    return score + bool(named)


def overlap(tool: Tool[..., Any], said: str) -> float:
    """The words that a message shares with a tool, for a machine without the embedding model."""
    message = _words(said)
    return len(message & _words(f"{tool.name.replace('_', ' ')} {_described(tool)}")) / (len(message) or 1)


def _described(tool: Tool[..., Any]) -> str:
    """The description alone: names of arguments only blur it."""
    return tool.description or tool.name.replace("_", " ")


def _words(text: str) -> set[str]:
    """The words that carry meaning, without their endings."""
    return {word[:5] for word in re.findall(r"[^\W\d_]+", text.casefold()) if not _COMMON.fullmatch(word)}
