"""The condition `from`: which values hold, what is in doubt, and what a policy says about its sources."""

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from handrail import ConfigError, Control, Executor, Policy, Provenance, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.authorize import from_condition
from handrail.authorize.conditions import Condition
from handrail.authorize.from_condition import find_missing_field
from handrail.core.provenance_records import SourceTool
from tests.execute.helpers import at

SEARCH = SourceTool("search_contacts", "local")


@tool
async def send_money(recipient: str, amount: float = 0, note: str = "", cc: list[str] | None = None) -> str:
    """Send money."""
    return "sent"


@tool(read_only=True)
async def search_contacts(query: str) -> list[dict[str, str]]:
    """Search the contacts."""
    return [{"name": "Alice", "iban": "CH93 0076"}]


def decide(where: dict[str, Any], arguments: dict[str, Any], provenance: Provenance | None, **options: Any) -> str:
    """What holds: `yes`, `no`, or `doubt`."""
    used = options.pop("tool", send_money)
    context = ToolContext(session_id="s", provenance=provenance, **options)
    allowed = Policy([Rule.allow("*", where=where)]).decide(used, arguments, context).action == "allow"
    denied = Policy([Rule.deny("*", where=where)]).decide(used, arguments, context).action == "deny"
    return "yes" if allowed else "doubt" if denied else "no"


def add_result(provenance: Provenance, output: Any, *, name: str = "search_contacts", **arguments: Any) -> None:
    number = len(list(provenance._results))  # pyright: ignore[reportPrivateUsage]
    call = ToolCall(id=f"call_{number}", name=name, arguments_json=json.dumps(arguments))
    provenance.add_result(call, ToolResult(output=output), SourceTool(name, "local"))


def test_what_the_customer_wrote_is_from_them_and_nothing_else_is() -> None:
    provenance = Provenance()
    provenance.add_customer("Please pay CH93-0076 for me.")
    where = {"recipient": {"from": ["customer"]}}

    assert decide(where, {"recipient": "CH93-0076"}, provenance) == "yes"
    assert decide(where, {"recipient": "DE00-EVIL"}, provenance) == "no"
    assert decide(where, {"recipient": "DE00-EVIL"}, None) == "doubt"


def test_data_is_a_source_by_whole_leaves_of_the_field() -> None:
    provenance = Provenance()
    add_result(provenance, [{"name": "Alice", "iban": "CH93", "note": "my iban is DE00"}, {"iban": 12}])

    by_field = {"recipient": {"from": ["tool:search_contacts.iban"]}}
    by_tool = {"recipient": {"from": ["tool:search_contacts"]}}
    assert decide(by_field, {"recipient": "CH93"}, provenance) == "yes"
    assert decide(by_field, {"recipient": "Alice"}, provenance) == "no"
    assert decide(by_tool, {"recipient": "Alice"}, provenance) == "yes"
    assert decide(by_tool, {"recipient": "DE00"}, provenance) == "no"  # It stands in the text of a field.
    assert decide({"amount": {"from": ["tool:search_contacts.iban"]}}, {"amount": 12.0}, provenance) == "yes"
    assert decide(by_field, {"recipient": "12"}, provenance) == "no"  # The number is not the text.


def test_a_short_string_counts_as_a_whole_field_only() -> None:
    provenance = Provenance()
    provenance.add_customer("in 12 a")
    add_result(provenance, {"code": "in"}, name="codes")
    add_result(provenance, "in", name="texts")

    assert decide({"recipient": {"from": ["customer", "tool:texts"]}}, {"recipient": "in"}, provenance) == "no"
    assert decide({"recipient": {"from": ["tool:codes.code"]}}, {"recipient": "in"}, provenance) == "yes"


def test_a_result_does_not_vouch_for_the_arguments_of_its_own_call() -> None:
    provenance = Provenance()
    add_result(provenance, "Restaurants in Evil Bistro: none", name="search", city="Evil Bistro")
    add_result(provenance, "attacker@evil.com is not known", name="search", user="attacker", host="evil.com")
    add_result(provenance, {"query": "EVIL-1", "found": "GOOD-1"}, name="search", query="evil-1")
    add_result(provenance, "7 of 12", name="search", page=7)
    where = {"recipient": {"from": ["tool:search"]}}

    assert decide(where, {"recipient": "Evil Bistro"}, provenance) == "no"
    assert decide(where, {"recipient": "attacker@evil.com"}, provenance) == "no"
    assert decide(where, {"recipient": "EVIL-1"}, provenance) == "no"
    assert decide(where, {"recipient": "GOOD-1"}, provenance) == "yes"
    assert decide({"amount": {"from": ["tool:search"]}}, {"amount": 7}, provenance) == "no"
    assert decide({"amount": {"from": ["tool:search"]}}, {"amount": 12}, provenance) == "yes"


def test_a_value_that_another_result_has_too_counts() -> None:
    provenance = Provenance()
    add_result(provenance, "nothing about Alice", query="Alice")
    add_result(provenance, "Alice lives here", query="everybody")

    assert decide({"recipient": {"from": ["tool:search_contacts"]}}, {"recipient": "Alice"}, provenance) == "yes"


def test_a_list_holds_if_every_element_does() -> None:
    provenance = Provenance()
    provenance.add_customer("to bob@corp.com and amy@corp.com")
    where = {"cc": {"from": ["customer"]}}

    assert decide(where, {"recipient": "x", "cc": ["bob@corp.com", "amy@corp.com"]}, provenance) == "yes"
    assert decide(where, {"recipient": "x", "cc": ["bob@corp.com", "eve@evil.com"]}, provenance) == "no"
    assert decide(where, {"recipient": "x", "cc": ["bob@corp.com,eve@evil.com"]}, provenance) == "no"


@pytest.mark.parametrize("arguments", [{}, {"note": ""}, {"note": None}])
def test_what_is_absent_null_empty_or_the_default_has_no_origin_and_holds(arguments: dict[str, Any]) -> None:
    assert decide({"note": {"from": ["customer"]}}, {"recipient": "x"} | arguments, Provenance()) == "yes"


def test_the_default_of_the_schema_holds_and_another_value_does_not() -> None:
    class Options(BaseModel):
        priority: str = "normal"

    @tool
    async def order(item: str, options: Options, count: int = 1) -> str:
        """Order."""
        return item

    provenance = Provenance()
    where = {"count": {"from": ["customer"]}, "options": {"from": ["customer"]}}
    arguments: dict[str, Any] = {"item": "x", "options": {"priority": "normal"}, "count": 1}

    assert decide(where, arguments, provenance, tool=order) == "yes"
    assert decide(where, arguments | {"count": 2}, provenance, tool=order) == "no"
    assert decide(where, arguments | {"options": {"priority": "urgent"}}, provenance, tool=order) == "no"


def test_keys_of_an_object_without_declared_properties_count_as_values() -> None:
    @tool
    async def share(access: dict[str, str]) -> str:
        """Share."""
        return ""

    provenance = Provenance()
    provenance.add_customer("give bob@corp.com the role editor")
    where = {"access": {"from": ["customer"]}}

    assert decide(where, {"access": {"bob@corp.com": "editor"}}, provenance, tool=share) == "yes"
    assert decide(where, {"access": {"eve@evil.com": "editor"}}, provenance, tool=share) == "no"
    assert decide(where, {"access": {"": "editor"}}, provenance, tool=share) == "no"


def test_a_value_of_another_kind_than_the_path_expects_is_in_doubt() -> None:
    @tool
    async def pay(to: dict[str, str] | str) -> str:
        """Pay."""
        return ""

    where = {"to.iban": {"from": ["customer"]}}
    provenance = Provenance()
    provenance.add_customer("CH93-0076")
    assert decide(where, {"to": "DE00-EVIL"}, provenance, tool=pay) == "doubt"
    assert decide(where, {"to": "CH93-0076"}, provenance, tool=pay) == "doubt"  # It is not an IBAN of something.
    assert decide(where, {"to": {}}, provenance, tool=pay) == "yes"


@pytest.mark.parametrize(("arguments", "expected"), [({}, "no"), ({"bcc": None}, "yes"), ({"bcc": "x"}, "no")])
def test_an_argument_that_the_tool_does_not_have_is_not_what_a_rule_is_about(
    arguments: dict[str, Any], expected: str
) -> None:
    assert decide({"bcc": {"from": ["customer"]}}, {"recipient": "r"} | arguments, Provenance()) == expected


def test_a_condition_alone_knows_neither_defaults_nor_the_conversation() -> None:
    provenance = Provenance()
    provenance.add_customer("CH93-0076")
    condition, context = Condition({"to": {"from": ["customer"]}}), at(provenance=provenance)

    assert condition.matches({"to": "CH93-0076"}, action="allow", context=context)
    assert condition.matches({}, action="allow", context=context)
    assert not condition.matches({"to": "DE00-EVIL"}, action="deny", context=context)
    assert condition.matches({"to": "CH93-0076"}, action="deny")
    assert not condition.matches({"to": "CH93-0076"}, action="allow")


def test_what_a_tool_returned_for_one_response_counts_in_its_turn_only() -> None:
    provenance = Provenance()
    result = ToolResult(output={"code": "7788-AB"}, control=Control(lifespan="response"))
    provenance.add_result(ToolCall(id="c-1", name="search_contacts"), result, SEARCH, turn=2)
    where = {"recipient": {"from": ["tool:search_contacts"]}}

    assert [decide(where, {"recipient": "7788-AB"}, provenance, turn=turn) for turn in (1, 2, 3)] == ["no", "yes", "no"]


@pytest.mark.parametrize("value", ["pay@corp.com\u200b", " pay@corp.com", "ｐay@corp.com", "pay@corp.com\u202e"])
def test_a_character_that_nobody_sees_gives_no_permission_and_escapes_no_restriction(value: str) -> None:
    provenance = Provenance()
    provenance.add_customer("pay@corp.com")

    where = {"recipient": {"from": ["customer"]}}
    assert decide(where, {"recipient": value}, provenance) == "doubt"
    assert decide(where, {"recipient": f"evil-{value}"}, provenance) == "no"


@pytest.mark.parametrize(
    "value",
    [
        *("x" * 1_000_000, "word " * 200_000, ["x"] * 10_000, {"a": float("nan")}, "\ud800", "\x00\x00\x00abc"),
        *(float("nan"), float("inf"), 10**400, True, [[[]]], {"a": {"b": "c"}}),
    ],
)
def test_hostile_values_have_no_source(value: Any) -> None:
    provenance = Provenance()
    provenance.add_customer("word x a b c abc")

    answer = decide({"cc": {"from": ["customer"]}}, {"recipient": "r", "cc": value}, provenance)

    assert answer in ("no", "doubt") or value == [[[]]]


def test_a_value_of_five_thousand_levels_has_no_source() -> None:
    deep: Any = "abc"
    for _ in range(5_000):
        deep = [deep]
    provenance = Provenance()
    provenance.add_customer("abc")

    assert decide({"cc": {"from": ["customer"]}}, {"recipient": "r", "cc": deep}, provenance) == "no"


def test_sixty_levels_and_as_many_values_as_are_looked_at_can_hold_and_one_more_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nest(value: Any, levels: int) -> Any:
        return [nest(value, levels - 1)] if levels else value

    provenance = Provenance()
    provenance.add_customer("abc")

    def answer(value: Any) -> str:
        return decide({"cc": {"from": ["customer"]}}, {"recipient": "r", "cc": value}, provenance)

    assert [answer(nest("abc", levels)) for levels in (60, 61)] == ["yes", "no"]
    monkeypatch.setattr(from_condition, "_MAX_LEAVES", 10)
    assert [answer(["abc"] * count) for count in (9, 10)] == ["yes", "no"]  # The list is one of them.


def test_ten_thousand_elements_that_the_customer_wrote_hold() -> None:
    provenance = Provenance()
    provenance.add_customer(" ".join(f"user{number}" for number in range(10_000)))
    every = [f"user{number}" for number in range(10_000)]

    assert decide({"cc": {"from": ["customer"]}}, {"recipient": "r", "cc": every}, provenance) == "yes"


def test_another_conversation_is_no_source() -> None:
    provenance = Provenance()
    provenance.bind("another")
    provenance.add_customer("CH93-0076")

    assert decide({"recipient": {"from": ["customer"]}}, {"recipient": "CH93-0076"}, provenance) == "doubt"
    with pytest.raises(ConfigError, match="a new Provenance\\(\\) for each conversation"):
        provenance.bind("s")


def test_the_application_says_values_of_its_own() -> None:
    provenance = Provenance()
    provenance.add_application(account="CH93", limits=[100, 200], profile={"mail": "amy@corp.com"})
    where = {"recipient": {"from": ["application"]}}

    assert decide(where, {"recipient": "CH93"}, provenance) == "yes"
    assert decide(where, {"recipient": "amy@corp.com"}, provenance) == "yes"
    assert decide({"amount": {"from": ["application"]}}, {"amount": 200}, provenance) == "yes"
    assert decide(where, {"recipient": "account"}, provenance) == "no"  # The name is not a value.
    with pytest.raises(ConfigError, match="must be JSON values"):
        provenance.add_application(account=object())


def test_a_deny_rule_asks_for_the_customers_own_words() -> None:
    provenance = Provenance()
    provenance.add_customer("My new password is hunter22")
    rule = Rule.deny("update", where={"not": {"password": {"from": ["customer"]}}}, reason="the customer must type it")

    @tool
    async def update(password: str) -> str:
        """Update."""
        return ""

    context = ToolContext(session_id="s", provenance=provenance)
    policy = Policy([rule, Rule.allow("update")])
    assert policy.decide(update, {"password": "hunter22"}, context).action == "allow"
    assert policy.decide(update, {"password": "evil"}, context).reason == "the customer must type it"


# Selecting tools and fields.


@pytest.mark.parametrize(
    ("source", "is_source"),
    [
        *(("tool:search_contacts.iban", True), ("tool:search_*.iban", True), ("tool:mcp:crm.iban", True)),
        *(("tool:tag:people.iban", True), ("tool:search_contacts", True), ("tool:mcp:*", True)),
        *(("tool:mcp:other.iban", False), ("tool:search_contacts.name", False), ("tool:iban", False)),
    ],
)
def test_tools_are_selected_by_name_glob_source_and_tag(source: str, is_source: bool) -> None:
    provenance = Provenance()
    tool = SourceTool("search_contacts", "mcp:crm", frozenset({"people"}))
    provenance.add_result(ToolCall(id="1", name="search_contacts"), ToolResult(output={"iban": "CH93"}), tool)

    answer = decide({"recipient": {"from": [source]}}, {"recipient": "CH93"}, provenance)
    assert answer == ("yes" if is_source else "no")


def test_a_field_is_a_path_and_each_element_of_a_list_has_it() -> None:
    provenance = Provenance()
    add_result(provenance, {"pages": [{"people": [{"iban": "CH93"}]}], "notes": {"iban": "DE00-EVIL"}})
    where = {"recipient": {"from": ["tool:search_contacts.pages.people.iban"]}}

    assert decide(where, {"recipient": "CH93"}, provenance) == "yes"
    assert decide(where, {"recipient": "DE00-EVIL"}, provenance) == "no"
    by_name = {"recipient": {"from": ["tool:search_contacts.iban"]}}
    assert decide(by_name, {"recipient": "DE00-EVIL"}, provenance) == "no"


def test_a_tool_whose_name_has_a_dot_is_named_whole() -> None:
    provenance = Provenance()
    add_result(provenance, {"iban": "CH93"}, name="crm.search")

    assert decide({"recipient": {"from": ["tool:crm.search"]}}, {"recipient": "CH93"}, provenance) == "yes"
    assert decide({"recipient": {"from": ["tool:crm.search.iban"]}}, {"recipient": "CH93"}, provenance) == "yes"
    assert decide({"recipient": {"from": ["tool:crm"]}}, {"recipient": "CH93"}, provenance) == "no"


# What is wrong with a rule.


@pytest.mark.parametrize("sources", [[], {}, 5, ["customers"], ["tool:"], ["tool: x"], [None], "tool", ["tool:.x"]])
def test_a_source_that_there_is_not_is_an_error(sources: Any) -> None:
    with pytest.raises(ConfigError, match="from"):
        Policy([Rule.allow("pay", where={"to": {"from": sources}})])


@pytest.mark.parametrize(
    ("source", "says"),
    [("custmer", "unknown source 'custmer' in from; did you mean 'customer'?"), (5, "unknown source 5 in from. It")],
)
def test_an_error_names_the_source_that_may_have_been_meant(source: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy([Rule.allow("pay", where={"to": {"from": [source]}})])

    assert says in caught.value.message


@pytest.mark.parametrize(
    ("schema", "missing"),
    [
        (None, None),
        ({}, None),
        ({"type": "object"}, None),
        ({"type": ["object", "null"]}, None),
        ({"type": "string"}, ("iban", ())),
        ({"type": "object", "properties": {"name": {}}}, ("iban", ("name",))),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Any", "maxProperties": 3}]}, None),
        ({"anyOf": [{"type": "null"}]}, None),
    ],
)
def test_a_field_is_missing_only_where_an_output_cannot_have_it(schema: Any, missing: Any) -> None:
    assert find_missing_field(schema, ("iban",)) == missing


def find_problems(where: dict[str, Any], *tools: Any) -> list[str]:
    policy = Policy([Rule.allow("send_money", where=where)])
    return [problem.text for problem in policy.find_problems([send_money, *tools])]


def test_a_tool_or_a_field_that_there_is_not_is_reported() -> None:
    class Contact(BaseModel):
        iban: str
        name: str

    @tool(read_only=True)
    async def search_contacts() -> list[Contact]:
        """Search."""
        return []

    @tool(read_only=True)
    async def read_file() -> str:
        """Read."""
        return ""

    def problems(source: str) -> list[str]:
        return find_problems({"recipient": {"from": ["customer", source]}}, search_contacts, read_file)

    assert problems("tool:serch_contacts") == [
        "unknown tool 'serch_contacts' in the source 'tool:serch_contacts'; did you mean 'search_contacts'?"
    ]
    assert problems("tool:serch_contacts.iban") == [
        "unknown tool 'serch_contacts' in the source 'tool:serch_contacts.iban'; did you mean 'search_contacts'?"
    ]
    assert problems("tool:search_contacts.ibam") == [
        "the output of 'search_contacts' has no field 'ibam', which the source 'tool:search_contacts.ibam' names; "
        "did you mean 'iban'?"
    ]
    assert problems("tool:search_contacts.iban.country") == [
        "the output of 'search_contacts' has no field 'country', "
        "which the source 'tool:search_contacts.iban.country' names."
    ]
    assert problems("tool:search_contacts.iban") == problems("tool:read_file") == []


def test_a_boolean_and_an_enum_have_no_origin() -> None:
    @tool
    async def pay(to: str, express: bool, currency: Literal["CHF", "EUR"]) -> str:
        """Pay."""
        return ""

    def problems(name: str) -> str:
        policy = Policy([Rule.allow("pay", where={name: {"from": ["customer"]}})])
        return " ".join(problem.text for problem in policy.find_problems([pay]))

    assert "write `equals`" in problems("express")
    assert "write `equals` or `one_of`" in problems("currency")
    assert problems("to") == ""
    assert "unknown argument 'too'; did you mean 'to'?" in problems("too")


def test_an_executor_refuses_a_source_that_there_is_not() -> None:
    rule = Rule.allow("send_money", where={"recipient": {"from": ["tool:serch_contacts.iban"]}})
    with pytest.raises(ConfigError, match="did you mean 'search_contacts'"):
        Executor([send_money, search_contacts], policy=Policy([rule]))


# What is forgotten.


def test_the_oldest_results_are_forgotten_and_a_rule_about_them_is_in_doubt() -> None:
    provenance = Provenance(max_chars=20_000)
    add_result(provenance, {"iban": "CH-FIRST"})
    where = {"recipient": {"from": ["tool:search_contacts.iban"]}}
    assert decide(where, {"recipient": "CH-FIRST"}, provenance) == "yes"
    assert decide(where, {"recipient": "DE00-EVIL"}, provenance) == "no"

    for number in range(2_000):
        add_result(provenance, "x" * 1_000, name=f"other_{number % 3}")

    assert decide(where, {"recipient": "CH-FIRST"}, provenance) == "doubt"
    kept = list(provenance._results)  # pyright: ignore[reportPrivateUsage]
    assert sum(len(record.text) for record in kept) <= 20_000


def test_a_result_of_one_megabyte_two_thousand_times_stays_within_the_limit() -> None:
    provenance = Provenance()
    text = "word " * 200_000
    for _ in range(2_000):
        add_result(provenance, text, name="read_page")

    kept = list(provenance._results)  # pyright: ignore[reportPrivateUsage]
    assert sum(len(record.text) for record in kept) <= 4_000_000


def test_what_the_customer_wrote_is_forgotten_apart_from_the_results() -> None:
    provenance = Provenance(max_chars=10_000)
    provenance.add_customer("CH93-0076")
    for _ in range(100):
        add_result(provenance, "x" * 1_000, name="other")
    where = {"recipient": {"from": ["customer"]}}
    assert decide(where, {"recipient": "CH93-0076"}, provenance) == "yes"

    for _ in range(100):
        provenance.add_customer("y" * 1_000)
    assert decide(where, {"recipient": "CH93-0076"}, provenance) == "doubt"


@pytest.mark.parametrize("options", [{"decimal": ";"}, {"decimal": 1}, {"max_chars": 0}, {"max_chars": "5"}])
def test_options_that_make_no_sense_are_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Provenance(**options)


# The other operators for written policies.


@pytest.mark.parametrize(
    ("count", "length", "expected"),
    [
        *(({"at_most": 5}, 5, "yes"), ({"at_most": 5}, 6, "no"), (2, 2, "yes"), (2, 3, "no"), (0, 0, "yes")),
        *(({"at_least": 1, "below": 3}, 2, "yes"), ({"at_least": 1, "below": 3}, 3, "no"), ({"above": 0}, 0, "no")),
    ],
)
def test_elements_are_counted(count: Any, length: int, expected: str) -> None:
    assert decide({"cc": {"count": count}}, {"recipient": "r", "cc": ["x"] * length}, None) == expected


def test_what_cannot_be_counted_is_in_doubt_and_a_wrong_count_is_an_error() -> None:
    assert decide({"cc": {"count": {"at_most": 5}}}, {"recipient": "r", "cc": "text"}, None) == "doubt"
    assert decide({"cc": {"count": {"at_most": 5}}}, {"recipient": "r"}, None) == "doubt"
    for wrong in ("5", True, {}, {"matches": "x"}, {"at_most": "5"}, {"at_most": True}, None):
        with pytest.raises(ConfigError, match="count"):
            Policy([Rule.allow("pay", where={"cc": {"count": wrong}})])
    assert find_problems({"recipient": {"count": 2}}) == [
        "the argument 'recipient' is a string, of which nothing can be counted."
    ]


def test_every_element_of_a_list_is_tested() -> None:
    @tool
    async def book(flights: list[dict[str, str]]) -> str:
        """Book."""
        return ""

    def answer(*dates: str | None) -> str:
        flights = [{} if date is None else {"date": date} for date in dates]
        return decide({"flights[].date": {"at_least": "2024-05-16"}}, {"flights": flights}, None, tool=book)

    assert answer("2024-05-16", "2024-05-20") == "yes"
    assert answer("2024-05-16", "2024-05-01") == "no"
    assert answer("2024-05-16", None) == "doubt"
    assert answer() == "doubt"
    provenance = Provenance()
    provenance.add_customer("on 2024-05-16")
    where = {"flights[].date": {"from": ["customer"]}}
    flights = [{"date": "2024-05-16"}]
    assert decide(where, {"flights": flights}, provenance, tool=book) == "yes"
    assert decide(where, {"flights": [*flights, {"date": "2024-06-01"}]}, provenance, tool=book) == "no"
    assert decide(where, {"flights": []}, provenance, tool=book) == "yes"


def test_an_argument_equals_an_id_of_the_context() -> None:
    where = {"recipient": {"equals": {"context": "customer_id"}}}

    assert decide(where, {"recipient": "c-1"}, None, customer_id="c-1") == "yes"
    assert decide(where, {"recipient": "c-2"}, None, customer_id="c-1") == "no"
    assert decide(where, {"recipient": "c-1"}, None) == "doubt"
    other = {"recipient": {"not_equals": {"context": "customer_id"}}}
    assert decide(other, {"recipient": "c-2"}, None, customer_id="c-1") == "yes"
    for wrong in ({"context": "deps"}, {"context": "secrets"}, {"context": "customer_id", "x": 1}, {"context": None}):
        with pytest.raises(ConfigError, match="customer_id"):
            Policy([Rule.allow("pay", where={"to": {"equals": wrong}})])
