"""What must not be written down is not there any more, and everything else is as it was."""

import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import Struct
from pydantic import BaseModel, SecretStr, model_serializer

from handrail import ToolResult
from handrail.core import Redactor, redact, secret_patterns
from handrail.core.redact import FIELDS, FLAT, HIDDEN
from handrail.errors import ConfigError

CANARY = "kestrel"
REDACTOR = Redactor()

# By field


def camel(words: list[str]) -> str:
    return words[0] + "".join(map(str.capitalize, words[1:]))


STYLES: dict[str, Callable[[list[str]], str]] = {
    "snake_case": "_".join,
    "kebab-case": "-".join,
    "camelCase": camel,
    "PascalCase": lambda words: "".join(map(str.capitalize, words)),
    "SCREAMING_SNAKE": lambda words: "_".join(words).upper(),
    "SCREAMING-KEBAB": lambda words: "-".join(words).upper(),
    "Train-Case": lambda words: "-".join(map(str.capitalize, words)),
    "dotted.case": ".".join,
    "with spaces": " ".join,
    "plural": lambda words: "_".join(words) + "s",
    "wide": lambda words: "_".join(words).translate({ord("a"): "ａ", ord("o"): "ｏ"}),
}

secret_names = st.builds(
    lambda style, before, words, after: style([*before, *words, *after]),
    st.sampled_from(sorted(STYLES.items())).map(lambda item: item[1]),
    st.lists(st.sampled_from(["user", "my", "x", "db", "old"]), max_size=3),
    st.sampled_from(FIELDS).map(lambda name: name.split("_")),
    st.lists(st.sampled_from(["value", "v2", "field"]), max_size=2),
)


class Frozen(Struct, frozen=True):
    inside: Any


class Model(BaseModel):
    inside: Any


@dataclass
class Plain:
    inside: Any


WRAPPINGS: list[Callable[[Any], Any]] = [
    *(lambda value: {"order": value, "n": 1}, lambda value: OrderedDict(a=value)),
    *(lambda value: [1, value], lambda value: (value, None)),
    *(Plain, Frozen, lambda value: Model(inside=value)),
]
wrappings = st.lists(st.sampled_from(WRAPPINGS), max_size=6)
secrets_of_any_kind = st.sampled_from(
    [CANARY, [CANARY], {"deep": [CANARY]}, f'{{"a":"{CANARY}"}}', Plain(CANARY), Model(inside=CANARY), (CANARY,)]
)


@given(secret_names, secrets_of_any_kind, wrappings)
def test_what_has_a_secret_name_never_survives_at_any_depth(name: str, secret: Any, wraps: list[Any]) -> None:
    value: Any = {name: secret}
    for wrap in wraps:
        value = wrap(value)

    assert CANARY not in repr(REDACTOR.value(value))


@given(secret_names, st.lists(st.sampled_from([dict, list, str]), max_size=5))
def test_what_has_a_secret_name_never_survives_in_text_that_is_json(name: str, around: list[type]) -> None:
    value: Any = {name: CANARY}
    for kind in around:
        value = {"order": value} if kind is dict else [value] if kind is list else json.dumps(value)
    text = value if isinstance(value, str) else json.dumps(value, indent=1)

    assert CANARY not in REDACTOR.text(text)


@given(secret_names, st.sampled_from(["{n}={c}", "{n}: {c}", '"{n}": "{c}"', "'{n}':'{c}'", '\\"{n}\\":\\"{c}\\"']))
def test_what_has_a_secret_name_never_survives_in_other_text(name: str, form: str) -> None:
    assume(name.count(" ") < 3)  # Of a sentence only the last words are taken for a name.
    text = f"It failed at noon, with {form.format(n=name, c=CANARY)}, and nothing was done."

    assert CANARY not in REDACTOR.text(text)
    assert REDACTOR.text(text).startswith("It failed at noon, with ")


@given(st.sampled_from(FLAT), st.sampled_from(["", "client", "my"]), st.sampled_from([str.lower, str.upper]))
def test_a_name_without_signs_between_its_words_is_known_by_its_end(
    end: str, beginning: str, case: Callable[[str], str]
) -> None:
    assert REDACTOR.value({case(beginning + end): CANARY}) == {case(beginning + end): HIDDEN}


@pytest.mark.parametrize("name", ["secretary", "tokenizer", "pinned", "spinner", "boarding_pass", "author", "keyboard"])
def test_a_name_that_only_looks_like_a_secret_one_is_none(name: str) -> None:
    assert REDACTOR.value({name: "open"}) == {name: "open"}
    assert REDACTOR.text(f"{name}=open") == f"{name}=open"


@pytest.mark.parametrize("name", ["pass", "auth", "PASS", "Auth"])
def test_some_names_are_secret_only_by_themselves(name: str) -> None:
    assert REDACTOR.value({name: "x"}) == {name: HIDDEN}


def test_truth_values_hold_no_secret() -> None:
    assert REDACTOR.value({"pin": True, "password": None}) == {"pin": True, "password": None}


def test_a_number_of_tokens_is_no_secret_but_tokens_are() -> None:
    assert REDACTOR.value({"max_tokens": 5, "tokens": ["t"]}) == {"max_tokens": 5, "tokens": HIDDEN}
    assert REDACTOR.text("max_tokens=5 tokens=abc") == f"max_tokens=5 tokens={HIDDEN}"


def test_fields_of_ones_own_are_added_in_any_style() -> None:
    redactor = Redactor(fields=["customer_mothers_maiden_name"])

    assert redactor.value({"customerMothersMaidenName": "x", "password": "y", "name": "z"}) == {
        "customerMothersMaidenName": HIDDEN,
        "password": HIDDEN,
        "name": "z",
    }


def test_a_key_that_gives_itself_away_is_hidden_too() -> None:
    assert REDACTOR.value({"sk-proj-abcdefghijklmnop1234": 1}) == {HIDDEN: 1}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Authorization: Basic dXNlcjpwYXNz\nAccept: */*", f"Authorization: {HIDDEN}\nAccept: */*"),
        ("Cookie: a=b; c=d", f"Cookie: {HIDDEN}"),
        ("Cookie:a=1; b=2", f"Cookie:{HIDDEN}"),
        ("Authorization:Digest x", f"Authorization:{HIDDEN}"),
        ('oops {"credentials": {"user": "u", "pass": "p"}}', f'oops {{"credentials": {HIDDEN}'),
        ('{"a": 1, "password": "hunt', f'{{"a": 1, "password": {HIDDEN}'),
        ("https://api.test/x?token=abc&page=2", f"https://api.test/x?token={HIDDEN}&page=2"),
        ("the API key: abc", f"the API key: {HIDDEN}"),
        ("- password: two words, and more\n- city: Oslo", f"- password: {HIDDEN}\n- city: Oslo"),
        ('config["password"] = hunter2', f'config["password"] = {HIDDEN}'),
        ("retry with password=", "retry with password="),
        (f"password={HIDDEN} and more", f"password={HIDDEN} and more"),
        ('{"a": "sk-proj-abcdefghijklmnop1234", "a": "ok"}', f'{{"a": "{HIDDEN}", "a": "ok"}}'),
        ('{"sk-proj-abcdefghijklmnop1234": 1}', f'{{"{HIDDEN}":1}}'),
    ],
)
def test_text_loses_the_secret_and_keeps_the_rest(text: str, left: str) -> None:
    assert REDACTOR.text(text) == left


# By pattern: test_looks.py has those that are always redacted; by type: test_redact_types.py


def test_patterns_of_ones_own_are_added() -> None:
    redactor = Redactor(patterns=[r"\bKV-\d+\b"])

    assert redactor.text("see KV-17, sk-proj-abcdefghijklmnop1234") == f"see {HIDDEN}, {HIDDEN}"


def test_a_pattern_that_is_none_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"'\('"):
        Redactor(patterns=["("])


# What stays

words = st.text("abcdefghij äé漢.,!?-", max_size=20)
harmless = st.recursive(
    st.none() | st.booleans() | words | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["name", "order_id", "at", "n", "unité"]), inner),
    max_leaves=20,
)  # fmt: skip


@given(harmless)
def test_what_is_harmless_stays_as_it_was(value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)

    assert REDACTOR.value(value) == value
    assert REDACTOR.text(text) == text
    assert REDACTOR.output(value) == ToolResult(output=value).for_model()


@given(st.text())
def test_any_text_can_be_redacted_and_once_is_enough(text: str) -> None:
    once = REDACTOR.text(text)

    assert REDACTOR.text(once) == once
    once.encode("utf-8")


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.50"), "1.50"),
        (Path("a/b"), "a/b"),
        (Colour.RED, "red"),
        (b"abc", "abc"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        ({True: "b"}, {"true": "b"}),
        ({3: "a", None: "b"}, {"3": "a", "None": "b"}),
        ({1}, [1]),
        (Frozen((1, 2)), {"inside": [1, 2]}),
    ],
    ids=str,
)
def test_values_are_written_as_json_has_them(value: Any, written: Any) -> None:
    assert REDACTOR.value(value) == written


def test_the_value_that_is_given_is_not_changed() -> None:
    given_value = {"list": [{"pin": 1234}]}

    assert REDACTOR.value(given_value) != given_value
    assert given_value == {"list": [{"pin": 1234}]}


# What cannot be looked at


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError(CANARY)

    __str__ = __repr__


class Exploding(BaseModel):
    a: int = 1

    @model_serializer
    def explode(self) -> dict[str, int]:
        raise RuntimeError(CANARY)


@dataclass
class Circle:
    around: list[Any] = field(default_factory=list[Any])


def endless() -> Iterator[str]:
    while True:
        yield CANARY


def circle() -> Circle:
    made = Circle()
    made.around.append(made)
    return made


def deep() -> Any:
    value: Any = CANARY
    for _ in range(5_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [object(), Hostile(), Exploding(), circle(), deep(), endless(), lambda: CANARY, ValueError(CANARY), b"\xff\xfe",
     {Hostile(): CANARY}, {"a": Hostile()}, Model(inside=circle()), type, "\ud800", {"\ud800": "\udfff"}],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_cannot_be_written_is_not_and_nothing_is_raised(value: Any) -> None:
    shown = REDACTOR.value(value)

    assert CANARY not in repr(shown) or isinstance(value, dict)
    json.dumps(shown, ensure_ascii=False).encode("utf-8")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
    | st.builds(object) | st.builds(SecretStr, st.text()) | st.builds(Hostile)
    | st.sampled_from([*Colour, Path, ValueError("x")]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.builds(Plain, inner)
    | st.builds(Frozen, inner) | st.builds(Model, inside=inner)
    | st.dictionaries(st.text() | st.integers() | st.binary() | st.none() | st.booleans(), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(anything)
def test_any_value_at_all_becomes_json(value: Any) -> None:
    json.dumps(REDACTOR.value(value), allow_nan=False, ensure_ascii=False).encode("utf-8")
    REDACTOR.output(value).encode("utf-8")


def test_what_is_too_deep_hides_nothing_else() -> None:
    shown = REDACTOR.value({"city": "Oslo", "down": deep()})

    assert shown["city"] == "Oslo"
    assert HIDDEN in repr(shown["down"])


def test_json_inside_json_is_read_only_so_far_and_hidden_below() -> None:
    text: Any = {"pin": CANARY}
    for _ in range(14):
        text = json.dumps({"a": text}) if isinstance(text, str) else json.dumps(text)

    assert CANARY not in REDACTOR.text(text)


@pytest.mark.parametrize("number", [4111111111111111, -4111111111111111])
def test_the_number_of_a_card_is_hidden_whatever_its_sign(number: int) -> None:
    assert "411111" not in Redactor().text(f'{{"password": "x", "n": {number}}}')
    assert Redactor().value({"n": number}) == {"n": HIDDEN}


def test_a_text_that_is_too_long_is_cut_before_it_is_looked_at() -> None:
    short = Redactor(max_chars=20)

    assert short.text("a" * 20) == "a" * 20
    assert short.text("a" * 25) == f"{'a' * 20} [5 characters left out]"
    assert short.value({"note": ["b" * 21]}) == {"note": [f"{'b' * 20} [1 characters left out]"]}
    assert short.value({"c" * 21: 1}) == {f"{'c' * 20} [1 characters left out]": 1}
    assert CANARY not in short.text(f'{{"password": "{CANARY * 9}"}}')
    with pytest.raises(ConfigError, match="max_chars must be at least 1, got 0"):
        Redactor(max_chars=0)


def test_long_arguments_are_shown_by_their_beginnings() -> None:
    short = {"note": "hello", "password": CANARY, "items": [1, 2], "nothing": None}
    assert REDACTOR.arguments(short) == {"note": "hello", "password": HIDDEN, "items": [1, 2], "nothing": None}

    nested = [{"password": CANARY, "text": "x" * 1_000} for _ in range(1_000)]
    shown = REDACTOR.arguments({"text": "y" * 1_000_000, "nested": nested, "token": "z" * 1_000_000})

    assert sorted(shown) == ["nested", "text", "token"]
    assert len(json.dumps(shown)) < 120_000
    assert shown["text"].startswith("yyy")
    assert shown["text"].endswith("characters left out]")
    assert shown["token"] == HIDDEN
    assert CANARY not in shown["nested"]


def test_a_name_is_redacted_whether_it_is_remembered_or_not() -> None:
    redactor = Redactor()
    names = ["pay", "sk-proj-abcdefghijklmnopqrstuvwxyz012345", "a\nb", "x" * 300]

    first = [redactor.name(name) for name in names]
    for number in range(5_000):  # More than are remembered.
        redactor.name(f"name-{number}")
    assert [redactor.name(name) for name in names] == first
    assert first[0] == "pay"
    assert "abcdefghijklmnop" not in first[1]
    assert (first[2], len(first[3])) == ("a�b", 201)


@pytest.mark.parametrize(
    "value",
    [
        {"rows": [{"id": number, "password": "hunter2", "note": "x" * 50} for number in range(30_000)]},
        ["a text"] * 200_000,
        {"text": "y" * 1_500_000, "token": "t-0123456789"},
        {f"k{number}": number for number in range(150_000)},
    ],
    ids=["rows", "list", "one text", "members"],
)
def test_json_that_is_too_long_stays_json_and_loses_its_end_and_its_secrets(value: Any) -> None:
    text = json.dumps(value)
    assert len(text) > 1_000_000

    shown = Redactor().text(text)

    assert type(json.loads(shown)) is type(value)
    assert len(shown) < 1_200_000
    assert "left out" in shown
    assert "hunter2" not in shown
    assert "t-0123456789" not in shown


# Long texts.

FRAGMENTS = [
    "password=hunter22", "password: two words\n", "4111 1111 1111 1111", "4111-1111 1111", "ordinary words", "token",
    "DE89 3704 0044 0532 0130 00", "sk-proj-abcdefghijklmnop0123", "Bearer\n abcdef0123456789", '"apiKey": "abc"',
    "https://ann:secret,word@host/", "eyJhbGciOiJI.eyJzdWIiOiIx.x", ",", ";", " ", "\n", '"', ". ", "4 ", "ä: ", "://",
    "-----BEGIN PRIVATE KEY-----\nabc", "-----END PRIVATE KEY-----", "{", "}",
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=60))
def test_a_text_is_redacted_in_pieces_as_it_is_in_one(fragments: list[str]) -> None:
    text = "".join(fragments)
    whole = Redactor().text(text)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(secret_patterns, "MAX_PIECE", 40)
        patched.setattr(redact, "MAX_PIECE", 40)

        assert Redactor().text(text) == whole


def test_json_that_is_longer_than_a_text_may_be_stays_json() -> None:
    text = json.dumps({"token": "hunter22", "rows": [{"name": f"n{number}"} for number in range(200_000)]})
    assert len(text) > 1_000_000

    shown = json.loads(Redactor().text(text))

    assert shown["token"] == "[redacted]"
    assert shown["rows"][0] == {"name": "n0"}


HOSTILE = {
    "pairs": "tokens=beta pass_x=delta ",
    "secret pairs": "password=hunter2 ",
    "secret lines": "password: two words\n",
    "quotes": 'password="',
    "single digits": "4 ",
    "cards": "4111 1111 1111 1111 ",
    "digits": "411111111111111 ",
    "wrong cards": "4111 1111 1111 1112 ",
    "ibans": "DE89 3704 0044 0532 0130 00 ",
    "beginnings of ibans": "DE89 ",
    "umlauts": "ä: ö ",
    "keys": "sk-",
    "addresses": "://a:",
    "cut JSON": '{"apiKey": "abc", "a": 1, ',
    "headers": "Authorization: x\n",
    "wrong ibans": "DE89 3704 0044 0532 0130 01 ",
}


def hostile_texts(size: int) -> dict[str, str]:
    texts = {name: (unit * (size // len(unit) + 1))[:size] for name, unit in HOSTILE.items()}
    texts["names of JSON"] = json.dumps({f"someCamelCaseName{number}": "value" for number in range(size // 37)})
    return texts


@pytest.mark.slow
def test_no_hostile_text_costs_much_more_than_plain_text_of_its_length() -> None:
    def measure(text: str) -> float:
        times = []
        for _ in range(5):
            redactor = Redactor()
            redactor.text("password=x DE89370400440532013000 4111 1111 1111 1111 sk-1")
            begun = time.process_time()
            redactor.text(text)
            times.append(time.process_time() - begun)
        return min(times)

    plain = measure("The order is on its way to the house by the river, and should arrive. " * 1_430)
    ratios = {name: measure(text) / plain for name, text in hostile_texts(100_000).items()}

    assert max(ratios.values()) < 12, ratios  # At most 10 on a quiet machine.
