"""Whoever decides is told where the values come from that a rule asks about; values themselves go to them alone."""

from typing import Any

import pytest

from handrail import Executor, Policy, Provenance, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.authorize.conditions import Condition
from handrail.authorize.from_condition import ValueOrigin
from handrail.core import DecisionMade
from handrail.core.provenance_records import SourceTool
from tests.execute.helpers import Heard, at, call

FOUND = ToolCall(id="call_7", name="search")


@tool
async def send(to: str = "", cc: list[str] | None = None, amount: float = 0) -> str:
    """Send."""
    return "sent"


def know() -> Provenance:
    """A conversation with a value of each kind of source."""
    provenance = Provenance()
    provenance.add_customer("please pay CH-CUSTOMER")
    provenance.add_quoted("they wrote: CH-QUOTED")
    provenance.add_application(iban="CH-APPLICATION")
    provenance.add_result(FOUND, ToolResult(output={"iban": "CH-TOOL"}), SourceTool("search", "local"))
    return provenance


def find(where: dict[str, Any], arguments: dict[str, Any], **more: Any) -> list[ValueOrigin]:
    policy = Policy([Rule.ask("*", by="operator", where=where)]).compile(more.pop("tool", send))
    return policy.find_origins(at(**{"provenance": know(), **more}), arguments)


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("CH-CUSTOMER", "from customer or operator"),
        ("CH-QUOTED", "not from customer or operator; first seen in a text that the customer pasted"),
        ("CH-APPLICATION", "not from customer or operator; first seen in what the application knows"),
        ("CH-TOOL", "not from customer or operator; first seen in the result of search (call_7)"),
        ("CH-NOBODY", "not from customer or operator; not seen before in this conversation"),
    ],
)
def test_a_value_is_described_by_where_it_was_first_seen(to: str, says: str) -> None:
    policy = Policy([Rule.allow("send", where={"to": {"from": ["customer", "operator"]}})])
    context = at(provenance=know())

    explained = str(Executor([send], policy=policy).explain(call("send", to=to), context)).splitlines()

    assert explained[-1] == f"  to: {says}"
    assert any(line.endswith(f"does not hold: to is {says}") for line in explained) is (to != "CH-CUSTOMER")


def test_what_the_customer_wrote_is_not_from_an_operator() -> None:
    (found,) = find({"to": {"from": ["operator"]}}, {"to": "CH-CUSTOMER"})

    assert found.describe() == "not from operator; first seen in the customer's own words"


@pytest.mark.parametrize("provenance", [None, "of another conversation"])
def test_without_provenance_nobody_knows(provenance: str | None) -> None:
    known = know()
    known.bind("another")
    (found,) = find({"to": {"from": ["customer"]}}, {"to": "CH-CUSTOMER"}, provenance=provenance and known)

    assert (found.is_from, found.value, found.seen) == (None, "CH-CUSTOMER", None)
    assert found.describe() == "nobody knows whether it is from customer: this conversation has no provenance"


def test_a_value_of_another_kind_or_of_no_kind_is_not_shown() -> None:
    @tool
    async def pay(to: dict[str, str] | str, amount: float) -> str:
        """Pay."""
        return ""

    where = {"to.iban": {"from": ["customer"]}, "amount": {"from": ["customer"]}}
    other, none = find(where, {"to": "CH-CUSTOMER", "amount": float("nan")}, tool=pay)

    assert (other.path, other.is_from, other.value, other.seen) == ("to.iban", None, None, None)
    assert other.describe() == "not known to be from customer; not seen before in this conversation"
    assert (none.path, none.is_from, none.value, none.seen) == ("amount", False, None, None)


def test_twenty_values_that_are_not_fine_are_described_or_all_that_are_in_one_line() -> None:
    where = {"cc": {"from": ["customer"]}}

    bad = [f"eve-{number}" for number in range(25)]
    assert [item.path for item in find(where, {"cc": ["CH-CUSTOMER", *bad]})] == [f"cc[{n}]" for n in range(1, 21)]
    assert len(find(where, {"cc": bad[:3]})) == 3
    (fine,) = find(where, {"cc": ["CH-CUSTOMER", "CH-CUSTOMER"]})
    assert (fine.path, fine.is_from, fine.value, fine.describe()) == ("cc", True, None, "from customer")
    assert find(where, {"cc": []}) == []


def test_only_the_rules_of_this_tenant_and_agent_are_described_each_value_once() -> None:
    def ask(source: str, **whose: Any) -> Rule:
        return Rule.ask("send", by="operator", where={"to": {"from": [source]}}, **whose)

    rules = [
        *(ask("customer"), ask("customer", tenant="acme", agent="desk")),
        *(ask("operator", tenant="acme", agent="desk"), ask("application", tenant="acme", agent="night")),
        *(ask("tool:search", tenant="other", agent="desk"), Rule.allow("send")),
    ]
    context = at(provenance=know(), tenant_id="acme", agent_id="desk")
    found = Policy(rules).compile(send).find_origins(context, {"to": "CH-NOBODY"})

    assert [item.wanted for item in found] == [("customer",), ("operator",)]


# What is told to whom.


@pytest.mark.parametrize("to", ["CH-CÜSTOMER", "CH\x07CUSTOMER", "CH  CUSTOMER"])
async def test_the_operator_reads_a_value_that_looks_like_another_with_escapes_and_the_log_does_not(to: str) -> None:
    heard = Heard()
    policy = Policy([Rule.ask("send", by="operator", where={"not": {"to": {"from": ["customer"]}}})])
    executor = Executor([send], policy=policy, listeners=[heard])

    await executor.run(call("send", to=to), at(provenance=know()))

    (pending,) = await executor.approvals.pending()
    says = "not from customer; not seen before in this conversation"
    assert pending.seen == {"to": f"{says}; written with escapes it is {to!a}"}
    assert [event.seen for event in heard.of(DecisionMade)] == [{"to": says}]


async def test_a_plain_text_and_a_number_need_no_escapes() -> None:
    where = {"not": {"to": {"from": ["customer"]}, "amount": {"from": ["customer"]}}}
    executor = Executor([send], policy=Policy([Rule.ask("send", by="operator", where=where)]))

    await executor.run(call("send", to="CH-NOBODY", amount=7), at(provenance=know()))

    (pending,) = await executor.approvals.pending()
    assert pending.seen == dict.fromkeys(("to", "amount"), "not from customer; not seen before in this conversation")


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_a_decision_is_told_with_the_origins_whether_it_is_enforced_or_observed(mode: Any) -> None:
    heard = Heard()
    policy = Policy([Rule.deny("send", where={"not": {"to": {"from": ["customer"]}}}), Rule.allow("send")])
    executor = Executor([send], policy=policy, listeners=[heard], mode=mode)

    await executor.run(call("send", to="CH-TOOL"), at(provenance=know()))

    (told,) = heard.of(DecisionMade)
    assert told.seen == {"to": "not from customer; first seen in the result of search (call_7)"}
    assert told.observed is (mode == "observe")


# Why a condition does not hold.


@pytest.mark.parametrize(
    ("where", "arguments", "says"),
    [
        (
            {"to": ["customer"]},
            {"to": "CH-TOOL"},
            "to is not from customer; first seen in the result of search (call_7)",
        ),
        (
            {"to": ["customer"], "note": ["operator"]},
            {"to": "CH-CUSTOMER", "note": "CH-CUSTOMER"},
            "note is not from operator; first seen in the customer's own words",
        ),
        ({"bcc": ["customer"]}, {}, "there is no bcc"),
    ],
)
def test_the_first_origin_that_is_not_as_wanted_is_named(
    where: dict[str, list[str]], arguments: dict[str, Any], says: str
) -> None:
    compiled = Policy([Rule.allow("*", where={path: {"from": sources} for path, sources in where.items()})]).compile(
        send
    )

    ((_, failure),) = compiled.explain_rules(at(provenance=know()), arguments, shown=arguments)

    assert failure == says


def test_without_a_conversation_the_reason_is_that_nobody_knows() -> None:
    failure = Condition({"to": {"from": ["customer"]}}).explain_failure({"to": "x"}, shown={"to": "x"})

    assert failure == "to is nobody knows whether it is from customer: this conversation has no provenance"


# Later, without the conversation.


def test_where_values_came_from_was_decided_in_the_conversation() -> None:
    rules = [Rule.deny("send", where={"not": {"to": {"from": ["customer"]}}}), Rule.deny("send", where={"amount": 5})]
    compiled = Policy([*rules, Rule.allow("send")]).compile(send)
    later: ToolContext[Any] = at()

    assert compiled.decide(later, lambda: {"to": "CH-NOBODY", "amount": 1}).action == "deny"
    without = compiled.without_origins()
    assert without.decide(later, lambda: {"to": "CH-NOBODY", "amount": 1}).action == "allow"
    assert without.decide(later, lambda: {"to": "CH-NOBODY", "amount": 5}).action == "deny"
    assert without.without_origins() is without


async def test_what_an_operator_wrote_instead_is_from_them() -> None:
    rules = [
        Rule.deny("send", where={"not": {"to": {"from": ["customer", "operator"]}}}),
        Rule.ask("send", by="operator"),
    ]
    executor = Executor([send], policy=Policy(rules))
    context = at(provenance=know())

    asked = await executor.run(call("send", to="CH-CUSTOMER"), context)
    assert asked.approval is not None
    await executor.approvals.approve(asked.approval.token, by="operator", who="bo", arguments={"to": "CH-NEW"})

    assert (await executor.run(call("send", to="CH-CUSTOMER"), context)).output == "sent"
