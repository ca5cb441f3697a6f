"""Conditions on arguments: a path, an operator, and what holds when it cannot be told."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import ConfigError
from handrail.authorize.argument_paths import EVERY, DeclaredArguments, is_missing
from handrail.authorize.conditions import Condition
from tests.execute.helpers import at

MARKS = "\u0301" * 300_000 + "\u0323" * 300_000
"""Accents on one letter; to sort them takes minutes."""


def declare(*names: str) -> DeclaredArguments:
    """The arguments of a tool that takes these."""
    return DeclaredArguments({"properties": {name: {} for name in names}})


def outcome(where: dict[str, Any], arguments: dict[str, Any]) -> str:
    """Whether a condition holds, does not, or cannot be told."""
    condition = Condition(where)
    is_denied, is_allowed = (
        condition.matches(arguments, action=action, declared=declare()) for action in ("deny", "allow")
    )
    return "doubt" if is_denied != is_allowed else "holds" if is_allowed else "no"


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        # Equality: by kind, and by number.
        ("a", "a", "holds"),
        ("a", "b", "no"),
        (5, 5, "holds"),
        (5, 5.0, "holds"),
        (5, "5", "holds"),
        (5, "5.00", "holds"),
        ("5", 5, "holds"),
        ("5", "5.0", "no"),
        (5, "five", "doubt"),
        (True, True, "holds"),
        (True, 1, "doubt"),
        (1, True, "doubt"),
        (False, 0, "doubt"),
        (None, None, "holds"),
        (None, 0, "no"),
        ([1, 2], [1, 2], "holds"),
        ({"equals": {"a": 1}}, {"a": 1}, "holds"),
        ({"not_equals": "CH"}, "DE", "holds"),
        ({"not_equals": "CH"}, "CH", "no"),
        ({"not_equals": 1}, True, "doubt"),
        ({"not_equals": 1}, "1.0", "no"),
        ({"one_of": ["a", "b"]}, "b", "holds"),
        ({"one_of": ["a", "b"]}, "c", "no"),
        ({"one_of": [1]}, True, "doubt"),
        ({"one_of": [1]}, "1", "holds"),
        ({"one_of": []}, "a", "no"),
        # Patterns: the whole text.
        ({"matches": "a+"}, "aaa", "holds"),
        ({"matches": "a+"}, "baa", "no"),
        ({"matches": "a+"}, "aa\n", "no"),
        ({"matches": "a+|b"}, "ab", "no"),
        ({"matches": "(?i)ab.c"}, "AB\nC", "holds"),
        ({"matches": r"R-\d+"}, "R-\u0663", "holds"),
        ({"search": "a$"}, "a\n", "holds"),  # As in Python: `$` is also before the last line break.
        ({"search": r"a\Z"}, "a\n", "no"),
        ({"search": r"a\Z"}, "ba", "holds"),
        ({"search": "^b"}, "a\nb", "no"),
        ({"search": "x"}, "\ud800x", "doubt"),
        # Whoever backtracks never ends here.
        ({"search": "(a+)+$"}, "a" * 60 + "!", "no"),
        ({"matches": "(.*)*x"}, "a" * 1_000, "no"),
        # Other engines take these for the sides of a word.
        ({"search": r"\<script\>"}, "<script>", "holds"),
        ({"search": r"\<script\>"}, "script", "no"),
        ({"search": r"\<b$"}, "<b\n", "holds"),
        ({"matches": r"[\[\]&\-~|]{2,}"}, "[]&-~|", "holds"),
        ({"matches": ""}, "", "holds"),
        # Linear is long, too, if each of many characters is compared with each of many.
        pytest.param({"search": "((a{0,100}){0,100}){0,10}x"}, "a" * 100_000, "doubt", id="too many steps"),
        pytest.param({"search": "[^x]*[^x]*[^x]{4000}x"}, "ab" * 50_000, "doubt", id="too many repetitions"),
        pytest.param({"search": f"[^x]*[^x]*{'[^x]' * 4_000}x"}, "ab" * 50_000, "doubt", id="too many sets"),
        pytest.param({"search": f"(?i){'a?' * 4_000}b"}, "a" * 100_000, "doubt", id="too much that is repeated"),
        pytest.param({"search": f"c{'(ab)?' * 2_000}d"}, "ab" * 50_000, "doubt", id="too much in repeated groups"),
        ({"search": f"(?i){'ab' * 2_000}c"}, "ab" * 50_000, "no"),  # What is not repeated costs little.
        # The classes of Python, which are others in the engine.
        ({"matches": r"\S+"}, "a\x1cb", "no"),
        ({"matches": r"a[-\s]b"}, "a\x1cb", "holds"),
        ({"matches": r"[^\S]"}, "\x1c", "holds"),
        ({"matches": r"\w+"}, "m\xb2", "holds"),
        ({"matches": r"[\w-]+"}, "ab\u200d", "no"),
        ({"search": r"[^\W\d]"}, "1\u0301", "no"),
        pytest.param({"search": "|".join(map(str, range(9_000)))}, "ab" * 50_000, "no", id="many words"),
        pytest.param({"equals": "a"}, f"a{MARKS}", "no", id="many marks"),
        pytest.param({"search": r"(\d{4} ?){4}x"}, "1234 " * 200_000, "no", id="few repetitions"),
        ({"matches": "a+"}, 7, "doubt"),
        ({"matches": "a+"}, None, "doubt"),
        # Ranges: numbers, and texts of numbers.
        ({"above": 5}, 6, "holds"),
        ({"above": 5}, 5, "no"),
        ({"at_least": 5}, 5, "holds"),
        ({"below": 5}, 4.9, "holds"),
        ({"below": 5}, 5, "no"),
        ({"at_most": 5}, 5, "holds"),
        ({"above": 10_000}, "10000.01", "holds"),
        ({"above": "10000"}, "10000.00", "no"),
        ({"above": 0.1}, 0.1, "no"),
        ({"above": 0.3}, 0.1 + 0.2, "holds"),
        ({"above": 5}, 10**30, "holds"),
        pytest.param({"above": 5}, 10**5_000, "holds", id="a number too long for a text"),
        ({"above": 5}, "1e3", "holds"),
        ({"above": 5}, " 7 ", "holds"),
        ({"above": 5}, float("inf"), "holds"),
        ({"above": 5}, True, "doubt"),
        ({"above": 0}, True, "doubt"),
        ({"above": 5}, "many", "doubt"),
        ({"above": 5}, "", "doubt"),
        ({"above": 5}, None, "doubt"),
        ({"above": 5}, [6], "doubt"),
        ({"above": 5}, float("nan"), "doubt"),
        ({"above": 5}, "NaN", "doubt"),
        ({"above": 5}, "sNaN", "doubt"),
        # Ranges of texts.
        ({"at_least": "2030-01-01"}, "2030-06-01", "holds"),
        ({"at_least": "2030-01-01"}, "2029-12-31", "no"),
        ({"at_least": "2030-01-01"}, 20300101, "doubt"),
        # Texts that look alike: in doubt where the text and its NFKC form differ about it.
        ({"matches": "(?i).*drop.*"}, "ＤＲＯＰ all", "doubt"),
        ({"search": "admin"}, "ａｄｍｉｎ", "doubt"),
        ({"search": "file"}, "ﬁle", "doubt"),
        ({"equals": "caf\u00e9"}, "cafe\u0301", "doubt"),
        ({"equals": "cafe\u0301"}, "caf\u00e9", "doubt"),
        ({"not_equals": "root"}, "ｒｏｏｔ", "doubt"),
        ({"one_of": ["root", "admin"]}, "ｒｏｏｔ", "doubt"),
        ({"one_of": ["ann", "bob"]}, "zoë", "no"),
        ({"matches": "[a-zë]+"}, "zoë", "holds"),
        ({"matches": "[a-z]+"}, "ROOT", "no"),  # Case counts, unless the pattern says otherwise.
        # Several at once: all of them.
        ({"above": 5, "below": 10}, 7, "holds"),
        ({"above": 5, "below": 10}, 11, "no"),
        ({"above": 5, "matches": "a"}, 7, "doubt"),
    ],
)
def test_an_operator_holds_or_does_not_or_cannot_be_evaluated(condition: Any, value: Any, expected: str) -> None:
    assert outcome({"x": condition}, {"x": value}) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("to.country", "holds"),
        ("items[0].price", "holds"),
        ("items[1].price", "no"),
        ("items[2].price", "doubt"),
        ("to.city", "doubt"),
        ("to.country.code", "doubt"),
        ("items.price", "doubt"),
        ("name[0]", "doubt"),
        ("nothing", "no"),
        ("nothing.at[3].all", "no"),
    ],
)
def test_a_path_leads_into_the_arguments(path: str, expected: str) -> None:
    arguments = {"to": {"country": 7}, "items": [{"price": 7}, {"price": 1}], "name": "text"}

    assert outcome({path: {"above": 5}}, arguments) == expected


def test_what_a_tool_takes_and_was_not_given_is_in_doubt_and_what_it_does_not_take_is_none_of_its_business() -> None:
    condition = Condition({"amount": {"above": 5}})

    assert condition.matches({}, action="deny", declared=declare("amount"))
    assert not condition.matches({}, action="allow", declared=declare("amount"))
    assert not condition.matches({}, action="deny", declared=declare("other"))


def test_a_tool_that_declares_no_arguments_may_have_any() -> None:
    condition = Condition({"amount": {"above": 5}})

    assert condition.matches({}, action="deny", declared=None)
    assert not condition.matches({}, action="allow", declared=None)


@pytest.mark.parametrize(
    ("where", "arguments", "expected"),
    [
        ({"not": {"a": 1}}, {"a": 2}, "holds"),
        ({"not": {"a": 1}}, {"a": 1}, "no"),
        ({"not": {"a": 1}}, {"a": True}, "doubt"),
        ({"b": 1, "not": {"a": 1}}, {"a": 2, "b": 1}, "holds"),
        ({"b": 1, "not": {"a": 1}}, {"a": 1, "b": 1}, "no"),
        ({"b": 1, "not": {"a": 1}}, {"a": 2, "b": 2}, "no"),
        ({"b": 1, "not": {"a": 1}}, {"a": 2, "b": True}, "doubt"),
        ({"b": 1, "not": {"a": 1}}, {"a": True, "b": 1}, "doubt"),
        ({"b": 1, "not": {"a": 1}}, {"a": 1, "b": True}, "no"),
        ({"a": 1, "b": 1}, {"a": True, "b": 1}, "doubt"),
        ({"a": 1, "b": 1}, {"a": 1, "b": True}, "doubt"),
        ({"a": 1, "b": 1}, {"a": True, "b": 2}, "no"),
        ({"not": "x"}, {"not": "x"}, "holds"),  # An argument that is called so.
    ],
)
def test_parts_are_connected_by_and_and_a_part_in_doubt_leaves_the_whole_in_doubt(
    where: dict[str, Any], arguments: dict[str, Any], expected: str
) -> None:
    assert outcome(where, arguments) == expected


@pytest.mark.parametrize(
    ("directory", "value", "working_directory", "expected"),
    [
        ("/srv/data", "/srv/data/a.txt", None, "holds"),
        ("/srv/data", "/srv/data", None, "holds"),
        ("/srv/data", "/srv/database", None, "no"),
        ("/srv/data", "/srv/data/../key", None, "no"),
        ("/srv/data", "a.txt", None, "doubt"),
        ("/srv/data", "a.txt", "data", "doubt"),
        ("/srv/data", "a.txt", "/srv/data", "holds"),
        ("/srv/data", "../a.txt", "/srv/data", "no"),
        ("data", "/srv/data/a.txt", "/srv", "holds"),
        ("data", "/srv/data/a.txt", None, "doubt"),
        ("/srv/data", "", "/srv/data", "doubt"),
        ("/srv/data", 5, "/srv/data", "doubt"),
        ("/srv/data", "/srv/data/a\0b", None, "doubt"),
    ],
)
def test_a_path_is_under_a_directory(directory: str, value: Any, working_directory: str | None, expected: str) -> None:
    condition = Condition({"file": {"under": directory}})
    arguments = {"file": value}
    context = at(working_directory=working_directory)
    is_denied, is_allowed = (
        condition.matches(arguments, action=action, context=context) for action in ("deny", "allow")
    )

    assert ("doubt" if is_denied != is_allowed else "holds" if is_allowed else "no") == expected


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"amount": {"above": 5}}, "amount is 5, not above 5"),
        ({"amount": {"at_least": "x"}}, "amount is 5, for which `at_least` cannot tell"),
        ({"amount": 5, "name": "bob"}, "name is 'ann', not 'bob'"),
        ({"pin": "1"}, "pin is [redacted], not '1'"),
        ({"gone": 5}, "there is no gone"),
        ({"amount": 5, "not": {"name": "ann"}}, "what stands under `not` holds, or may hold"),
        ({"text": "x"}, "text is 'yyy"),
        ({"hidden": "x"}, "hidden is [redacted], not 'x'"),
    ],
)
def test_why_a_condition_does_not_hold(where: dict[str, Any], says: str) -> None:
    arguments = {"amount": 5, "name": "ann", "pin": "7", "text": "y" * 1_000, "hidden": "h"}
    shown = {"amount": 5, "name": "ann", "pin": "[redacted]", "text": "y" * 1_000}

    said = Condition(where).explain_failure(arguments, shown=shown)
    assert said.startswith(says)
    assert len(said) < (250 if "text" in where else len(says) + 1)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False, allow_infinity=False))
def test_texts_of_decimals_are_compared_exactly(value: Decimal, limit: Decimal) -> None:
    assert (outcome({"x": {"above": str(limit)}}, {"x": str(value)}) == "holds") is (value > limit)
    assert (outcome({"x": {"at_most": str(limit)}}, {"x": str(value)}) == "holds") is (value <= limit)


@given(st.integers(), st.integers() | st.floats(allow_nan=False))
def test_a_number_is_above_or_at_most(value: int, limit: float) -> None:
    assert (outcome({"x": {"above": limit}}, {"x": value}) == "holds") is (value > limit)
    assert (outcome({"x": {"at_most": limit}}, {"x": value}) == "holds") is not (value > limit)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({}, "mapping"),
        ([], "mapping"),
        ("amount", "mapping"),
        ({"a": {}}, "is empty"),
        ({"a": {"over": 5}}, "over"),
        ({"a": {"above": [5]}}, "number or a string"),
        ({"a": {"above": True}}, "number or a string"),
        ({"a": {"above": None}}, "number or a string"),
        ({"a": {"matches": 5}}, "regular expression"),
        ({"a": {"search": "("}}, "regular expression"),
        ({"a": {"search": "(?=a)b"}}, "no look-around"),
        ({"a": {"matches": r"(a)\1"}}, "no back-references"),
        ({"a": {"matches": "(a{1000}){1000}"}}, "no huge repetition"),
        ({"a": {"matches": "a{99999999999999}"}}, "no huge repetition"),
        ({"a": {"matches": "(" * 5_000 + ")" * 5_000}}, "no huge repetition"),
        ({"a": {"matches": "a)(b"}}, "unbalanced parenthesis"),
        pytest.param({"a": {"matches": "[" * 100_000}}, "regular expression", id="sets without an end"),
        *(
            ({"a": {"search": pattern}}, "has more than one meaning")
            for pattern in ("[[:digit:]]{16}", "[a-z&&[^b]]", "[%--]", "[~~]", "[a||b]", r"\b{start}", "a*+a", "a{2}+a")
        ),
        *(
            ({"a": {"search": pattern}}, "has more than one meaning")
            for pattern in ("a{ 2 }", "(?x) a # b", "(?#[)(]a)")
        ),
        ({"a": {"one_of": "abc"}}, "list"),
        ({"a": {"one_of": 5}}, "list"),
        ({"a": {"under": ""}}, "path of a directory"),
        ({"a": {"under": 5}}, "path of a directory"),
        ({"a": {"pattern": "x"}}, "write 'matches'"),
        ({"not": {}}, "mapping"),
        ({"": 5}, "path"),
        ({"a..b": 5}, "path"),
        ({"a[x]": 5}, "path"),
        ({"[0]": 5}, "path"),
        ({"a.": 5}, "path"),
        ({5: 5}, "path"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused_in_words(where: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Condition(where)


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        ([7, 8], "holds"),
        ([7, 1], "no"),
        ([7, True], "doubt"),
        ([True, 1], "no"),
        ([], "doubt"),
        ("7", "doubt"),
    ],
)
def test_every_element_of_a_list_has_to_hold(prices: Any, expected: str) -> None:
    items = [{"price": price} for price in prices] if isinstance(prices, list) else prices

    assert outcome({"items[].price": {"above": 5}}, {"items": items}) == expected
    assert outcome({"items[]": {"above": 5}}, {"items": prices}) == expected


def test_an_element_without_the_value_leaves_it_in_doubt() -> None:
    assert outcome({"items[].price": {"above": 5}}, {"items": [{"price": 7}, {}]}) == "doubt"
    assert outcome({"items[].price": {"above": 5}}, {"items": [{"price": 1}, {}]}) == "no"


@pytest.mark.parametrize(
    ("value", "steps", "missing"),
    [
        ({"a": {}}, ("a", "b"), True),
        ({"a": [1]}, ("a", 3), True),
        ({"a": None}, ("a", "b"), True),
        ({"a": None}, ("a",), True),
        ({"a": 0}, ("a",), False),
        ({"a": "x"}, ("a", "b"), False),
        ({"a": {"b": 1}}, ("a", "b"), False),
        ({"a": []}, ("a", EVERY), True),
        ({"a": [1]}, ("a", EVERY), False),
        ({"a": "x"}, ("a", EVERY), False),
    ],
)
def test_what_is_not_there_or_null_is_missing_and_a_value_of_another_kind_is_not(
    value: Any, steps: Any, missing: bool
) -> None:
    assert is_missing(value, steps) is missing
