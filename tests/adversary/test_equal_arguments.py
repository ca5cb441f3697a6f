"""The property of rule 1: whoever changes the arguments of a call, everybody who looks at it sees the same ones."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolFlags, ToolResult, tool
from handrail.core import CallFinished, CallStarted
from handrail.registry import Toolset
from tests.execute.helpers import Heard, at

FORBIDDEN = 13
SCHEMA = {
    "type": "object",
    "properties": {"invoice": {"type": "string"}, "amount": {"type": "integer"}},
    "required": ["invoice", "amount"],
    "additionalProperties": False,
}
POLICY = Policy(
    [
        Rule.deny("*pay", where={"amount": FORBIDDEN}),
        *(Rule.ask("*pay", by="operator", where={"amount": n}, name=f"saw {n}") for n in range(20)),
    ]
)
PATHS = ("tool", "toolset", "hidden argument", "guard", "guard with a schema", "fallback", "fallback, sync")


class Witness:
    """Everybody who looks at a call, and what each of them saw last: a host, a hook, a check, a key and a lock."""

    def __init__(self, changed_to: Any) -> None:
        self.changed_to = changed_to
        self.seen: dict[str, Any] = {}
        self.ran: list[Any] = []
        self.heard = Heard()
        self.flags: dict[str, Any] = {
            "key": lambda arguments: self.see("key", arguments),
            "lock_key": lambda arguments: self.see("lock", arguments),
            "permission_check": lambda arguments, context: self.see("check", arguments) and None,
        }

    def see(self, who: str, arguments: Any) -> Any:
        self.seen[who] = {name: arguments[name] for name in ("invoice", "amount")}
        return [arguments["invoice"], arguments["amount"]]

    def run(self, arguments: Any) -> str:
        self.ran.append({name: arguments[name] for name in ("invoice", "amount")})
        return "paid"

    # The hook.

    def before(self, call: ToolCall, tool: Any, context: Any) -> ToolCall | None:
        if self.changed_to is None:
            return None
        return structs.replace(call, arguments_json=json.dumps(self.changed_to))

    def authorised(self, call: ToolCall, tool: Any, decision: Any, context: Any) -> None:
        self.see("hook", json.loads(call.arguments_json))

    # The ways in.

    def build(self, path: str) -> tuple[Executor, str]:
        options: dict[str, Any] = {"policy": POLICY, "hooks": [self], "listeners": [self.heard]}
        if path in ("tool", "toolset", "hidden argument"):

            @tool(name="pay", **self.flags)
            async def pay(invoice: str, amount: int, currency: str = "EUR") -> str:
                """Pay."""
                return self.run({"invoice": invoice, "amount": amount})

            if path == "toolset":
                return Executor([Toolset([pay]).prefix("bank_").describe({"bank_pay": "Pay."})], **options), "bank_pay"
            if path == "hidden argument":
                return Executor([Toolset([pay]).hide("pay", currency="CHF")], **options), "pay"
            return Executor([pay], **options), "pay"
        declared = {"pay": ToolFlags(**self.flags)}
        if path.startswith("guard"):
            return Executor(declared=declared, **options), "pay"

        def fallback(call: ToolCall, context: ToolContext[Any]) -> str:
            return self.run(json.loads(call.arguments_json))

        async def fallback_async(call: ToolCall, context: ToolContext[Any]) -> str:
            return fallback(call, context)

        return Executor(
            fallback=fallback if path.endswith("sync") else fallback_async, declared=declared, **options
        ), "pay"

    async def send(self, executor: Executor, path: str, call: ToolCall, turn: int) -> ToolResult:
        if not path.startswith("guard"):
            return await executor.run(call, at(turn=turn))
        schema = SCHEMA if path.endswith("schema") else None
        return await executor.guard(call, at(turn=turn), self.run, schema=schema)


arguments = st.fixed_dictionaries({"invoice": st.sampled_from(["R-1", "R-2"]), "amount": st.integers(10, 16)})


@pytest.mark.parametrize("path", PATHS)
@given(sent=arguments, hooked=st.none() | arguments, approved=st.none() | arguments)
async def test_everybody_sees_the_arguments_that_run(path: str, sent: Any, hooked: Any, approved: Any) -> None:
    witness = Witness(hooked)
    executor, name = witness.build(path)
    call = ToolCall(id="c-1", name=name, arguments_json=json.dumps(sent))
    asked_about = hooked or sent
    actual = approved or asked_about

    asked = await witness.send(executor, path, call, 1)

    assert witness.seen["check"] == asked_about
    assert asked.decision is not None
    if asked_about["amount"] == FORBIDDEN:
        assert asked.decision.action == "deny"
        assert not witness.ran
        return
    assert asked.decision.rule == f"saw {asked_about['amount']}"
    assert asked.approval is not None
    assert {key: asked.approval.arguments[key] for key in asked_about} == asked_about
    await executor.approvals.approve(asked.approval.token, by="operator", who="ann", arguments=approved)

    result = await witness.send(executor, path, call, 2)

    if actual["amount"] == FORBIDDEN:
        assert result.error is not None
        assert result.error.code == "permission_denied"
        assert not witness.ran
        return
    assert result.output == "paid"
    assert witness.ran == [actual]
    audited = {
        type(event).__name__: json.loads(event.call.arguments_json)
        for event in witness.heard
        if isinstance(event, CallStarted | CallFinished)
    }
    assert {**witness.seen, **audited} == dict.fromkeys(
        ("check", "hook", "key", "lock", "CallStarted", "CallFinished"), actual
    )
