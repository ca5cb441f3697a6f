"""deny > ask > allow > default, the first match within an action, and every decision says which rule it was."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import ConfigError, Decision, Executor, Policy, Rule, Tool, build_tool, tool
from handrail.authorize.policy import DEFAULT
from tests.execute.helpers import at


def made(name: str = "pay", **more: Any) -> Tool[..., Any]:
    schema = {"type": "object", "properties": {"amount": {"type": "number"}, "to": {"type": "object"}}}
    return build_tool({"name": name, "input_schema": schema, "execute": lambda payload: None, **more})


def decided(
    rules: list[Rule], arguments: dict[str, Any] | None = None, made_tool: Tool[..., Any] | None = None, **where: Any
) -> Decision:
    return Policy(rules).decide(made_tool or made(), arguments or {}, at(**where))


# Precedence


@pytest.mark.parametrize("order", [*itertools.permutations(["deny", "ask", "allow"])])
def test_deny_before_ask_before_allow_whatever_the_order(order: tuple[str, ...]) -> None:
    rules = {"deny": Rule.deny("pay"), "ask": Rule.ask("pay", by="operator"), "allow": Rule.allow("pay")}
    left = list(order)
    for action in ("deny", "ask", "allow"):
        assert decided([rules[item] for item in left]).action == action
        left.remove(action)
    assert decided([]).source == DEFAULT


def test_the_first_match_within_an_action_counts() -> None:
    rules = [
        Rule.ask("pay", by="operator", where={"amount": {"above": 500}}, name="big"),
        Rule.ask("pay", by="customer", name="small"),
        Rule.ask("pay", by="operator", name="never"),
    ]
    assert [decided(rules, {"amount": amount}).rule for amount in (501, 500)] == ["big", "small"]


EFFECTS = st.sampled_from(["deny", "ask", "allow"])


@given(st.lists(st.tuples(EFFECTS, st.integers(0, 5)), max_size=8), st.integers(0, 5))
def test_a_decision_is_that_of_the_first_rule_that_holds_in_the_strictest_action(
    given_rules: list[tuple[str, int]], amount: int
) -> None:
    rules = [
        Rule(
            action=action,
            tools=("pay",),
            by="operator" if action == "ask" else None,
            where={"amount": n},
            name=f"{number}",
        )  # pyright: ignore[reportArgumentType]
        for number, (action, n) in enumerate(given_rules)
    ]
    holding = [
        (["deny", "ask", "allow"].index(action), number)
        for number, (action, n) in enumerate(given_rules)
        if n == amount
    ]
    decision = decided(rules, {"amount": amount})

    assert decision.rule == (str(min(holding)[1]) if holding else DEFAULT)


@pytest.mark.proves("GC-39", "GC-40")
def test_the_default_allows_reads_and_asks_the_customer_for_every_other() -> None:
    read = decided([], made_tool=made(read_only=True))
    write = decided([])

    assert (read.action, write.action, write.by) == ("allow", "ask", "customer")
    assert "Rule.allow" in write.reason
    assert "read_only=True" in write.reason
    assert Policy(default=Decision(action="deny")).decide(made(), {}, at()).action == "deny"


# What a rule is about


@pytest.mark.parametrize(
    ("selectors", "holds"),
    [
        (("pay",), True),
        (("pa",), False),
        (("p*",), True),
        (("other", "pay"), True),
        (("tag:money",), True),
        (("tag:mon*",), True),
        (("tag:other",), False),
        (("mcp:bank",), True),
        (("mcp:*",), True),
        (("mcp:shop",), False),
        (("*",), True),
    ],
)
def test_a_rule_selects_by_name_glob_source_and_tag(selectors: tuple[str, ...], holds: bool) -> None:
    one = made(tags=["money"], source="mcp:bank")

    assert (decided([Rule.deny(*selectors)], made_tool=one).action == "deny") is holds


@pytest.mark.parametrize(
    ("rule", "where", "holds"),
    [
        (Rule.deny(read_only=False), {}, True),
        (Rule.deny(read_only=True), {}, False),
        (Rule.deny(tenant="acme"), {"tenant_id": "acme"}, True),
        (Rule.deny(tenant="acme"), {"tenant_id": "globex"}, False),
        (Rule.deny(tenant="acme"), {}, False),
        (Rule.deny(agent="a-1"), {"agent_id": "a-1"}, True),
        (Rule.deny(agent="a-1"), {"agent_id": "a-2"}, False),
        (Rule.deny("pay", tenant="acme", agent="a-1"), {"tenant_id": "acme"}, False),
        (Rule.deny("other", tenant="acme"), {"tenant_id": "acme"}, False),
    ],
)
def test_a_rule_may_be_about_a_tenant_an_agent_or_what_changes_nothing(
    rule: Rule, where: dict[str, Any], holds: bool
) -> None:
    assert (decided([rule], **where).action == "deny") is holds


@pytest.mark.parametrize("arguments", [{"amount": "many"}, {"amount": None}, {"amount": True}, {}, {"amount": [7]}])
def test_in_doubt_a_restriction_holds_and_a_permission_does_not(arguments: dict[str, Any]) -> None:
    where = {"amount": {"at_most": 500}}

    assert decided([Rule.deny("pay", where=where)], arguments).action == "deny"
    assert decided([Rule.ask("pay", by="operator", where=where)], arguments).by == "operator"
    assert decided([Rule.allow("pay", where=where)], arguments).source == DEFAULT


def test_a_rule_for_many_tools_says_nothing_about_those_that_have_no_such_argument() -> None:
    @tool
    async def ping(text: str) -> None:
        """Ping."""

    rules = [Rule.deny("*", where={"amount": {"above": 5}}), Rule.allow("*")]

    assert Policy(rules).decide(ping, {"text": "a"}, at()).action == "allow"
    assert decided(rules, {}).action == "deny"


def test_a_decision_says_which_rule_it_was_where_it_stands_and_why() -> None:
    decision = decided([Rule.deny("pay", tenant="acme", reason="not theirs")], tenant_id="acme")

    assert (decision.rule, decision.source, decision.reason) == ("deny('pay', tenant='acme')", "code", "not theirs")
    named = Rule.ask("a", "tag:b", by="operator", where={"x": 1}, read_only=True, agent="z", name="the rule")
    assert str(named) == "the rule"


# What is decided once


def test_a_decision_that_is_always_the_same_is_known_beforehand() -> None:
    def constant(*rules: Rule) -> str | None:
        found = Policy(rules).compile(made()).constant
        return found.action if found else None

    assert constant() == "ask"
    assert constant(Rule.allow("pay")) == "allow"
    assert constant(Rule.deny("pay"), Rule.allow("pay", where={"amount": 1})) == "deny"
    assert constant(Rule.allow("pay"), Rule.deny("pay", where={"amount": 1})) is None
    assert constant(Rule.allow("pay"), Rule.deny("pay", tenant="acme")) is None
    assert constant(Rule.deny("other")) == "ask"


def test_arguments_are_only_made_for_a_rule_that_looks_at_them() -> None:
    def never() -> dict[str, Any]:
        raise AssertionError("nobody needs them")

    compiled = Policy([Rule.allow("pay", where={"amount": 1}, tenant="acme")]).compile(made())

    assert compiled.decide(at(tenant_id="globex"), never).source == DEFAULT


# What is no rule


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Rule(action="forbid", tools=("a",)), "action must be"),  # pyright: ignore[reportArgumentType]
        (lambda: Rule.ask("a", by="boss"), "customer"),  # pyright: ignore[reportArgumentType]
        (lambda: Rule(action="ask", tools=("a",)), "in a rule that asks"),
        (lambda: Rule(action="allow", tools=("a",), by="customer"), "in a rule that asks"),
        (lambda: Rule.allow(), "every tool"),
        (lambda: Rule.deny(), "every tool"),
        (lambda: Rule.deny("a", read_only="yes"), "read_only"),
        (lambda: Rule.deny("a", tenant=5), "tenant"),
        (lambda: Rule.deny("a", agent=["a-1"]), "agent"),
        (lambda: Policy([Rule.deny("")]), "selector"),
        (lambda: Policy([Rule.deny(" pay")]), "spaces"),
        (lambda: Policy([Rule.deny(["a", "b"])]), "selector"),  # pyright: ignore[reportArgumentType]
        (lambda: Policy([Rule.deny("a", where={})]), "where"),
        (lambda: Policy([{"deny": "a"}]), "list of rules"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_would_hold_for_nothing_is_refused_when_it_is_written(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_compiled_policy_knows_every_decision_that_its_tool_can_come_to() -> None:
    def effects(*rules: Rule) -> list[str]:
        return [decision.action for decision in Policy(rules).compile(made()).possible_decisions()]

    above = Rule.deny("pay", where={"amount": {"above": 100}})
    assert effects() == ["ask"]
    assert effects(above) == ["deny", "ask"]
    assert effects(Rule.allow("pay"), above) == ["deny", "allow"]
    assert effects(Rule.deny("pay"), Rule.allow("pay")) == ["deny"]


class ComparedTenant(str):
    """A tenant that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        ComparedTenant.compared += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


@pytest.mark.parametrize("tenants", [5, 500])
def test_a_call_pays_for_the_rules_of_its_own_tenant_only(tenants: int) -> None:
    rules = [Rule.deny("pay", where={"amount": {"above": 10}}, reason="all")]
    rules += [Rule.deny("pay", tenant=ComparedTenant(f"t-{n}"), reason=f"deny {n}") for n in range(0, tenants, 2)]
    rules += [Rule.allow("pay", tenant=ComparedTenant(f"t-{n}"), reason=f"allow {n}") for n in range(tenants)]
    compiled = Policy(rules).compile(made())
    ComparedTenant.compared = 0

    def decide(tenant: str | None, amount: int) -> str:
        context = at(tenant_id=tenant)
        return compiled.decide(context, lambda: {"amount": amount}).reason

    assert [decide("t-4", 5), decide("t-3", 5), decide("t-4", 50)] == ["deny 4", "allow 3", "all"]
    assert decide("stranger", 5) == decide(None, 5) == Policy().compile(made()).decide(at(), dict).reason
    assert ComparedTenant.compared < 20


@pytest.mark.parametrize(
    ("rules", "is_denied"),
    [
        ([Rule.deny("pay")], True),
        ([Rule.deny("pay", where={"amount": {"above": 5}})], False),
        ([Rule.deny("pay", tenant="other")], False),
        ([Rule.deny("pay", tenant="acme"), Rule.allow("pay")], True),
        ([Rule.allow("pay")], False),
    ],
)
def test_a_tool_is_denied_as_a_whole_only_by_a_rule_without_conditions(rules: list[Rule], is_denied: bool) -> None:
    @tool
    def pay(amount: int) -> None:
        """Pay."""

    executor = Executor([pay], policy=Policy(rules))

    assert executor.is_denied("pay", at(tenant_id="acme")) is is_denied


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        (Rule.deny("pay"), True),
        (Rule.deny("look"), False),
        (Rule.deny("*"), True),
        (Rule.deny(tenant="acme"), True),
        (Rule.deny("pay", read_only=False), True),
        (Rule.deny("pay", read_only=True), False),
        (Rule.deny(read_only=True), False),
        (Rule.deny(read_only=False), True),
        (Rule.deny("look", read_only=False), False),
    ],
)
def test_a_rule_selects_a_tool_by_all_that_it_says(rule: Rule, holds: bool) -> None:
    assert rule.selects(made()) is holds


REQUIRES = [
    ([], "ask", "tool"),
    ([Rule.allow("pay")], "ask", "tool"),
    ([Rule.ask("pay", by="customer", source="file")], "ask", "tool"),
    ([Rule.deny("pay")], "deny", "code"),
    ([Rule.allow("pay"), Rule.deny("pay", where={"amount": 5})], "deny", "code"),
    ([Rule.deny("pay", where={"amount": 6}), Rule.allow("pay")], "ask", "tool"),
]


@pytest.mark.parametrize(("rules", "action", "source"), REQUIRES)
def test_a_tool_that_requires_an_approval_is_asked_about_unless_it_is_denied(
    rules: list[Rule], action: str, source: str
) -> None:
    decision = decided(rules, {"amount": 5}, replace(made(), requires_approval="operator"))

    assert (decision.action, decision.source) == (action, source)
    assert action == "deny" or decision.by == "operator"


def test_a_rule_matches_in_its_tenant_for_its_agent_and_nowhere_else() -> None:
    rules = [Rule.allow("pay", tenant="acme", agent="a-1")]

    def decide(**where: Any) -> str:
        return decided(rules, **where).action

    assert decide(tenant_id="acme", agent_id="a-1") == "allow"
    assert decide(tenant_id="acme", agent_id="a-2") == decide(tenant_id="acme") == "ask"
    assert decide(tenant_id="other", agent_id="a-1") == decide(agent_id="a-1") == "ask"


@pytest.mark.parametrize("asks", ["customer", "operator"])
def test_who_is_asked_where_no_rule_says_so(asks: Any) -> None:
    assert Policy(asks=asks).decide(made(), {}, at()).by == asks
    assert Policy([Rule.deny("other")], asks=asks).decide(made(), {}, at()).by == asks


def test_a_default_of_its_own_holds_for_reads_too() -> None:
    policy = Policy(default=Decision(action="deny", reason="closed"))

    assert policy.decide(made(), {}, at()).reason == policy.decide(made(read_only=True), {}, at()).reason == "closed"


def test_a_policy_says_which_tools_it_names() -> None:
    policy = Policy([Rule.allow("pay", "look"), Rule.deny("*")])

    assert [policy.names(name) for name in ("pay", "look", "other", "*")] == [True, True, False, True]


def test_a_default_is_a_decision_also_where_a_file_would_say_a_word() -> None:
    wrong: Any = "deny"
    with pytest.raises(
        ConfigError, match=r"default must be a Decision, such as Decision\(action='deny'\), got 'deny'\."
    ):
        Policy(default=wrong)


def test_somebody_else_than_the_customer_or_an_operator_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="asks must be 'customer' or 'operator', got 'boss'"):
        Policy(asks="boss")  # pyright: ignore[reportArgumentType]


def test_one_rule_in_the_place_of_a_list_is_refused() -> None:
    rule: Any = Rule.allow("pay")
    with pytest.raises(ConfigError, match=r"A policy must be a list of rules, such as .*, got Rule"):
        Policy(rule)
