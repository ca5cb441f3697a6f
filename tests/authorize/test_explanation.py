"""`explain` says which rule would decide, where it stands and why; nothing runs, and nobody is asked."""

from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolFlags, tool
from handrail.authorize import parse_policy
from tests.execute.helpers import Heard, at, call


def check(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
    raise AssertionError("nobody is asked")


@tool(permission_check=check)
async def pay(amount: int) -> str:
    """Pay."""
    raise AssertionError("nothing runs")


async def test_the_rule_that_decides_is_marked_among_those_that_were_looked_at() -> None:
    policy = parse_policy(
        """\
rules:
  - deny: pay
    where: {amount: {above: 1000}}
    reason: too much
  - ask: pay
    by: operator
    where: {amount: {above: 100}}
  - allow: "*"
  - deny: other
""",
        source="desk.yaml",
    )
    heard = Heard()
    executor = Executor([pay], policy=policy, listeners=[heard], declared={"other": ToolFlags()})
    explained = executor.explain(call("pay", amount=500), at())

    assert explained.decision is not None
    assert (explained.decision.action, explained.decision.by, explained.decision.source) == (
        "ask",
        "operator",
        "desk.yaml:5",
    )
    lines = str(explained).splitlines()
    assert lines[0].startswith("pay: ask the operator, by ask('pay'")
    assert "desk.yaml:5" in lines[0]
    marked = [line for line in lines if "=>" in line]
    assert len(marked) == 1
    assert marked[0].endswith("holds")
    assert any(
        "desk.yaml:2" in line and line.endswith("does not hold: amount is 500, not above 1000") for line in lines
    )
    assert not any("desk.yaml:9" in line for line in lines)
    assert any("permission check is asked" in line for line in lines)
    assert "because: too much" in str(executor.explain(call("pay", amount=2_000), at()))
    assert heard == []
    assert await executor.approvals.pending() == []


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (call("nobody"), "no tool of this name"),
        (call("pay", amount="many"), "invalid_arguments"),
        (ToolCall(id="c", name="pay", arguments_json="{"), "tool_args_parse_error"),
    ],
)
def test_a_call_that_could_not_even_be_decided_says_so(sent: ToolCall, says: str) -> None:
    explained = Executor([pay]).explain(sent, at())

    assert explained.decision is None
    assert says in str(explained)


def test_the_default_is_explained_too() -> None:
    explained = Executor([pay], policy=Policy([Rule.deny("pay", tenant="acme")])).explain(call("pay", amount=1), at())

    assert "by default (default)" in str(explained)
    assert "Rule.allow" in str(explained)


@tool
async def send(to: dict[str, str], token: str, text: str) -> str:
    """Send."""
    return text


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Rule.allow("send", where={"to.country": "CH"}), "to.country is 'DE', not 'CH'"),
        (Rule.allow("send", where={"to.city": "Bern"}), "there is no to.city"),
        (Rule.allow("send", where={"token": "sesame"}), "token is [redacted], not 'sesame'"),
        (Rule.allow("send", where={"text": {"at_most": 5}}), "text is 'hello', for which `at_most` cannot tell"),
        (Rule.allow("send", where={"not": {"to.country": "DE"}}), "what stands under `not` holds"),
        (Rule.allow("send", agent="desk"), "the agent is None"),
        (Rule.allow("send", tenant="other"), "the tenant is 'acme'"),
        (Rule.allow("send", tenant="acme", where={"text": "bye"}), "text is 'hello', not 'bye'"),
    ],
)
def test_a_rule_that_does_not_hold_says_which_condition_failed_and_shows_no_secret(rule: Rule, says: str) -> None:
    sent = call("send", to={"country": "DE"}, token="tok_51Habcdef9876543210", text="hello")

    explained = str(Executor([send], policy=Policy([rule])).explain(sent, at(tenant_id="acme")))

    assert f"does not hold: {says}" in explained
    assert "51Habcdef" not in explained
