"""Two calls are the same call, or the same effect, exactly when they should be; digests tell nothing."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from handrail import ToolCall, build_tool
from handrail.authorize.identity import CallDigests
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
    built = digests.build_arguments(tool, sent, given_arguments, context, sent)
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
