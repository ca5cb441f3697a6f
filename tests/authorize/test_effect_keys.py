"""Two calls are the same call, or the same effect, exactly when they should be; digests tell nothing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import ToolCall, build_tool, tool
from handrail.authorize.effect_keys import CallDigests
from tests.execute.helpers import at

ANY: Any = build_tool({"name": "any", "input_schema": {}, "execute": lambda payload: None})
OTHER: Any = build_tool({"name": "other", "input_schema": {}, "execute": lambda payload: None})
IDS = CallDigests(lambda: b"k" * 32)

texts = st.text(st.sampled_from('ab"\\\0,[]\ud800ü'), max_size=4)
values = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, -1.5]) | texts
arguments = st.dictionaries(texts, values | st.lists(values, max_size=2), max_size=3)
ids_of_context = st.text(st.sampled_from('ab"\\,[]ü'), max_size=4)
wheres = st.fixed_dictionaries(
    {
        "session_id": ids_of_context,
        "tenant_id": st.none() | ids_of_context,
        "customer_id": st.none() | ids_of_context,
    }
)


def ids(
    tool: Any, given_arguments: dict[str, Any], where: dict[str, Any], digests: CallDigests = IDS
) -> tuple[str, str]:
    """The identity of a call, and the key of its effect."""
    sent, context = ToolCall(id="c-1", name=tool.name, arguments_json=json.dumps(given_arguments)), at(**where)
    built = digests.read_call(tool, sent, context, sent, given_arguments)
    assert built.identity == digests.digest_identity(sent, context)
    assert built.key == built.full_key  # Nothing is filled in.
    return built.identity, built.key


def write(value: Any) -> str:
    """A value as JSON: 1 and 1.0 are one number, and True is another value."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{write(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(write, value))}]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


@given(arguments, arguments, wheres, wheres)
def test_digests_are_equal_exactly_for_equal_calls(
    one: dict[str, Any], other: dict[str, Any], here: dict[str, Any], there: dict[str, Any]
) -> None:
    def get_owner(where: dict[str, Any]) -> tuple[str, str, str]:
        kind = "session_id" if where["customer_id"] is None else "customer_id"
        return where["tenant_id"] or "", kind, where[kind]

    def get_caller(where: dict[str, Any]) -> tuple[str, str | None]:
        return where["tenant_id"] or "", where["customer_id"]

    same_arguments = write(one) == write(other)
    first, second = ids(ANY, one, here), ids(ANY, other, there)

    assert (first[0] == second[0]) is (same_arguments and get_caller(here) == get_caller(there))
    assert (first[1] == second[1]) is (same_arguments and get_owner(here) == get_owner(there))
    assert ids(OTHER, one, here)[0] != first[0]
    assert first == ids(ANY, dict(reversed(one.items())), here)


def test_without_the_key_a_digest_cannot_be_guessed() -> None:
    assert ids(ANY, {}, {}, CallDigests(lambda: b"k" * 32)) != ids(ANY, {}, {}, CallDigests(lambda: b"l" * 32))
    assert len(set(ids(ANY, {}, {}))) == 2
    assert ids(ANY, {}, {}, CallDigests(lambda: b"x" * 1_000))  # Of any length.


@pytest.mark.parametrize(
    ("here", "there", "is_same_call", "is_same_effect"),
    [
        ({"customer_id": "ann"}, {"customer_id": "ann"}, True, True),
        ({"customer_id": "ann"}, {"customer_id": "bob"}, False, False),
        ({"customer_id": "ann"}, {}, False, False),
        ({"customer_id": "ann"}, {"customer_id": "ann", "session_id": "s-2"}, True, True),
        ({}, {"session_id": "s-2"}, True, False),
        ({"tenant_id": "acme"}, {}, False, False),
        ({"tenant_id": "acme"}, {"tenant_id": "other"}, False, False),
        ({"session_id": "x"}, {"customer_id": "x"}, False, False),
    ],
)
def test_whose_call_it_is_makes_it_another_one(
    here: dict[str, Any], there: dict[str, Any], is_same_call: bool, is_same_effect: bool
) -> None:
    first, second = ids(ANY, {"a": 1}, here), ids(ANY, {"a": 1}, there)

    assert (first[0] == second[0], first[1] == second[1]) == (is_same_call, is_same_effect)


def test_a_secret_has_one_digest_that_says_nothing_about_it() -> None:
    assert IDS.digest_secret(b"one") == IDS.digest_secret(b"one")
    assert IDS.digest_secret(b"one") != IDS.digest_secret(b"two")
    assert IDS.digest_secret(b"one") != CallDigests(lambda: b"l" * 32).digest_secret(b"one")


def build(tool: Any, json_text: str, id: str = "c-1", **where: Any) -> Any:
    """A call with what follows from its arguments."""
    sent = ToolCall(id=id, name=tool.name, arguments_json=json_text)
    return IDS.read_call(tool, sent, at(**where), sent)


def test_an_effect_has_the_key_of_all_values_and_the_key_of_those_that_are_no_defaults() -> None:
    @tool
    def pay(amount: int, currency: str = "EUR") -> None:
        """Pay."""

    @tool(name="pay")
    def pay_more(amount: int, currency: str = "EUR", note: str = "") -> None:
        """Pay, in a later release."""

    short, whole = build(pay, '{"amount": 5}'), build(pay, '{"amount": 5, "currency": "EUR"}')
    later, other = build(pay_more, '{"amount": 5}'), build(pay, '{"amount": 5, "currency": "CHF"}')

    assert short.key != short.full_key  # Something was filled in.
    assert (short.key, short.full_key, short.digest) == (whole.key, whole.full_key, whole.digest)
    assert short.identity != whole.identity
    assert later.key == short.key
    assert later.full_key != short.full_key
    assert other.key == other.full_key  # Nothing was.
    assert len({other.key, short.key, short.full_key}) == 3
    assert short.lock_key is None


def test_a_key_of_its_own_is_what_makes_two_calls_of_a_tool_the_same_effect() -> None:
    @tool(key=("invoice",), lock_key=("account",))
    def pay(invoice: str, account: str, amount: int) -> None:
        """Pay."""

    one = build(pay, '{"invoice": "i-1", "account": "a", "amount": 1}')
    same = build(pay, '{"invoice": "i-1", "account": "b", "amount": 2}')
    other = build(pay, '{"invoice": "i-2", "account": "a", "amount": 1}')

    assert one.key == one.full_key == same.key == same.full_key
    assert one.digest != same.digest
    assert one.key != other.key
    assert one.lock_key == other.lock_key
    assert one.lock_key != same.lock_key
    assert one.lock_key is not None


def test_each_call_of_a_repeatable_tool_is_an_effect_of_its_own() -> None:
    @tool(repeatable=True)
    def note(text: str) -> None:
        """Note."""

    one, again, other = build(note, '{"text": "a"}'), build(note, '{"text": "a"}'), build(note, '{"text": "a"}', "c-2")
    elsewhere = build(note, '{"text": "a"}', session_id="s-2", customer_id="ann")

    assert one.key == again.key
    assert len({one.key, other.key, elsewhere.key, build(note, '{"text": "a"}', customer_id="ann").key}) == 4


def test_an_approval_is_of_all_values_the_customer_and_the_definition() -> None:
    @tool
    def pay(amount: int, currency: str = "EUR") -> None:
        """Pay."""

    @tool(name="pay")
    def pay_otherwise(amount: int, currency: str = "EUR") -> None:
        """Pay in another way."""

    def digest(tool: Any, text: str, **where: Any) -> str:
        value = tool.parse(text)
        sent = ToolCall(id="c-1", name="pay", arguments_json=text)
        return IDS.digest_for_approval(tool, sent, value, tool.dump(value), at(**where))

    first = digest(pay, '{"amount": 5}', customer_id="ann")
    assert first == digest(pay, '{"amount": 5.0, "currency": "EUR"}', customer_id="ann", session_id="s-2")
    others = [
        digest(pay, '{"amount": 6}', customer_id="ann"),
        digest(pay, '{"amount": 5, "currency": "CHF"}', customer_id="ann"),
        digest(pay, '{"amount": 5}', customer_id="bob"),
        digest(pay, '{"amount": 5}'),
        digest(pay, '{"amount": 5}', customer_id="ann", tenant_id="acme"),
        digest(pay_otherwise, '{"amount": 5}', customer_id="ann"),
    ]
    assert len({first, *others}) == 7


def test_no_arguments_are_an_empty_object() -> None:
    nothing, empty = (ToolCall(id="c-1", name="any", arguments_json=text) for text in ("", "{}"))

    assert IDS.digest_identity(nothing, at()) == IDS.digest_identity(empty, at())
    assert IDS.read_call(ANY, nothing, at(), nothing).identity == IDS.digest_identity(empty, at())


def test_two_secrets_are_two_effects_although_both_are_written_alike() -> None:
    from pydantic import SecretStr

    @tool(key=("card",))
    def charge(card: SecretStr) -> None:
        """Charge."""

    one, other = build(charge, '{"card": "4111"}'), build(charge, '{"card": "4222"}')

    assert one.arguments == other.arguments
    assert one.key != other.key
    assert one.key == build(charge, '{"card": "4111"}').key


def test_a_call_that_was_sent_under_another_name_is_identified_by_what_was_sent() -> None:
    sent, ran = (ToolCall(id="c-1", name=name, arguments_json="{}") for name in ("any", "other"))
    built = IDS.read_call(OTHER, ran, at(), sent, {})

    assert built.identity == IDS.digest_identity(sent, at()) != IDS.digest_identity(ran, at())
    assert built.key == IDS.read_call(OTHER, ran, at(), ran, {}).key


def test_the_digest_of_a_stored_row_is_of_its_content_its_purpose_and_the_key() -> None:
    first = CallDigests(lambda: b"k" * 32).digest_row(b"row")

    assert first == CallDigests(lambda: b"k" * 32).digest_row(b"row") == IDS.digest_row(b"row")
    others = [IDS.digest_row(b"row2"), IDS.digest_secret(b"row"), CallDigests(lambda: b"j" * 32).digest_row(b"row")]
    assert first not in others
    assert len({*others, first}) == 4
