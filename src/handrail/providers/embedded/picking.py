"""Which tool a message asks for: the embedding ranks, what the message names decides between the best."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.providers.embedded.constrain import listed, members, mentions, numbers
from handrail.registry.search import Embedder, Meaning, described, scored, words

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


class Picked(Struct, frozen=True, kw_only=True):
    """The best tools, the first one the best."""

    tools: tuple[Tool[..., Any], ...]
    chatter: bool
    """Whether the message asks for none of them, as far as this can tell."""


class Picker:
    """Ranks tools for a message. The vector of a description is worked out once."""

    def __init__(self, embedder: Embedder) -> None:
        self._meaning = Meaning(embedder)

    def pick(self, tools: Sequence[Tool[..., Any]], said: str) -> Picked:
        """The best of the tools for what was said."""
        if self._meaning.present:
            every = self._meaning.close([*map(described, tools), *CHATTER], said)
            scores, chatter = every[: len(tools)], max(every[len(tools) :])
        else:
            scores, chatter = scored(tools, said, self._meaning), 0.0
        best = sorted(zip(scores, tools, strict=True), key=lambda one: -one[0])[:BEST]
        ranked = sorted(
            ((score + EVIDENCE * evidence(tool, said), tool) for score, tool in best), key=lambda one: -one[0]
        )
        return Picked(
            tools=tuple(tool for _, tool in ranked),
            chatter=not ranked or max(score for score, _ in best) <= 0 or chatter > ranked[0][0],
        )


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
    named = words(tool.name.replace("_", " ")) & words(said)
    return score + bool(named)
