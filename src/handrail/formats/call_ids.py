"""Ids of calls that are unique in a conversation, also from servers that number the calls of every response anew."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import structs

from handrail.core.patterns import LazyPattern
from handrail.core.values import ToolCall

_UUID: Final = r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}"
_RANDOM_FORMS: Final = LazyPattern(
    rf"""
    (?:[A-Za-z][A-Za-z0-9_.:-]*[_-])?{_UUID}                # vLLM, DeepSeek, Ollama and many others
    | (?:call|fc|ctc)_(?:\d+_)?(?:[A-Za-z0-9]{{24}}|[A-Za-z0-9]{{16}})   # OpenAI, in Realtime the shorter one
    | toolu_(?:bdrk_|vrtx_)?[A-Za-z0-9]{{24}}               # Anthropic, also through Bedrock and Vertex
    | tooluse_[A-Za-z0-9_-]{{22}}                           # Bedrock
    | chatcmpl-tool-[0-9a-f]{{16}}                          # vLLM
    | function-call-\d{{16,20}}                             # Gemini Live
    """,
    re.VERBOSE | re.IGNORECASE,
)
_MIN_DISTINCT_CHARS: Final = 8
"""A random id has at least this many different characters; `call_0000000000000001` is a counter in disguise."""


def is_random_id(call_id: str) -> bool:
    """Whether an id has a form that a provider is known to draw at random, and so does not repeat."""
    if _RANDOM_FORMS.compiled.fullmatch(call_id) is None:
        return False
    tail = re.split(r"[_-]", call_id, maxsplit=1)[-1]
    return len(set(tail)) >= _MIN_DISTINCT_CHARS and any(character.isdigit() for character in tail)


def make_ids_unique(calls: Iterable[ToolCall]) -> list[ToolCall]:
    """Put the id of the response before the id of a call, `{response_id}/{id}`, unless that id is random.

    Many servers begin at `call_0` in every response. An id that comes twice would be taken for the same call: the
    second payment that a customer wants would get the result of the first. The same response gives the same ids every
    time. Without an id of the response the ids stay as they are.
    """
    seen: Counter[tuple[str, str]] = Counter()
    return [_make_id_unique(call, position, seen) for position, call in enumerate(calls)]


def _make_id_unique(call: ToolCall, position: int, seen: Counter[tuple[str, str]]) -> ToolCall:
    if not call.response_id or is_random_id(call.id):
        return call
    # Calls of one response without an id, or with equal ones, are told apart by their order.
    unique = f"{call.response_id}/{call.id or f'#{position}'}"
    seen[call.response_id, call.id] += 1
    if call.id and (count := seen[call.response_id, call.id]) > 1:
        unique += f"#{count}"
    return structs.replace(call, id=unique, provider_id=call.wire_id)
