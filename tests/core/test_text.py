"""Values become text in one way: compact, canonical, or exactly as they came."""

import json
import math
import unicodedata
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from handrail.core import Redactor
from handrail.core.text import (
    canonical_json,
    compact_json,
    encodable,
    escape_invisible,
    faithful_json,
    normalize_unicode,
    quick_json,
)
from handrail.core.value_mentions import contains_words

halves = st.sampled_from(["\ud800", "\udfff", "a\udc00"])
plain = st.text(st.characters(codec="utf-8"))


def values(text: st.SearchStrategy[str], *, finite: bool = True) -> st.SearchStrategy[Any]:
    numbers = st.integers() | st.floats(allow_nan=not finite, allow_infinity=not finite)
    return st.recursive(
        text | st.none() | st.booleans() | numbers,
        lambda inner: st.lists(inner) | st.dictionaries(text, inner),
        max_leaves=10,
    )


class Invoice(BaseModel):
    number: str
    due: date


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, None, True], "b": "ü"}, '{"a":[1,2.5,null,true],"b":"ü"}'),
        (Invoice(number="7", due=date(2030, 1, 2)), '{"number":"7","due":"2030-01-02"}'),
        (datetime(2030, 1, 2, tzinfo=UTC), '"2030-01-02T00:00:00Z"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.10"), '"1.10"'),
        ({3}, "[3]"),
        ([math.nan, math.inf, -math.inf], '["NaN","Infinity","-Infinity"]'),
        (["\ud800", {"\ud800": 1}], '["?",{"?":1}]'),
        ({"\ud800": Invoice.model_construct(number="\udfff", due=None)}, '{"?":{"number":"?","due":null}}'),
    ],
)
def test_compact_json_is_short_and_always_valid(value: Any, text: str) -> None:
    assert compact_json(value) == text


@given(value=values(plain))
def test_compact_json_keeps_json_values(value: Any) -> None:
    assert json.loads(compact_json(value)) == value


@given(value=values(plain | halves, finite=False))
def test_compact_json_can_always_be_sent_and_read(value: Any) -> None:
    json.loads(compact_json(value).encode("utf-8"), parse_constant=pytest.fail)


@pytest.mark.parametrize("value", [object(), [object()], {"a": {1: object()}}, b"\xff", ["\ud800", object()]])
def test_what_is_no_json_is_a_value_error(value: Any) -> None:
    for write in (compact_json, faithful_json):
        with pytest.raises(ValueError, match=r"serialize|utf-?8"):
            write(value)


@given(value=values(plain | halves, finite=False))
def test_faithful_json_is_what_the_value_came_from(value: Any) -> None:
    text = faithful_json(value)

    text.encode("utf-8")
    assert repr(json.loads(text)) == repr(value)


def turned(value: Any) -> Any:
    """An equal value whose keys stand in another order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(list(value))}
    return [turned(part) for part in value] if isinstance(value, list) else value


def shown(value: Any) -> str:
    """A picture that is equal for equal values only."""
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{key!r}: {shown(one)}' for key, one in value.items()))}}}"
    return f"[{', '.join(map(shown, value))}]" if isinstance(value, list) else repr(value)


@given(value=values(plain | halves, finite=False))
@example(value={"b": 1, "a": [{"d": 1, "c": 2}]})
@example(value={"b": "\ud800", "a": math.inf})
def test_canonical_json_is_equal_for_equal_values(value: Any) -> None:
    assert canonical_json(turned(value)) == canonical_json(value)
    assert shown(json.loads(canonical_json(value))) == shown(value)


@given(one=values(plain | halves, finite=False), other=values(plain | halves, finite=False))
def test_canonical_json_is_different_for_different_values(one: Any, other: Any) -> None:
    assert (canonical_json(one) == canonical_json(other)) == (shown(one) == shown(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (None, math.nan),
        (math.inf, -math.inf),
        ("1", 1),
        ([None], [math.inf]),
        ({}, []),
        ("", None),
    ],
)
def test_canonical_json_tells_these_apart(one: Any, other: Any) -> None:
    assert canonical_json({"a": one}) != canonical_json({"a": other})


@given(text=st.text(st.characters()) | halves)
def test_encodable_text_is_the_text_itself_where_it_can_be(text: str) -> None:
    sent = encodable(text).encode("utf-8").decode("utf-8")

    assert len(sent) == len(text)
    assert all(one == other or "\ud800" <= one <= "\udfff" for one, other in zip(text, sent, strict=True))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "a\\u202eb"),
        ("\x00\x07\x1b\x7f\x85", "\\u0000\\u0007\\u001b\\u007f\\u0085"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("\ud800", "\\ud800"),
        ("\u200b\ufeff\u2028", "\\u200b\\ufeff\\u2028"),
        ("a\u3164\uffa0\u2800\u034fb", "a\\u3164\\uffa0\\u2800\\u034fb"),
        ("\u17b4\u180b\ufff0", "\\u17b4\\u180b\\ufff0"),
        ("\U0001d173\U0001bca0", "\\ud834\\udd73\\ud82f\\udca0"),
        ("plain\n\tline: é 漢 🙂", "plain\n\tline: é 漢 🙂"),
    ],
)
def test_what_a_person_would_not_see_is_escaped_as_json_has_it(text: str, shown: str) -> None:
    assert escape_invisible(text) == shown
    if "\n" not in text:
        assert json.loads(f'"{shown}"') == text


@pytest.mark.parametrize(
    "value",
    [
        {"b": 1, "a": [None, True, 0.5, -0.0, 1e-7, 2**70], 'é"\\': {"c": "x\n\x7f\u2028"}},
        {"a": float("nan"), "b": [float("inf"), None]},
        {"a": "half of a pair: \ud800"},
    ],
)
def test_the_quick_text_of_json_values_is_the_compact_one(value: dict[str, Any]) -> None:
    assert quick_json(value) == compact_json(value)


letters = st.sampled_from(["a", "Z", "é", "ﬁ", "ｶ", "が", "か", "가", "漢", "ά", "ض", "क", "…", " "])
marks = st.text(st.sampled_from(["\u0301", "\u0323", "\u3099", "\uff9e", "\u11a8", "\u093c"]), max_size=6)


@pytest.mark.parametrize("form", ["NFC", "NFKC", "NFKD"])
@example(words=[("…", ""), ("…", "\u0323\u0301\u0301"), ("…", "\u0301\u0301\u0301")])
@given(words=st.lists(st.tuples(letters, marks), min_size=1, max_size=40))
def test_the_pieces_of_a_long_text_are_normalized_as_the_whole_is(form: Any, words: list[tuple[str, str]]) -> None:
    text = "".join(letter + more for letter, more in words) * 30

    assert normalize_unicode(text, form) == unicodedata.normalize(form, text)


@pytest.mark.parametrize("marks", ["\u0301" * 300_000 + "\u0323" * 300_000, "\u0301\uff9e" * 300_000])
def test_many_marks_on_one_letter_take_linear_time(marks: str) -> None:
    """A second or two; what is worse than linear takes minutes, and holds up all threads."""
    assert not contains_words(f"a{marks}", "b")
    assert Redactor().arguments({f"a{marks}": "shown"}) == {f"a{marks}": "shown"}
