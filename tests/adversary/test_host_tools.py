"""Tools of another framework: what is declared about them holds, and their own schema validates what runs."""

import asyncio
from typing import Any

import pytest

from handrail import ConfigError, Executor, Policy, Rule, ToolDefinitionError, ToolFlags, ToolResult, tool
from handrail.errors import CallPausedError
from handrail.execute import executor_tools
from tests.execute.helpers import ALLOWED, at, call, code_of

SCHEMA = {
    "type": "object",
    "properties": {"invoice_id": {"type": "string"}, "amount": {"type": "integer"}},
    "required": ["invoice_id", "amount"],
    "additionalProperties": False,
}


class Host:
    """A framework's tool, and the arguments that it ran with."""

    def __init__(self) -> None:
        self.ran: list[dict[str, Any]] = []

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.ran.append(arguments)
        return "paid"


async def test_a_declared_key_finds_what_was_paid() -> None:
    host = Host()
    executor = Executor(policy=ALLOWED, declared={"pay": ToolFlags(key="invoice_id")})
    pay = {"invoice_id": "R-7", "amount": 100}

    assert (await executor.guard(call("pay", "c-1", **pay), at(), host, schema=SCHEMA)).ok
    again = await executor.guard(call("pay", "c-2", **pay), at(), host, schema=SCHEMA)
    other = await executor.guard(call("pay", "c-3", invoice_id="R-7", amount=9_999), at(), host, schema=SCHEMA)

    assert again.origin == "replayed"
    assert code_of(other) == "duplicate_call"
    assert host.ran == [pay]


async def test_a_question_about_a_hosts_tool_can_be_asked_before_it_runs() -> None:
    host = Host()
    executor = Executor(declared={"pay": ToolFlags(key="invoice_id")})
    pay = call("pay", "c-1", invoice_id="R-7", amount=100)

    question = await executor.request_approval(pay, at(), schema=SCHEMA)
    invalid = await executor.request_approval(call("pay", "c-2", amount="many"), at(), schema=SCHEMA)
    result = await executor.guard(pay, at(), host, schema=SCHEMA)

    assert question is not None
    assert invalid is None
    assert result.approval is not None
    assert result.approval.token == question.token
    assert host.ran == []


async def test_a_call_that_waits_in_its_host_keeps_its_approval() -> None:
    attempts: list[str] = []

    async def proceed(arguments: dict[str, Any]) -> str:
        attempts.append("try")
        if len(attempts) == 1:
            raise CallPausedError("It waits.")
        return "paid"

    executor = Executor(policy=Policy([Rule.ask("pay", by="operator")]), declared={"pay": ToolFlags(key="invoice_id")})
    first, second = (call("pay", item, invoice_id="R-7", amount=100) for item in ("c-1", "c-2"))

    asked = await executor.guard(first, at(), proceed, schema=SCHEMA)
    assert asked.approval is not None
    await executor.approvals.approve(asked.approval.token, by="operator", who="ann")
    waits = await executor.guard(first, at(), proceed, schema=SCHEMA)

    assert code_of(waits) == "in_progress"
    assert (await executor.guard(second, at(), proceed, schema=SCHEMA)).output == "paid"
    assert await executor.doubts() == []


async def test_what_is_declared_to_read_runs_and_everything_else_is_asked_about() -> None:
    host = Host()
    executor = Executor(declared={"search": ToolFlags(read_only=True), "pay": ToolFlags()})

    results = [
        await executor.guard(call(name, f"c-{number}"), at(), host, schema={})
        for number, name in enumerate(("search", "search", "pay", "other"))
    ]

    assert [code_of(result) for result in results] == [None, None, "approval_required", "approval_required"]
    assert len(host.ran) == 2


async def test_the_flags_of_a_call_hold_for_this_call_where_nothing_is_declared_or_registered() -> None:
    @tool
    async def book(invoice_id: str) -> str:
        """Book it."""
        raise AssertionError

    host = Host()
    executor = Executor([book], declared={"pay": ToolFlags()})
    reads = ToolFlags(read_only=True, tags=["reads"])

    async def run(name: str, flags: ToolFlags | None) -> str | None:
        return code_of(await executor.guard(call(name, "c-1", invoice_id="R-7"), at(), host, flags=flags))

    assert await run("look", reads) is None
    assert await run("look", None) == "approval_required"
    assert await run("pay", reads) == await run("book", reads) == "approval_required"
    assert len(host.ran) == 1
    assert await executor.request_approval(call("look", "c-2", invoice_id="R-7"), at(), flags=reads) is None
    with pytest.raises(ConfigError, match=r"flags must be ToolFlags\(…\), got \{'read_only': True\}"):
        await run("look", {"read_only": True})  # type: ignore[arg-type]


async def test_a_declared_tool_that_crashed_is_verified_with_its_own_arguments() -> None:
    asked: list[Any] = []

    async def verify(arguments: dict[str, Any], context: Any) -> ToolResult:
        asked.append(arguments)
        return ToolResult(output="paid before")

    async def crash(arguments: dict[str, Any]) -> None:
        raise RuntimeError("the connection broke")

    executor = Executor(policy=ALLOWED, declared={"pay": ToolFlags(verify=verify)})
    pay = {"invoice_id": "R-7", "amount": 100}

    assert code_of(await executor.guard(call("pay", "c-1", **pay), at(), crash, schema=SCHEMA)) in (
        None,
        "outcome_unknown",
    )
    again = await executor.guard(call("pay", "c-2", **pay), at(), crash, schema=SCHEMA)

    assert "paid before" in again.for_model()
    assert asked[0] == pay


async def test_a_declared_lock_key_lets_different_keys_run_together() -> None:
    both = asyncio.Barrier(2)

    async def proceed(arguments: dict[str, Any]) -> str:
        async with asyncio.timeout(10):
            await both.wait()
        return "done"

    executor = Executor(policy=ALLOWED, declared={"pay": ToolFlags(lock_key="invoice_id")})
    results = await asyncio.gather(
        *(executor.guard(call("pay", key, invoice_id=key, amount=1), at(), proceed, schema=SCHEMA) for key in "ab")
    )

    assert [result.output for result in results] == ["done", "done"]


@pytest.mark.parametrize(
    "arguments", [{"invoice_id": "R-7"}, {"invoice_id": "R-7", "amount": "100"}, {"invoice_id": "R-7", "amount": True}]
)
async def test_arguments_of_the_model_and_of_the_approver_are_validated_by_the_schema_of_the_host(
    arguments: dict[str, Any],
) -> None:
    host = Host()
    executor = Executor(policy=Policy([Rule.ask("pay", by="operator")]), declared={"pay": ToolFlags()})
    sent = call("pay", "c-2", invoice_id="R-7", amount=1)

    assert code_of(await executor.guard(call("pay", **arguments), at(), host, schema=SCHEMA)) == "invalid_arguments"
    asked = await executor.guard(sent, at(), host, schema=SCHEMA)
    assert asked.approval is not None
    await executor.approvals.approve(asked.approval.token, by="operator", who="ann", arguments=arguments)
    result = await executor.guard(sent, at(), host, schema=SCHEMA)

    assert not result.ok
    assert not host.ran


async def test_a_schema_is_compiled_once_whether_the_host_passes_the_same_object_or_an_equal_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[str] = []
    build = executor_tools.build_tool
    monkeypatch.setattr(executor_tools, "build_tool", lambda given: built.append(given["name"]) or build(given))
    executor = Executor(policy=ALLOWED)
    other = {**SCHEMA, "properties": {**SCHEMA["properties"], "note": {"type": "string"}}}

    for number in range(20):
        for schema in (SCHEMA, dict(SCHEMA), other):
            sent = call("pay", f"c-{number}", invoice_id=str(number), amount=1)
            assert (await executor.guard(sent, at(), Host(), schema=schema)).ok

    assert built == ["pay", "pay"]


def test_what_is_remembered_about_hosts_tools_has_a_limit() -> None:
    executor = Executor()
    tools: Any = executor._pool.host_tools  # pyright: ignore[reportPrivateUsage]
    for number in range(1_200):
        assert tools.find(f"tool_{number}") is not None
        assert tools.find("pay", schema={"title": str(number)}).tool.input_schema["title"] == str(number)

    assert max(len(tools._compiled), len(tools._latest)) <= 1_000


async def test_rules_about_a_host_are_checked_with_its_schema() -> None:
    policy = Policy([Rule.allow("*"), Rule.deny("pay", where={"amuont": {"above": 10}})])
    executor = Executor(policy=policy, declared={"pay": ToolFlags()})
    assert executor.diagnostics == ()

    await executor.guard(call("pay", invoice_id="R-7", amount=1), at(), Host(), schema=SCHEMA)

    assert executor.diagnostics == ("rule 2 (code): unknown argument 'amuont'; did you mean 'amount'?",)


def test_a_rule_for_any_tool_may_be_about_an_argument_of_a_declared_one() -> None:
    @tool(read_only=True)
    def look(place: str) -> str:
        """Look."""
        return place

    policy = Policy([Rule.deny("*", where={"amount": {"above": 10}}), Rule.allow("tag:money")])

    assert Executor([look], policy=policy, declared={"pay": ToolFlags(tags=["money"])}).diagnostics == ()


async def test_mistakes_in_what_is_declared_are_the_developers() -> None:
    @tool
    def pay(invoice_id: str) -> str:
        """Pay."""
        return invoice_id

    with pytest.raises(ConfigError, match=r"declared\['pay'\] must be ToolFlags\(…\), got True"):
        Executor(declared={"pay": True})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="declared must be a mapping of names to ToolFlags"):
        Executor(declared=["pay"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="declared names 'pay', which is in the pool"):
        Executor([pay], declared={"pay": ToolFlags()})
    with pytest.raises(ConfigError, match="`pay`: cache_for needs read_only"):
        Executor(declared={"pay": ToolFlags(cache_for=5)})
    executor = Executor(policy=ALLOWED, declared={"pay": ToolFlags(key="invoice")})
    with pytest.raises(ToolDefinitionError, match="key names `invoice`, but its arguments are: invoice_id, amount"):
        await executor.guard(call("pay"), at(), Host(), schema=SCHEMA)
    for broken in ({"type": "strnig"}, {"properties": {"a": object()}}):
        with pytest.raises(ToolDefinitionError, match="`other`"):
            await executor.guard(call("other"), at(), Host(), schema=broken)


async def test_the_fallback_knows_what_was_declared() -> None:
    executor = Executor(fallback=lambda call, context: "found", declared={"search": ToolFlags(read_only=True)})

    assert (await executor.run(call("search"), at())).output == "found"
    assert executor.explain(call("search"), at()).decision.action == "allow"
    assert Executor(declared={"search": ToolFlags(read_only=True)}).explain(call("search"), at()).decision.action == (
        "allow"
    )


def test_a_tool_only_reads_if_it_was_registered_or_declared_so() -> None:
    @tool(read_only=True)
    def look() -> str:
        """Look."""
        return "seen"

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    declared = {"find": ToolFlags(read_only=True), "send": ToolFlags()}
    executor = Executor([look, pay], declared=declared)

    found = {name: executor.is_read_only(name) for name in ("look", "find", "send", "pay", "invented")}
    assert found == {"look": True, "find": True, "send": False, "pay": False, "invented": False}
