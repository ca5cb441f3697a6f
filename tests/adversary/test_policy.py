"""Rules that restrict less than they seem to: misspelt, incomparable, or around a path."""

import os
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from handrail import ConfigError, Executor, Policy, Rule, ToolCall, ToolContext, ToolFlags, build_tool, tool
from handrail.authorize import parse_policy

CONTEXT = ToolContext(session_id="s-1")


@tool
def pay(amount: int, note: str = "", urgent: bool = False) -> str:
    """Pay."""
    return "paid"


@tool
def refund(amount: int) -> str:
    """Refund."""
    return "refunded"


class Address(BaseModel):
    country: str


class Line(BaseModel):
    count: int


@tool
def send(
    to: Address,
    lines: list[Line],
    kind: Literal["card", "cash"],
    labels: dict[str, str],
    anything: Any,
    limit: int | None = None,
) -> str:
    """Send."""
    return "sent"


@tool
def write(file_path: str) -> str:
    """Write."""
    return "written"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule.deny("refnd"), r"rule 2 \(code\): unknown tool 'refnd'; did you mean 'refund'\?"),
        (Rule.deny("refnd", "pay"), "unknown tool 'refnd'"),
        (Rule.deny("mcp:bank"), "selects no tool"),
        (Rule.deny("pay", where={"amuont": {"above": 5}}), "unknown argument 'amuont'; did you mean 'amount'"),
        (Rule.deny("pay", where={"not": {"amuont": 5}}), "unknown argument 'amuont'"),
        (Rule.deny("pay", where={"amount": ">1000"}), "can never be compared with '>1000'"),
        (Rule.deny("pay", where={"amount": {"search": "1"}}), "`search` cannot compare"),
        (Rule.deny("pay", where={"urgent": {"above": 1}}), "is a boolean"),
        (Rule.deny("send", where={"to.contry": "CH"}), "unknown argument 'to.contry'; did you mean 'country'"),
        (Rule.deny("send", where={"lines[0].cuont": 1}), r"unknown argument 'lines\[0\].cuont'; did you mean 'count'"),
        (Rule.deny("send", where={"lines[0].count": "many"}), "is a number, and can never be compared with 'many'"),
        (Rule.deny("send", where={"limit": ">5"}), "is a number"),
        (Rule.deny("send", where={"kind": "crad"}), "can only be 'card' or 'cash'"),
        (Rule.deny("send", where={"kind": {"one_of": ["crad", "csh"]}}), "can only be 'card' or 'cash'"),
    ],
)
def test_a_rule_that_can_never_apply_is_an_error_when_the_executor_is_built(rule: Rule, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Executor([pay, refund, send], policy=Policy([Rule.allow("*"), rule]))


@pytest.mark.parametrize(
    "where",
    [
        {"to.country": "CH"},
        {"lines[0].count": {"above": 1}},
        {"limit": {"above": 5}},
        {"limit": None},
        {"kind": {"one_of": ["cash", "cheque"]}},
        {"labels.colour": "red"},
        {"anything.at.all": 1},
    ],
)
def test_a_condition_that_can_hold_is_accepted(where: dict[str, Any]) -> None:
    assert Executor([send], policy=Policy([Rule.deny("send", where=where)])).diagnostics == ()


def test_for_an_open_pool_it_is_a_diagnostic(caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy([Rule.allow("*"), Rule.deny("refnd")])

    executor = Executor([refund], policy=policy, fallback=lambda call, context: None)

    assert executor.diagnostics == ("rule 2 (code): unknown tool 'refnd'; did you mean 'refund'?",)
    assert "refnd" in caplog.text
    assert Executor([refund], policy=policy, declared={"refnd": ToolFlags()}).diagnostics == ()


def test_rules_that_others_shadow_and_rules_for_some_of_many_tools_are_fine() -> None:
    policy = Policy([Rule.deny("*"), Rule.allow("pay"), Rule.ask("*", by="operator", where={"note": "x"})])

    assert Executor([pay, refund], policy=policy).diagnostics == ()


def test_an_unknown_operator_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="unknown operator 'abvoe' in where\\['amount'\\]; did you mean 'above'"):
        Policy([Rule.deny("pay", where={"amount": {"abvoe": 5}})])
    with pytest.raises(ConfigError, match="write 'matches' for the whole text, or 'search'"):
        Policy([Rule.deny("pay", where={"note": {"pattern": "x"}})])


@pytest.mark.parametrize(
    ("where", "arguments"),
    [
        ({"amount": 5000}, {"amount": "5,000"}),
        ({"urgent": True}, {"urgent": "true"}),
        ({"not": {"amount": {"at_most": 100}}}, {"amount": "a lot"}),
        ({"amount": {"above": 5}}, {}),
    ],
)
def test_a_restriction_holds_in_doubt_and_a_permission_does_not(
    where: dict[str, Any], arguments: dict[str, Any]
) -> None:
    anything = build_tool({"name": "any", "input_schema": {}, "execute": lambda payload: None})

    assert Policy([Rule.allow("*"), Rule.deny("*", where=where)]).decide(anything, arguments, CONTEXT).action == "deny"
    assert Policy([Rule.allow("*", where=where)]).decide(anything, arguments, CONTEXT).action == "ask"


def test_not_negates_what_is_certain() -> None:
    policy = Policy([Rule.allow("pay"), Rule.deny("pay", where={"not": {"amount": {"at_most": 100}}})])

    assert policy.decide(pay, {"amount": 101}, CONTEXT).action == "deny"
    assert policy.decide(pay, {"amount": 100}, CONTEXT).action == "allow"


@pytest.mark.parametrize(
    ("where", "note", "action"),
    [
        ({"note": {"matches": "a.b"}}, "a\nb", "deny"),
        ({"note": {"matches": "a"}}, "a\n", "allow"),
        ({"note": {"search": "drop table"}}, "x;\ndrop table y", "deny"),
    ],
)
def test_patterns_see_newlines(where: dict[str, Any], note: str, action: str) -> None:
    policy = Policy([Rule.allow("pay"), Rule.deny("pay", where=where)])

    assert policy.decide(pay, {"amount": 1, "note": note}, CONTEXT).action == action


@pytest.mark.parametrize(
    ("path", "action"),
    [
        ("src/a.py", "allow"),
        ("src/../secrets.env", "ask"),
        ("src/link/secrets.env", "ask"),
        ("/etc/passwd", "ask"),
        ("srcs/a.py", "ask"),
        ("", "ask"),
    ],
)
def test_under_compares_resolved_paths(tmp_path: Path, path: str, action: str) -> None:
    (tmp_path / "src").mkdir()
    os.symlink(tmp_path, tmp_path / "src" / "link")
    context = ToolContext(session_id="s-1", working_directory=str(tmp_path))
    policy = Policy([Rule.allow("write", where={"file_path": {"under": "src"}})])

    assert policy.decide(write, {"file_path": path}, context).action == action
    assert policy.decide(write, {"file_path": path}, CONTEXT).action == "ask"


@pytest.mark.parametrize("scalar", ["NO", "yes", "0123", "1_000", "0x1F", "2030-01-01", "1:30", ".inf"])
def test_yaml_scalars_that_surprise_are_refused(scalar: str) -> None:
    with pytest.raises(ConfigError, match=r"policy:2: .* in quotes"):
        parse_policy(f"rules:\n  - {{deny: pay, where: {{country: {scalar}}}}}")
    quoted = parse_policy(f"rules:\n  - {{deny: pay, where: {{country: '{scalar}'}}}}")
    assert quoted.rules[0].where == {"country": scalar}


@pytest.mark.parametrize(("default", "action"), [("deny", "deny"), ("ask operator", "ask"), ("allow", "allow")])
def test_a_default_can_be_said_in_yaml(default: str, action: str) -> None:
    policy = parse_policy(f"rules: []\ndefault: {default}")

    decision = policy.decide(pay, {"amount": 1}, CONTEXT)
    assert (decision.action, decision.source) == (action, "policy:2")
    with pytest.raises(ConfigError, match="policy:2: `default` is one of"):
        parse_policy("rules: []\ndefault: ask")


@pytest.mark.parametrize("verdict", [0, "", "deny", {"behavior": "deny"}, [], 1, False, object()])
async def test_a_permission_check_passes_on_none_and_true_only(verdict: Any) -> None:
    checked = tool(name="checked", permission_check=lambda arguments, context: verdict)(lambda: "ran")
    executor = Executor([checked], policy=Policy([Rule.allow("*")]))

    result = await executor.run(ToolCall(id="c-1", name="checked"), CONTEXT)

    assert result.error is not None
    assert result.error.code == "permission_denied"
