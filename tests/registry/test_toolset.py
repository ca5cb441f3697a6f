"""Tools that are changed on their way in: what is authorised is what runs, under the new name."""

from collections.abc import Callable
from typing import Any

import pytest

from handrail import ConfigError, Executor, Policy, Rule, ToolCall, ToolContext, ToolResult, build_tool, tool
from handrail.core import CallFinished, Event
from handrail.registry import Toolset

RAN: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@tool(key="account")
async def pay(account: str, amount: int, currency: str = "EUR") -> str:
    """Pay somebody."""
    RAN.append({"account": account, "amount": amount, "currency": currency})
    return "paid"


def transfer(payload: dict[str, Any]) -> str:
    RAN.append(payload)
    return "transferred"


TRANSFER = build_tool(
    {
        "name": "transfer",
        "description": "Move money.",
        "input_schema": {
            "type": "object",
            "properties": {"to": {"type": "string"}, "from": {"type": "string"}, "amount": {"type": "integer"}},
            "required": ["to", "from", "amount"],
            "additionalProperties": False,
        },
        "execute": transfer,
    }
)


@tool(read_only=True, tags=["money"])
async def balance(account: str) -> str:
    """Look up a balance."""
    RAN.append({"account": account})
    return "12"


BANK = [pay, TRANSFER, balance]


async def run(tools: Toolset, name: str, arguments: str, *rules: Rule, listeners: Any = ()) -> ToolResult:
    executor = Executor(tools, policy=Policy([*rules, Rule.allow("*")]), listeners=listeners)
    call = ToolCall(id="c-1", name=name, arguments_json=arguments)
    return await executor.run(call, ToolContext(session_id="s-1", turn=1))


def code(result: ToolResult) -> str | None:
    return None if result.error is None else result.error.code


def test_names_selection_tags_and_descriptions() -> None:
    tools = Toolset(BANK).without("transfer").rename({"pay": "send"}).prefix("bank_").tag("safe", on="tag:money")
    tools = tools.describe({"bank_send": "Send money."})

    assert [(item.name, item.description, sorted(item.tags)) for item in tools] == [
        ("bank_send", "Send money.", []),
        ("bank_balance", "Look up a balance.", ["money", "safe"]),
    ]
    assert [item.name for item in Toolset(BANK).only("tag:money", "trans*")] == ["transfer", "balance"]
    assert [item.name for item in BANK] == ["pay", "transfer", "balance"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tools: tools.without("tranfer"), "'tranfer' selects none of these tools: pay, transfer, balance"),
        (lambda tools: tools.rename({"pey": "p"}), "'pey' selects none"),
        (lambda tools: tools.require_approval("tag:mony", by="operator"), "'tag:mony' selects none"),
        (lambda tools: tools.hide("pay", acount="x"), "`pay` has no argument 'acount'; its arguments are: account"),
        (lambda tools: tools.rename({"pay": "a:b"}), "cannot contain a colon"),
        (lambda tools: tools.prefix("\n"), "printable characters"),
    ],
)
def test_a_change_that_cannot_apply_is_an_error(change: Callable[[Toolset], Toolset], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _ = change(Toolset(BANK)).tools


def test_two_tools_that_end_up_with_one_name_are_refused_by_the_executor() -> None:
    with pytest.raises(ConfigError, match="already a tool named `pay`"):
        Executor(Toolset(BANK).rename({"transfer": "pay"}))


async def test_a_hidden_argument_is_not_the_models_and_policy_sees_its_value() -> None:
    tools = Toolset(BANK).hide("pay", currency="USD", account="a-1").hide("transfer", **{"from": "a-1"}).prefix("my_")
    seen: list[Event] = []

    assert list(tools.tools[0].input_schema["properties"]) == ["amount"]
    assert tools.tools[1].input_schema["required"] == ["to", "amount"]
    done = await run(tools, "my_pay", '{"amount": 5}', listeners=[seen.append])
    smuggled = await run(tools, "my_pay", '{"amount": 5, "account": "evil"}')
    twice = await run(tools, "my_transfer", '{"to": "b", "amount": 5, "to": "c"}')
    denied = await run(tools, "my_pay", '{"amount": 5}', Rule.deny("my_pay", where={"currency": "USD"}))
    moved = await run(tools, "my_transfer", '  { "to" : "b", "amount": 5 } ')

    assert [code(item) for item in (done, smuggled, twice, denied, moved)] == [
        None,
        "invalid_arguments",
        "tool_args_parse_error",
        "permission_denied",
        None,
    ]
    assert RAN == [
        {"account": "a-1", "amount": 5, "currency": "USD"},
        {"to": "b", "amount": 5, "from": "a-1"},
    ]
    (finished,) = [item for item in seen if isinstance(item, CallFinished)]
    assert (finished.call.name, finished.result.tool_name) == ("my_pay", "my_pay")


@pytest.mark.parametrize("text", ["", "{}", "{ }", "[1]", "{", '{"amount": 1', '{"amount": 1}}', "null", '"x"', "{}{}"])
async def test_text_that_is_no_object_stays_none(text: str) -> None:
    result = await run(Toolset(BANK).hide("pay", account="a-1"), "pay", text)

    assert code(result) in ("invalid_arguments", "tool_args_parse_error")
    assert RAN == []


async def test_a_default_of_ones_own_is_filled_in_before_anything_is_decided() -> None:
    tools = Toolset(BANK).default("transfer", amount=7, **{"from": "a-1"}).default("pay", currency="USD")

    assert tools.tools[1].input_schema["required"] == ["to"]
    assert tools.tools[0].input_schema["properties"]["currency"]["default"] == "USD"
    rule = Rule.deny("transfer", where={"amount": {"above": 5}})
    denied = await run(tools, "transfer", '{"to": "b"}', rule)
    done = await run(tools, "transfer", '{"to": "b", "amount": 1}', rule)
    paid = await run(tools, "pay", '{"account": "x", "amount": 1}')

    assert [code(item) for item in (denied, done, paid)] == ["permission_denied", None, None]
    assert RAN == [
        {"to": "b", "amount": 1, "from": "a-1"},
        {"account": "x", "amount": 1, "currency": "USD"},
    ]


async def test_a_required_approval_holds_against_a_policy_that_allows_everything() -> None:
    tools = Toolset(BANK).require_approval("balance", by="operator")
    executor = Executor(tools, policy=Policy([Rule.allow("*"), Rule.deny("pay")]))
    context = ToolContext(session_id="s-1", turn=1)
    call = ToolCall(id="c-1", name="balance", arguments_json='{"account": "x"}')

    asked = await executor.run(call, context)
    (pending,) = await executor.approvals.pending()
    await executor.approvals.approve(pending.token, by="operator", who="ann")
    done = await executor.run(call, context)

    assert (code(asked), pending.by, done.output) == ("approval_required", "operator", "12")
    assert executor.explain(call, context).decision.rule == "requires_approval"
    denied = await executor.run(ToolCall(id="c-2", name="pay", arguments_json='{"account": "x", "amount": 1}'), context)
    assert code(denied) == "permission_denied"


async def test_the_key_of_a_call_holds_through_a_hidden_argument() -> None:
    executor = Executor(Toolset(BANK).hide("pay", account="a-1"), policy=Policy([Rule.allow("*")]))
    context = ToolContext(session_id="s-1", turn=1)

    first = await executor.run(ToolCall(id="c-1", name="pay", arguments_json='{"amount": 1}'), context)
    await executor.run(ToolCall(id="c-2", name="pay", arguments_json='{"amount": 2}'), context)

    assert first.ok
    assert [item["amount"] for item in RAN] == [1]


def test_tools_that_change_are_followed_and_stay_the_same_tools() -> None:
    class Live:
        def __init__(self) -> None:
            self.tools = [pay]
            self.listeners: list[Callable[[], None]] = []

        def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
            self.listeners.append(listener)
            return lambda: self.listeners.remove(listener)

    live, heard = Live(), list[str]()
    strict = Toolset(live).hide("pay", account="a-1")
    assert [item.name for item in strict] == ["pay"]
    tools = Toolset(live).prefix("a_").tag("x")
    before = tools.tools
    executor = Executor([tools, TRANSFER])
    unsubscribe = tools.subscribe(lambda: heard.append("changed"))
    live.tools.append(balance)
    for listener in [*live.listeners]:
        listener()
    unsubscribe()

    assert executor.registry.names == ("a_pay", "a_balance", "transfer")
    assert [item.name for item in tools] == ["a_pay", "a_balance"]
    assert tools.tools[0] is before[0]
    assert (heard, len(live.listeners)) == (["changed"], 1)
    live.tools[0] = tool(name="pay")(lambda: "no account any more")
    assert [item.name for item in strict] == ["balance"]
