"""Checks that the conversation supports the values of a consequential call."""

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from msgspec import Struct

from handrail.core.text import canonical_json, normalize_canonical
from handrail.core.value_mentions import contains_words, mentions_value
from handrail.guide.parameters import GuidedTool
from handrail.guide.values import ToolVerdict


class EvidenceSources(Struct, frozen=True, kw_only=True):
    """The texts that evidence for a value may be quoted from."""

    customer: tuple[str, ...]
    """What the customer wrote."""
    others: tuple[str, ...] = ()
    """What the agent wrote, and what tools, variables and terms say."""
    variables: Mapping[str, Any] = {}
    today: date | None = None


def is_known(value: Any, known: Iterable[Any]) -> bool:
    """Whether a value is one of several, as JSON: 1.0 is 1, and 1 is not true."""
    text = _to_text(value)
    return text is not None and any(text == _to_text(other) for other in known)


def _to_text(value: Any) -> str | None:
    try:
        return normalize_canonical(canonical_json(value))
    except (TypeError, ValueError):  # A variable can be anything.
        return None


def find_missing_evidence(
    tool: GuidedTool, name: str, value: Any, verdict: ToolVerdict, sources: EvidenceSources
) -> str | None:
    """Find why the evidence for a value does not support it: the words must be quoted, and contain the value."""
    options = tool.get_options(name)
    if options.source == "model" or options.hidden or is_known(value, [tool.get_default(name)]):
        return None
    if options.source != "customer" and is_known(value, sources.variables.values()):
        return None
    evidence = verdict.evidence.get(name)
    if not isinstance(evidence, str) or not evidence.strip():
        return "nothing in the conversation supports a value for it"
    if not any(contains_words(text, evidence) for text in sources.customer):
        if options.source == "customer":
            return "the customer has not said it"
        if not any(contains_words(text, evidence) for text in sources.others):
            return "the words that were quoted for it are not in the conversation"
    # A value of a list of choices is a code: the words that stand for it are others.
    if name in tool.coded or mentions_value(evidence, value, today=sources.today):
        return None
    return "the words that were quoted for it do not contain the value"
