"""Every call is authorised before its handler runs; what is decided is told, and observing blocks nothing."""

import asyncio
import logging
from typing import Any

import pytest

from handrail import ConfigError, Executor, Policy, Rule, ToolCall, ToolContext, ToolError, ToolFlags, build_tool, tool
from handrail.authorize import MemoryApprovals, authorizer, parse_policy
from handrail.authorize.authorizer import Repetition
from handrail.authorize.conditions import Condition
from handrail.core import CallFinished, CallStarted, DecisionMade
from tests.execute.helpers import ALLOWED, Heard, at, call, code_of

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(read_only=True)
async def look(n: int = 1) -> str:
    """Look."""
    ran.append("look")
    return "seen"


@tool
async def act(n: int = 1) -> str:
    """Act."""
    ran.append("act")
    return "acted"


both = pytest.mark.parametrize("name", ["look", "act"])


# What is told


@both
async def test_a_decision_is_in_the_result_and_in_the_events(name: str) -> None:
    heard = Heard()
    executor = Executor(
        [look, act],
        policy=Policy([Rule.deny("*", where={"n": 2}, reason="not two"), Rule.allow("*")]),
        listeners=[heard],
    )
    allowed = await executor.run(call(name, "c-1", n=1), at())
    denied = await executor.run(call(name, "c-2", n=2), at())

    assert [item.decision.action for item in (allowed, denied)] == ["allow", "deny"]
    assert [event.decision.action if event.decision else None for event in heard.of(CallFinished)] == ["allow", "deny"]
    assert [event.decision.reason for event in heard.of(DecisionMade)] == [
        "not two"
    ]  # What is simply allowed makes no event.
    assert len(heard.of(CallStarted)) == 1
    assert denied.error is not None
    assert (denied.error.code, "not two" in denied.error.message) == ("permission_denied", True)


@pytest.mark.parametrize("reason", ["not today", "not today."])
async def test_a_reason_ends_with_one_full_stop_whether_it_was_written_with_one_or_not(reason: str) -> None:
    rules = [Rule.deny("look", reason=reason), Rule.ask("act", by="customer", reason=reason)]
    executor = Executor([look, act], policy=Policy(rules))

    denied, asked = [await executor.run(call(name, name), at()) for name in ("look", "act")]

    assert denied.error is not None
    assert denied.error.message == "`look` is not allowed: not today."
    assert asked.error is not None
    assert "of the customer first (not today). Nothing" in asked.error.message


@pytest.mark.proves("GC-39", "GC-40")
async def test_by_default_reads_run_and_the_customer_is_asked_for_every_other() -> None:
    executor = Executor([look, act])

    assert (await executor.run(call("look"), at())).output == "seen"
    asked = await executor.run(call("act", "c-2"), at())
    assert code_of(asked) == "approval_required"
    assert (await executor.approvals.pending())[0].by == "customer"
    assert ran == ["look"]


async def test_the_developer_learns_once_what_would_allow_a_tool_and_the_model_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor = Executor([act])
    with caplog.at_level(logging.INFO, "handrail"):
        results = [await executor.run(call("act", f"c-{n}", n=n), at()) for n in range(3)]

    assert caplog.text.count("Rule.allow") == 1
    assert "act" in caplog.text
    assert all("Rule.allow" in result.decision.reason for result in results)
    assert not any("Rule." in result.for_model() for result in results)
    assert {result.approval.question for result in results} == {"it may change something and no rule allows it"}


# The tool's own check


def checked(check: Any, *, read_only: bool = False) -> Executor:
    @tool(permission_check=check, read_only=read_only)
    async def guarded(n: int = 1) -> str:
        """Guarded."""
        ran.append("guarded")
        return "ran"

    return Executor([guarded], policy=ALLOWED)


@pytest.mark.proves("HC-07")
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ToolError("Only on Mondays."), "Only on Mondays."),
        (PermissionError("not yours"), "not yours"),
        (PermissionError(), "its own check refused it"),
        (ValueError("secret"), "its own check failed"),
        (SystemExit(), "its own check failed"),
        (GeneratorExit(), "its own check failed"),
        (asyncio.CancelledError(), "its own check failed"),
        (ExceptionGroup("many", [ValueError()]), "its own check failed"),
        (RecursionError(), "its own check failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_a_check_that_raises_anything_refuses(
    error: BaseException, says: str, is_async: bool, read_only: bool
) -> None:
    def now(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        raise error

    async def later(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        await asyncio.sleep(0)
        raise error

    result = await checked(later if is_async else now, read_only=read_only).run(call("guarded"), at())

    assert result.error is not None
    assert result.error.code == "permission_denied"
    assert says in result.error.message
    assert "secret" not in result.error.message
    assert result.decision.rule == "permission_check"
    assert not ran


@pytest.mark.proves("HC-07")
@pytest.mark.parametrize(("says", "runs"), [(None, True), (True, True), (False, False)])
async def test_a_check_says_no_by_returning_false(says: bool | None, runs: bool) -> None:
    seen: list[Any] = []

    def check(arguments: dict[str, Any], context: ToolContext[Any]) -> bool | None:
        seen.append((arguments, context.session_id))
        return says

    result = await checked(check).run(call("guarded"), at())

    assert (result.ok, bool(ran)) == (runs, runs)
    assert seen == [({"n": 1}, "s-1")]  # With the defaults in.


@pytest.mark.proves("HC-07")
async def test_a_check_that_passes_leaves_the_decision_to_policy() -> None:
    @tool(permission_check=lambda arguments, context: True)
    async def guarded() -> None:
        """Guarded."""
        ran.append("guarded")

    denied = Executor([guarded], policy=Policy([Rule.deny("*")]))
    asked = Executor([guarded])

    assert code_of(await denied.run(call("guarded"), at())) == "permission_denied"
    assert code_of(await asked.run(call("guarded"), at())) == "approval_required"
    assert not ran


# Observing


@both
@pytest.mark.parametrize(
    "policy", [Policy([Rule.deny("*")]), Policy([Rule.ask("*", by="operator")])], ids=["deny", "ask"]
)
async def test_observing_decides_and_records_and_blocks_nothing(name: str, policy: Policy) -> None:
    heard = Heard()
    executor = Executor([look, act], policy=policy, mode="observe", listeners=[heard])
    result = await executor.run(call(name), at())

    assert result.ok
    assert ran == [name]
    (told,) = heard.of(DecisionMade)
    assert (told.observed, told.decision.action) == (True, policy.rules[0].action)
    assert result.decision.action == policy.rules[0].action
    assert await executor.approvals.pending() == []


async def test_observing_may_be_for_some_tools_only() -> None:
    executor = Executor([look, act], policy=Policy([Rule.deny("*")]), mode={"loo*": "observe", "act": "enforce"})

    assert (await executor.run(call("look"), at())).ok
    assert code_of(await executor.run(call("act", "c-2"), at())) == "permission_denied"
    assert "observed only" in str(executor.explain(call("look"), at()))
    assert "observed only" not in str(executor.explain(call("act"), at()))


@pytest.mark.parametrize("mode", ["watch", {"act": "watch"}])
def test_a_mode_that_there_is_not_is_an_error(mode: Any) -> None:
    with pytest.raises(ConfigError, match="mode must be 'enforce' or 'observe', got 'watch'"):
        Executor([act], mode=mode)


async def test_observing_also_lets_a_failed_check_pass_and_says_so() -> None:
    def check(arguments: dict[str, Any], context: ToolContext[Any]) -> None:
        raise PermissionError("not yours")

    @tool(permission_check=check)
    async def guarded() -> str:
        """Guarded."""
        return "ran"

    heard = Heard()
    executor = Executor([guarded], policy=ALLOWED, mode="observe", listeners=[heard])

    assert (await executor.run(call("guarded"), at())).output == "ran"
    assert heard.of(DecisionMade)[0].decision.reason == "not yours"


async def test_observing_never_uses_up_an_approval() -> None:
    policy = Policy([Rule.ask("act", by="operator")])
    enforcing = Executor([act], policy=policy)
    asked = await enforcing.run(call("act"), at())
    await enforcing.approvals.approve(asked.approval.token, by="operator", who="bo")
    observing = Executor([act], policy=policy, mode="observe", approvals=enforcing.approvals)
    assert (await observing.run(call("act", "c-2"), at())).ok

    assert (await enforcing.run(call("act"), at())).ok


async def test_observing_still_runs_the_same_call_once() -> None:
    executor = Executor([act], policy=Policy([Rule.deny("*")]), mode="observe")
    await executor.run(call("act"), at())
    await executor.run(call("act"), at())
    await executor.run(call("act", "c-2"), at())

    assert ran == ["act"]


@both
@pytest.mark.parametrize("rule", [Rule.allow("*"), Rule.deny("*"), Rule.allow("*", where={"n": 1})])
async def test_a_question_that_the_policy_now_decides_is_withdrawn(name: str, rule: Rule) -> None:
    executor = Executor([look, act], policy=Policy([Rule.ask("*", by="operator")]))
    asked = await executor.run(call(name, "c-1", n=1), at())
    other = await executor.run(call(name, "c-2", n=2), at())
    assert asked.approval is not None
    assert other.approval is not None

    executor.replace_policy(Policy([rule]))
    await executor.run(call(name, "c-1", n=1), at())

    assert [approval.call_id for approval in await executor.approvals.pending()] == ["c-2"]
    known = await executor.approvals.get(asked.approval.token)
    assert known is not None
    assert known.state == "withdrawn"


@both
@pytest.mark.parametrize("what", ["the approvals", "the policy"])
async def test_what_fails_while_a_decision_is_made_refuses_the_call(
    name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("away")

    executor = Executor([look, act], policy=Policy([Rule.ask("*", by="operator", where={"n": 1})]))
    if what == "the approvals":
        monkeypatch.setattr(executor.approvals, "ask", fail)
    else:
        monkeypatch.setattr(Condition, "matches", fail)

    result = await executor.run(call(name), at())

    assert (code_of(result), ran) == ("unavailable", [])


@pytest.mark.parametrize(
    ("done_at", "done_with", "says"),
    [
        (None, None, "it was already done; it must be wanted once more"),
        ("10:00", None, "it was already done at 10:00; it must be wanted once more"),
        (
            "10:00",
            "amount: 5",
            "it was already done at 10:00 with other arguments (amount: 5); it must be wanted once more",
        ),
    ],
)
def test_a_question_about_a_repetition_says_when_it_was_done_and_with_which_arguments(
    done_at: str | None, done_with: str | None, says: str
) -> None:
    assert Repetition(number=1, done_at=done_at, done_with=done_with).question == says


@pytest.mark.parametrize(
    ("policy", "by", "rule", "reason"),
    [
        (ALLOWED, "customer", "at most once", "it was already done"),
        (Policy(), "customer", "at most once", "it was already done"),
        (Policy(asks="operator"), "operator", "at most once", "it was already done"),
        (Policy([Rule.ask("act", by="operator", reason="a look")]), "operator", "ask('act'", "a look; it was already"),
        (Policy([Rule.ask("act", by="operator")]), "operator", "ask('act'", "it was already done"),
    ],
)
async def test_a_repetition_is_asked_about_by_the_rule_that_asks_anyway_or_by_the_ledger(
    policy: Policy, by: Any, rule: str, reason: str
) -> None:
    executor = Executor([act], policy=policy)
    first = await executor.run(call("act", "c-1"), at(customer_id="ann"))
    if first.approval is not None:
        who = "ann" if first.approval.by == "customer" else "bo"
        await executor.approvals.approve(first.approval.token, by=first.approval.by, who=who)
        first = await executor.run(call("act", "c-1"), at(turn=2, customer_id="ann"))
    assert first.ok
    again = await executor.run(call("act", "c-2"), at(turn=3, customer_id="ann"))

    assert again.decision is not None
    assert (again.decision.by, again.decision.rule.startswith(rule)) == (by, True)
    assert again.decision.reason.startswith(reason)


# Asking


@pytest.mark.parametrize(
    ("policy", "by", "rule"),
    [
        (ALLOWED, "operator", "ask_operator"),
        (Policy([Rule.allow("act", where={"n": 1})]), "operator", "ask_operator"),
        (Policy([Rule.ask("act", by="customer")]), "operator", "ask_operator"),
        (Policy([Rule.ask("act", by="operator", name="payments")]), "operator", "payments"),
        (Policy([Rule.deny("act", name="closed")]), None, "closed"),
    ],
)
async def test_a_call_that_an_operator_must_see_is_asked_about_unless_it_is_denied(
    policy: Policy, by: str | None, rule: str
) -> None:
    sent = ToolCall(id="c-1", name="act", arguments_json='{"n": 1}', ask_operator="the guideline says so")
    result = await Executor([act], policy=policy).run(sent, at())

    assert result.decision is not None
    assert (result.decision.by, result.decision.rule, ran) == (by, rule, [])
    assert code_of(result) == ("approval_required" if by else "permission_denied")


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_operator_is_asked_about_a_read_only_call_too_however_its_handler_runs(is_async: bool) -> None:
    async def look() -> str:
        return "seen"

    reads = tool(name="look", read_only=True)(look if is_async else lambda: "seen")
    executor, sent = Executor([reads]), ToolCall(id="c-1", name="look", ask_operator="the guideline says so")
    asked = await executor.run(sent, at())
    assert asked.approval is not None
    assert (code_of(asked), asked.approval.by) == ("approval_required", "operator")

    await executor.approvals.approve(asked.approval.token, by="operator", who="ada")

    assert (await executor.run(sent, at())).output == "seen"


@pytest.mark.parametrize(
    ("host", "says"), [("crm.test", "why (sent to crm.test)"), ("", "why"), (5, "why"), (None, "why")]
)
async def test_a_question_says_where_the_call_goes(host: Any, says: str) -> None:
    sends: Any = build_tool(
        {"name": "send", "input_schema": {}, "execute": lambda payload: None, "metadata": {"host": host}}
    )
    executor = Executor([sends], policy=Policy([Rule.ask("send", by="operator", reason="why")]))
    await executor.run(call("send"), at())

    assert [asked.question for asked in await executor.approvals.pending()] == [says]


async def test_the_developer_learns_once_that_turns_must_be_counted(caplog: pytest.LogCaptureFixture) -> None:
    executor = Executor([act])
    for number in range(2):
        asked = await executor.run(call("act", f"c-{number}", n=number), at(customer_id="ann"))
        assert asked.approval is not None
        assert "raise ToolContext(turn=…)" not in caplog.text
        await executor.approvals.approve(asked.approval.token, by="customer", who="ann")

    for number in (0, 1, 0):
        await executor.run(call("act", f"c-{number}", n=number), at(customer_id="ann"))

    assert caplog.text.count("raise ToolContext(turn=…)") == 1
    assert ran == []


async def test_open_questions_are_remembered_until_they_are_answered_and_the_oldest_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authorizer, "_MAX_ASKED", 2)
    executor: Any = Executor([act], policy=Policy([Rule.ask("act", by="operator")]))
    asked = [await executor.run(call("act", f"c-{number}", n=number), at()) for number in range(3)]
    assert [call_id for _, call_id in executor._parts.authorizer.asked] == ["c-1", "c-2"]

    await executor.approvals.approve(asked[1].approval.token, by="operator", who="bo")
    assert (await executor.run(call("act", "c-1", n=1), at())).ok
    assert [call_id for _, call_id in executor._parts.authorizer.asked] == ["c-2"]


async def test_a_read_whose_approval_cannot_be_used_up_does_not_run() -> None:
    class Away(MemoryApprovals):
        async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
            raise ConnectionError("away")

    executor = Executor([look], policy=Policy([Rule.ask("look", by="operator")]), approvals=Away())
    asked = await executor.run(call("look"), at())
    assert asked.approval is not None
    await executor.approvals.approve(asked.approval.token, by="operator", who="bo")

    assert (code_of(await executor.run(call("look"), at())), ran) == ("unavailable", [])


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
