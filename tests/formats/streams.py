"""Calls that are said in pieces, and what must hold wherever a stream breaks off."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from handrail import ToolArgsParseError, ToolCall, build_tool
from tests.formats.apis import Said

takes_anything = build_tool({"name": "any", "input_schema": {"type": "object"}, "execute": lambda payload: ""})

values = (
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
)
arguments = st.dictionaries(st.sampled_from(["a", "b", "c"]), values | st.lists(values, max_size=2), min_size=1)


@st.composite
def spoken(draw: st.DrawFn, most: int = 3) -> list[Said]:
    """Calls of one answer, with their arguments as JSON text."""
    many = draw(st.lists(arguments, min_size=1, max_size=most))
    return [Said(f"call_{n}", f"tool_{n}", json.dumps(one)) for n, one in enumerate(many)]


def pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@st.composite
def woven(draw: st.DrawFn, threads: Sequence[list[Any]], *, interleaved: bool) -> list[Any]:
    """Several sequences as one: one after the other, or mixed; each begins after the one before it has begun."""
    if not interleaved:
        return [item for thread in threads for item in thread]
    left = [list(thread) for thread in threads]
    begun = 0
    mixed: list[Any] = []
    while any(left):
        open_now = [n for n, thread in enumerate(left[: begun + 1]) if thread]
        chosen = draw(st.sampled_from(open_now))
        begun = max(begun, chosen + 1)
        mixed.append(left[chosen].pop(0))
    return mixed


def check_cuts(events: list[Any], said: list[Said], calls: Callable[[list[Any]], list[ToolCall]]) -> None:
    """Wherever the stream breaks off: a call whose arguments are not all there is never taken for complete."""
    whole = calls(events)
    assert [(item.wire_id, item.name, item.arguments_json) for item in whole] == [
        (text.id, text.name, text.arguments) for text in said
    ]
    for position in range(len(events)):
        found = calls(events[:position])
        assert [item.wire_id for item in found] == [text.id for text in said][: len(found)]
        for call, one in zip(found, said, strict=False):
            if call.arguments_json != one.arguments:
                with pytest.raises(ToolArgsParseError):
                    takes_anything.parse(call.arguments_json)
