"""A policy is read from YAML, and whatever is wrong with it is named with its file and line."""

from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigError, build_tool
from handrail.authorize import load_policy, parse_policy
from tests.execute.helpers import at

POLICY = """\
# The rules of the desk.
rules:
  - deny: [pay, "tag:money"]
    where:
      amount: {above: 10000}
      to.country: {one_of: [KP, IR]}
    reason: over the limit of this desk
  - ask: pay
    by: operator
    where: {amount: {above: 500}}
    name: big payments

  - ask: "pay"
    by: customer
  - {allow: "get_*", tenant: acme, agent: a-1, read_only: true}
"""


def pay(**more: Any) -> Any:
    schema = {"type": "object", "properties": {"amount": {"type": "number"}, "to": {"type": "object"}}}
    return build_tool({"name": "pay", "input_schema": schema, "execute": lambda payload: None, **more})


def test_a_policy_is_read_with_the_lines_of_its_rules() -> None:
    policy = parse_policy(POLICY, source="desk.yaml")

    assert [rule.source for rule in policy.rules] == [f"desk.yaml:{line}" for line in (3, 8, 13, 15)]
    denied = policy.decide(pay(), {"amount": 20_000, "to": {"country": "KP"}}, at())
    assert (denied.action, denied.source, denied.reason) == ("deny", "desk.yaml:3", "over the limit of this desk")
    asked = policy.decide(pay(), {"amount": 501, "to": {"country": "CH"}}, at())
    assert (asked.action, asked.by, asked.rule, asked.source) == ("ask", "operator", "big payments", "desk.yaml:8")
    last = policy.rules[-1]
    assert (last.tools, last.tenant, last.agent, last.read_only) == (("get_*",), "acme", "a-1", True)


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "desk.yaml"
    file.write_text(POLICY, encoding="utf-8")

    assert load_policy(file).rules[0].source == f"{file}:3"
    assert len(load_policy(str(file)).rules) == 4


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "desk.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"desk\.yaml: the file cannot be read"):
        load_policy(file)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "mapping with `rules:`"),
        ("- deny: pay", 1, "mapping with `rules:`"),
        ("default: deny", 1, "a policy has `rules:`"),
        ("rules: []\ndefault: perhaps", 2, "`default` is one of"),
        ("rules:\n  - deny: pay\n    wher:\n      a: 1", 3, "does not have `wher`"),
        ("rules:\n  - deny: pay\n extra: 1", 3, "YAML"),
        ("rules: [", 1, "YAML"),
        ("rules:\n  - deny: pay\nmore: 1", 3, "`more` is not known here"),
        ("\n\nother: 1", 3, "`other` is not known here"),
        ("rules:\n  deny: pay", 2, "`rules` is a list"),
        ("rules: pay", 1, "`rules` is a list"),
        ("rules:\n  - deny: pay\n  - just text", 3, "a rule is a mapping"),
        ("rules:\n  - deny: pay\n  -", 3, "a rule is a mapping"),
        ("rules:\n  - deny: pay\n    wher: {a: 1}", 3, "does not have `wher`"),
        ("rules:\n  - by: operator", 2, "one of allow, ask, deny, and this one has 0"),
        ("rules:\n  - deny: pay\n    allow: pay", 2, "this one has 2"),
        ("rules:\n  - deny: pay\n    deny: get", 3, "the key 'deny' is here twice"),
        ("rules: []\nrules: []", 2, "the key 'rules' is here twice"),
        ("rules:\n  - deny:\n      - pay\n      - 5", 3, "name a tool"),
        ("rules:\n  - deny: []", 2, "name a tool"),
        ("rules:\n  - deny:", 2, "name a tool"),
        ("rules:\n  - deny: {a: 1}", 2, "name a tool"),
        ("rules:\n  - deny: ' pay'", 2, "spaces"),
        ("rules:\n  - ask: pay", 2, "in a rule that asks"),
        ("rules:\n  - ask: pay\n    by: boss", 2, "in a rule that asks"),
        ("rules:\n  - deny: pay\n    by: operator", 2, "in a rule that asks"),
        ("rules:\n  - deny: pay\n    by: 5", 3, "`by` is a str"),
        ("rules:\n  - deny: pay\n    where: amount", 3, "`where` is a dict"),
        ("rules:\n  - deny: pay\n    read_only: sometimes", 3, "`read_only` is a bool"),
        ("rules:\n  - deny: pay\n    tenant: 7", 3, "`tenant` is a str"),
        ("rules:\n  - deny: pay\n    reason: [a]", 3, "`reason` is a str"),
        ("rules:\n  - deny: pay\n    where: {amount: {over: 5}}", 2, "over"),
        ("rules:\n  - deny: pay\n    where: {'a..b': 5}", 2, "path"),
        ("rules:\n  - deny: pay\n    where: {a: {matches: '('}}", 2, "regular expression"),
        ("rules:\n  - deny: pay\n    where: {}", 2, "where"),
        ("rules:\n  - deny: pay\n    where:\n      a: {above: 1, above: 2}", 4, "the key 'above' is here twice"),
        ("rules:\n  - deny: !!python/object:os.system pay", 2, "python"),
        ("rules:\n  - deny: !!int pay", 2, ""),
        ("rules:\n  - deny: !!bool 'perhaps'", 2, "cannot be read as"),
        ("rules: *nobody", 1, "YAML"),
        pytest.param(f"rules:\n  - deny: {'[' * 2000}{']' * 2000}", 1, "nested too deeply", id="nested"),
        ("rules:\n  - deny: pay\n    [by, who]: operator", 3, "a key must be text"),
        ("rules:\n  - deny: pay\n    where: &a {b: *a}", 3, "refers to itself"),
        ("rules: [&a [*a, *a]]", 1, "a rule is a mapping"),
        (
            f"rules:\n  - deny: pay\n    where:\n      a: &a [{'x, ' * 200}]\n      b: [{'*a, ' * 200}]",
            4,
            "at most 10,000",
        ),
    ],
)
def test_whatever_is_wrong_is_named_with_its_file_and_line(text: str, line: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, source="desk.yaml")

    assert caught.value.message.startswith(f"desk.yaml:{line}: ")
    assert says in caught.value.message


def test_a_rule_can_be_referred_to() -> None:
    assert parse_policy("rules:\n  - &one\n    deny: pay\n  - *one").rules[1].tools == ("pay",)


def test_values_keep_their_kinds() -> None:
    policy = parse_policy("rules:\n  - deny: pay\n    where: {a: 1, b: true, c: null, d: '1', e: '2030-01-01'}")

    assert {name: type(value).__name__ for name, value in (policy.rules[0].where or {}).items()} == {
        "a": "int",
        "b": "bool",
        "c": "NoneType",
        "d": "str",
        "e": "str",
    }


def test_a_file_says_who_is_asked_where_no_rule_does() -> None:
    policy = parse_policy("rules: []\nasks: operator\n")
    pay = build_tool({"name": "pay", "handler": lambda payload: None, "input_schema": {"type": "object"}})
    assert (policy.asks, policy.decide(pay, {}, at()).by) == ("operator", "operator")

    with pytest.raises(ConfigError, match="policy:2: `asks` is `customer` or `operator`, not 'boss'"):
        parse_policy("rules: []\nasks: boss\n")
