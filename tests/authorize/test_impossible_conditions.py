"""A condition that can never hold is found when a policy is checked, and one that might hold is left alone."""

from typing import Any

import pytest

from handrail import Policy, Rule, build_tool
from handrail.authorize import argument_paths
from handrail.authorize.argument_paths import DeclaredArguments
from handrail.authorize.conditions import Condition
from handrail.registry import Toolset
from tests.execute.helpers import at

COUNTRY = {"type": "string", "enum": ["CH", "DE"]}
PRICE = {"type": "object", "properties": {"price": {"type": "number"}}}


def problems(properties: dict[str, Any], where: dict[str, Any], **more: Any) -> list[str]:
    return [*Condition(where).find_problems([{"type": "object", "properties": properties, **more}])]


@pytest.mark.parametrize(
    ("properties", "path"),
    [
        ({"amount": {"type": "number"}}, "amuont"),
        ({"to": {"type": "object", "properties": {"country": COUNTRY}}}, "to.contry"),
        ({"to": {"$ref": "#/$defs/Place"}}, "to.contry"),
        ({"to": {"$ref": "#/$defs/Place", "description": "Where to.", "default": None}}, "to.contry"),
        ({"to": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}}, "to.contry"),
        ({"items": {"type": "array", "items": PRICE}}, "items[0].prize"),
        ({"items": {"items": PRICE}}, "items[0].prize"),
        ({"prices": {"type": "object", "additionalProperties": PRICE}}, "prices.any.prize"),
        ({"amount": {"type": "number"}}, "amount.x"),
        ({"amount": {"type": "number"}}, "amount[0]"),
        ({"amount": {"type": ["integer", "null"]}}, "amount.x"),
        ({"amount": {"anyOf": [{"type": "string"}, {"type": "number"}]}}, "amount.x"),
        ({"to": COUNTRY}, "to.country"),
        ({"to": {"enum": ["CH", 5]}}, "to.country"),
        ({"items": {"type": "array", "items": PRICE}}, "items.price"),
    ],
)
def test_a_path_that_no_schema_has_is_a_problem(properties: dict[str, Any], path: str) -> None:
    place = {"type": "object", "properties": {"country": COUNTRY}}

    [problem] = problems(properties, {path: 5}, **{"$defs": {"Place": place}})

    assert problem.startswith(f"unknown argument {path!r}")


@pytest.mark.parametrize(
    ("properties", "path"),
    [
        ({"to": {"type": "object", "properties": {"country": COUNTRY}}}, "to.country"),
        ({"to": True}, "to.country"),
        ({"to": {"$ref": "#/$defs/Place", "minProperties": 1}}, "to.contry"),
        ({"to": {"$ref": "#/$defs/Nowhere"}}, "to.contry"),
        ({"to": {"type": "object"}}, "to.contry"),
        ({"to": {"type": "object", "properties": {}, "additionalProperties": True}}, "to.contry"),
        ({"to": {"type": "object", "properties": {}, "additionalProperties": {}}}, "to.contry"),
        ({"to": {"type": "object", "properties": {}, "patternProperties": {"^c": {}}}}, "to.contry"),
        ({"items": {"type": "array"}}, "items[0].prize"),
        ({"items": {"type": "array", "items": True}}, "items[0].prize"),
        ({"items": {"type": "object", "items": PRICE}}, "items[0].prize"),
        ({"items": {"type": "array", "items": PRICE, "prefixItems": [{}]}}, "items[0].prize"),
        ({"prices": {"type": "object", "additionalProperties": PRICE}}, "prices.any.price"),
        ({"to": {"anyOf": [{"type": "object", "properties": {}}, {"type": "object"}]}}, "to.contry"),
        ({"to": {"anyOf": [{"type": "string"}, {"type": "object"}]}}, "to.contry"),
        ({"to": {"type": ["string", "object"]}}, "to.country"),
        ({"to": {"enum": ["CH", {"country": "CH"}]}}, "to.country"),
    ],
)
def test_a_path_that_a_schema_allows_is_none(properties: dict[str, Any], path: str) -> None:
    place = {"type": "object", "properties": {"country": COUNTRY}}

    assert problems(properties, {path: {"not_equals": 5}}, **{"$defs": {"Place": place}}) == []


def test_a_schema_without_an_end_is_left_alone() -> None:
    deep: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "number"}}}
    for _ in range(60):
        deep = {"type": "object", "properties": {"x": deep}}
    circle = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    path = ".".join(["x"] * 55)

    assert [*Condition({path + ".y": 5}).find_problems([deep])] == []
    assert [*Condition({"next.next.next": {"above": 5}}).find_problems([circle])] == []
    assert len([*Condition({"x.x.y": 5}).find_problems([deep])]) == 1
    for depth, is_seen in ((40, True), (41, False)):
        path = ".".join([*["x"] * depth, "y"])
        assert len([*Condition({path: 5}).find_problems([deep])]) == is_seen


@pytest.mark.parametrize(
    ("schema", "condition", "says"),
    [
        (COUNTRY, "FR", "can only be 'CH' or 'DE', so that `equals` never holds"),
        (COUNTRY, "CH", None),
        (COUNTRY, {"one_of": ["FR", "CH"]}, None),
        (COUNTRY, {"one_of": ["FR", "IT"]}, "`one_of` never holds"),
        ({"const": 5}, {"above": 5}, "can only be 5"),
        ({"const": 5}, {"above": "many"}, None),
        ({"type": "boolean"}, {"above": 5}, "is a boolean, which `above` cannot compare"),
        ({"type": "boolean"}, {"matches": "x"}, "is a boolean, which `matches` cannot compare"),
        ({"type": "boolean"}, True, None),
        ({"type": "integer"}, {"matches": "x"}, "is a number, which `matches` cannot compare"),
        ({"type": "number"}, {"under": "/srv"}, "is a number, which `under` cannot compare"),
        ({"type": "integer"}, "five", "is a number, and can never be compared with 'five'"),
        ({"type": "number"}, {"at_least": "2030-01-01"}, "is a number, and can never be compared with '2030-01-01'"),
        ({"type": "integer"}, "5", None),
        ({"type": "integer"}, None, None),
        ({"type": "integer"}, {"one_of": ["five"]}, None),
        ({"type": "string"}, {"above": 5}, None),
        ({"type": "array"}, {"above": 5}, None),
        ({"type": "object"}, {"matches": "x"}, None),
        ({"type": "null"}, {"matches": "x"}, None),
        ({"type": ["integer", "string"]}, {"matches": "x"}, None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"matches": "x"}, None),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, {"matches": "x"}, "is a number"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"matches": "x"}, "is a number"),
    ],
)
def test_a_comparison_that_can_never_hold_is_a_problem(schema: Any, condition: Any, says: str | None) -> None:
    found = problems({"x": schema}, {"x": condition})

    if says is None:
        assert found == []
    else:
        assert found[0].startswith("the argument 'x' ")
        assert says in found[0]


def test_what_stands_under_not_is_checked_too() -> None:
    [problem] = problems({"amount": {"type": "number"}}, {"amount": 5, "not": {"amuont": 5}})

    assert problem == "unknown argument 'amuont'; did you mean 'amount'?"


def make(name: str, properties: dict[str, Any], **options: Any) -> Any:
    schema = {"type": "object", "properties": properties}
    return build_tool({"name": name, "input_schema": schema, "execute": lambda payload: None, **options})


PAY = make("pay", {"amount": {"type": "number"}})
LOOK = make("look", {"text": {"type": "string"}}, read_only=True)


@pytest.mark.parametrize(
    ("rule", "are_all", "says"),
    [
        (Rule.deny("pya"), True, "unknown tool 'pya'; did you mean 'pay'?"),
        (Rule.deny("pya"), False, None),
        (Rule.deny("pay", "pya"), True, "unknown tool 'pya'"),
        (Rule.deny("transfer_*"), True, "it selects no tool: deny('transfer_*')."),
        (Rule.deny("transfer_*"), False, None),
        (Rule.deny("pay", read_only=True), True, "it selects no tool"),
        (Rule.deny("look", read_only=True), True, None),
        (Rule.deny(tenant="acme"), True, None),
        (Rule.deny("pay", where={"text": "x"}), True, "unknown argument 'text'"),
        (Rule.deny("*", where={"text": "x"}), True, None),
        (Rule.deny("*", where={"txet": "x"}), True, "unknown argument 'txet'"),
        (Rule.deny("transfer_*", where={"text": "x"}), False, None),
        (Rule.deny("*"), True, None),
    ],
)
def test_a_rule_that_can_never_apply_is_a_problem(rule: Rule, are_all: bool, says: str | None) -> None:
    found = [*Policy([Rule.allow("*"), rule]).find_problems([PAY, LOOK], are_all=are_all)]

    if says is None:
        assert found == []
    else:
        [problem] = found
        assert (problem.number, problem.source) == (2, "code")
        assert says in problem.text
        assert str(problem) == f"rule 2 (code): {problem.text}"


@pytest.mark.parametrize(
    ("properties", "where"),
    [
        ({"account": {"type": "integer"}}, {"account": {"equals": {"context": "customer_id"}}}),
        ({"to": {"type": ["object", "null"]}}, {"to": {"equals": {"a": 1}}}),
        ({"cc": {"type": ["array", "null"]}}, {"cc": {"count": 2}}),
        ({"to": {"type": "object"}}, {"to": {"count": 2}}),
    ],
)
def test_a_comparison_that_can_hold_is_no_problem(properties: dict[str, Any], where: dict[str, Any]) -> None:
    assert problems(properties, where) == []


def test_the_name_that_is_missing_is_that_of_a_branch_that_has_names() -> None:
    properties = {"to": {"anyOf": [{"anyOf": [{"type": "null"}]}, {"type": "object", "properties": {"country": {}}}]}}

    assert problems(properties, {"to.contry": 5}) == ["unknown argument 'to.contry'; did you mean 'country'?"]


@pytest.mark.parametrize(
    ("schema", "decision"),
    [
        ({"type": "object", "properties": {"amount": {"type": "number"}}}, "allow"),
        ({"type": "object"}, "deny"),  # It may have any argument.
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}, "properties": {"amount": {}}}, "deny"),
    ],
)
def test_a_rule_about_an_argument_restricts_a_tool_that_may_have_it(schema: dict[str, Any], decision: str) -> None:
    built: Any = build_tool({"name": "pay", "input_schema": schema, "execute": lambda payload: None})
    policy = Policy([Rule.deny("*", where={"to": "DE"}), Rule.allow("*")])

    assert policy.decide(built, {"amount": 5}, at()).action == decision


def test_an_argument_that_is_filled_in_can_be_in_a_condition() -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "number"}, "account": {"type": "string"}}}
    built: Any = build_tool({"name": "pay", "input_schema": schema, "execute": lambda payload: None})
    (filled,) = Toolset([built]).hide("pay", account="CH93")
    policy = Policy(
        [Rule.deny("pay", where={"account": {"not_equals": "CH93"}}), Rule.deny("pay", where={"acount": 1})]
    )

    assert [problem.text for problem in policy.find_problems([filled])] == [
        "unknown argument 'acount'; did you mean 'account'?"
    ]


def test_what_was_found_in_a_schema_is_kept_for_so_many_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_paths, "_MAX_FOUND", 2)
    declared: Any = DeclaredArguments({"type": "object", "properties": {"a": {"default": 1}}})
    kept: list[tuple[int, int]] = []
    for name in ("a", "b", "c"):
        declared.find((name, "x"))
        assert declared.find_defaults((name,)) == ([1] if name == "a" else [])
        kept.append((len(declared._found), len(declared._defaults)))

    assert declared.find(("a",)).nodes == ({"default": 1},)
    assert kept[0] == (2, 1)  # A default is looked up beside what its parent has.
    assert kept[1][1] == 2
    assert kept[2][1] == 1
    assert max(found for found, _ in kept) == 2
