"""The tools of an executor, those of its hosts, and what is refused when it is built."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigError, Executor, Policy, Rule, ToolCall, ToolContext, ToolDefinitionError, ToolFlags, tool
from handrail.authorize import MemoryApprovals
from handrail.core import CallStarted, Event
from handrail.errors import DuplicateToolError
from handrail.execute import Limits, MemoryLedger, MemoryWork, Timeouts, Worker
from tests.execute.helpers import ALLOWED, Book, Heard, Held, at, call, code_of


@tool
async def pay(amount: int = 1) -> str:
    """Pay."""
    return "paid"


SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}


def test_a_policy_that_names_no_tool_is_refused_where_all_tools_are_known() -> None:
    policy = Policy([Rule.allow("pya")])
    with pytest.raises(ConfigError, match="unknown tool 'pya'"):
        Executor([pay], policy=policy)
    with pytest.raises(ConfigError, match="unknown tool 'pya'"):
        Executor([pay]).with_tools([pay], policy=policy)

    def fallback(call: Any, context: Any) -> str:
        return "done"

    for unsure in (Executor([pay], policy=policy, fallback=fallback), Executor([], policy=policy)):
        assert unsure.is_open is (unsure.has_tool("pay"))
    executor = Executor([pay], policy=policy, fallback=fallback)
    assert len(executor.diagnostics) == 1
    executor.replace_policy(ALLOWED)
    assert executor.diagnostics == ()
    executor.replace_policy(policy)
    executor.replace_tools([tool(name="pya")(pay.function)])
    assert executor.diagnostics == ()


@pytest.mark.parametrize("wrong", ["policy.yaml", [Rule.allow("pay")], Rule.allow("pay")])
def test_what_is_no_policy_is_refused_by_its_name(wrong: Any) -> None:
    match = f"policy must be a Policy, .* got {type(wrong).__name__}"
    executor = Executor([pay])
    with pytest.raises(ConfigError, match=match):
        Executor([pay], policy=wrong)
    with pytest.raises(ConfigError, match=match):
        executor.replace_policy(wrong)
    with pytest.raises(ConfigError, match=match):
        executor.with_tools([pay], policy=wrong)


@pytest.mark.parametrize("wrong", [pay, "pay"])
def test_one_tool_in_the_place_of_a_list_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"tools must be a list of tools, such as .pay., got"):
        Executor(wrong)


@pytest.mark.parametrize("hook", [object(), type("Befor", (), {"befor": lambda self: None})()])
def test_a_hook_that_is_never_called_is_refused(hook: object) -> None:
    with pytest.raises(ConfigError, match="never called"):
        Executor([pay], hooks=[hook])


def test_a_name_that_is_taken_is_not_registered_again_even_by_a_tool_of_ours() -> None:
    executor = Executor([pay], policy=ALLOWED, limits=Limits(max_output_chars=1_000))
    with pytest.raises(DuplicateToolError):
        executor.register("read_more", lambda: "mine")


async def test_handlers_find_the_secrets_of_the_executor_and_else_those_of_their_caller() -> None:
    @tool(read_only=True)
    async def show(context: ToolContext[Any]) -> str:
        """Show a secret."""
        return str(context.secrets["KEY"])

    given = Executor([show], secrets={"KEY": lambda: "the executor's"})
    none = Executor([show])
    context = at(secrets={"KEY": "the caller's"})

    assert (await given.run(call("show"), context)).output == "the executor's"
    assert (await none.run(call("show"), context)).output == "the caller's"


async def test_the_secrets_of_the_executor_and_of_the_caller_are_one_mapping() -> None:
    seen: list[dict[str, str]] = []

    @tool(read_only=True)
    async def list_all(context: ToolContext[Any]) -> int:
        """List the secrets."""
        seen.append(dict(context.secrets))
        return len(context.secrets)

    executor = Executor([list_all], secrets={"BANK": lambda: "the bank's", "KEY": lambda: "the executor's"})
    result = await executor.run(call("list_all"), at(secrets={"KEY": "the caller's", "MAIL": "the mail's"}))

    assert result.output == 3
    assert seen == [{"BANK": "the bank's", "KEY": "the executor's", "MAIL": "the mail's"}]


async def test_a_schema_of_a_host_is_what_its_tool_takes_and_what_was_declared_is_what_it_is() -> None:
    executor = Executor(policy=ALLOWED, declared={"send": ToolFlags(read_only=True)})
    [before] = executor.known_tools
    result = await executor.guard(call("send", amount=1), at(), lambda arguments: arguments["amount"], schema=SCHEMA)
    wrong = await executor.guard(call("send", "c-2", amount="x"), at(), lambda arguments: "never", schema=SCHEMA)
    plain = await executor.guard(call("send", "c-3", amount="x"), at(), lambda arguments: arguments["amount"])

    assert (result.output, code_of(wrong), plain.output) == (1, "invalid_arguments", "x")
    assert before.read_only
    assert executor.is_read_only("send")
    assert not executor.is_read_only("other")


async def test_a_rule_that_cannot_apply_to_what_a_host_passes_is_a_diagnostic() -> None:
    policy = Policy([Rule.deny("send", where={"sum": {"above": 5}}), Rule.allow("*")])
    executor = Executor(policy=policy)
    await executor.guard(call("other", amount=1), at(), lambda arguments: "done", schema=SCHEMA)
    await executor.guard(call("send", amount=1), at(), lambda arguments: "done")
    assert executor.diagnostics == ()

    await executor.guard(call("send", "c-2", amount=1), at(), lambda arguments: "done", schema=SCHEMA)

    assert len(executor.diagnostics) == 1
    assert "sum" in executor.diagnostics[0]
    assert [item.name for item in executor.known_tools] == ["send"]


def test_a_call_of_a_declared_tool_is_explained_by_its_rule_and_an_unknown_one_by_its_absence() -> None:
    policy = Policy([Rule.deny("send", reason="closed today"), Rule.allow("pay")])
    executor = Executor([pay], policy=policy, declared={"send": ToolFlags()})

    assert "closed today" in str(executor.explain(call("send"), at()))
    assert "closed today" not in str(executor.explain(call("unknown"), at()))
    assert "allow" in str(executor.explain(call("pay"), at()))


async def test_a_store_of_a_url_is_opened_with_its_executor_and_closed_with_it(tmp_path: Path) -> None:
    executor = Executor([pay], policy=ALLOWED, store=f"sqlite:///{tmp_path}/x.db")
    assert not executor.store.is_open
    async with executor:
        assert executor.store.is_open
    assert not executor.store.is_open
    assert await executor.look_up(call("pay"), at()) is None  # Who looks a call up opens it again.
    assert executor.store.is_open
    await executor.aclose()


class OwnStore:
    """A store of a user's own."""

    def __init__(self) -> None:
        self.ledger, self.approvals, self.is_open = MemoryLedger(), MemoryApprovals(), True

    def audit(self, event: Event) -> None: ...

    async def open(self) -> None: ...

    async def aclose(self) -> None: ...


class Forwarding:
    """A part of a store that is a user's own, and forwards everything."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize(
    ("parts", "is_replaceable"),
    [
        ({}, True),
        ({"ledger": MemoryLedger(), "approvals": MemoryApprovals(), "work": MemoryWork()}, True),
        ({"store": "sqlite:///x.db"}, True),
        ({"store": OwnStore()}, False),
        ({"ledger": Forwarding(MemoryLedger())}, False),
        ({"approvals": Forwarding(MemoryApprovals())}, False),
        ({"work": Forwarding(MemoryWork())}, False),
    ],
)
def test_a_store_in_memory_or_of_a_url_can_be_replaced_and_one_of_a_users_own_cannot(
    parts: dict[str, Any], is_replaceable: bool
) -> None:
    executor = Executor([pay], policy=ALLOWED, **parts)
    assert executor.has_replaceable_store is is_replaceable
    if not is_replaceable:
        with pytest.raises(ConfigError, match="this executor has a store of its own"):
            executor.with_store("sqlite:///x.db")


async def test_an_executor_with_another_store_has_the_same_options_and_keeps_its_calls_there(tmp_path: Path) -> None:
    heard = Heard()
    first = Executor([pay], policy=ALLOWED, listeners=[heard], limits=Limits(max_argument_chars=15))
    async with first.with_store(f"sqlite:///{tmp_path}/x.db") as second:
        assert (await second.run(call("pay", amount=5), at(customer_id="ann"))).ok
        assert code_of(await second.run(call("pay", "c-2", amount=50_000), at())) == "invalid_arguments"
        assert await first.look_up(call("pay", amount=5), at(customer_id="ann")) is None
        found = await second.look_up(call("pay", amount=5), at(customer_id="ann"))

    assert found is not None
    assert (found.output, first.outlives_process, second.outlives_process) == ("paid", False, True)
    assert second.policy is first.policy
    assert [event.call.id for event in heard.of(CallStarted)] == ["c-1"]


async def test_the_end_of_a_session_forgets_its_long_outputs() -> None:
    @tool(read_only=True)
    async def say() -> str:
        """Say."""
        return "x" * 500

    executor = Executor([say], limits=Limits(max_output_chars=100))
    handles = {
        session: (await executor.run(call("say"), at(session))).output.partition("handle='")[2].partition("'")[0]
        for session in ("s-1", "s-2")
    }
    await executor.cancel_all("s-1")

    found = [await executor.run(call("read_more", "m", handle=handle), at(s)) for s, handle in handles.items()]
    assert [item.ok for item in found] == [False, True]


class Written(Book):
    """A ledger that other processes see, too."""

    is_written = needs_lease = True


async def test_a_tool_without_a_customer_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", logger="handrail")

    def count() -> int:
        return sum("runs without a customer" in record.getMessage() for record in caplog.records)

    for scope, contexts, warned in ((None, [at(), at()], 1), ("session", [at()], 0), (None, [at(customer_id="a")], 0)):
        caplog.clear()
        options: Any = {"scope": scope}
        executor = Executor([pay], policy=ALLOWED, ledger=Written(), **options)
        for number, context in enumerate(contexts):
            await executor.run(call("pay", f"c-{number}", amount=number), context)
        assert count() == warned


@pytest.mark.parametrize(
    ("deps", "names"),
    [({"bank": 1, "api": 2, 3: "x"}, ("api", "bank")), (None, ()), ("text", None)],
)
async def test_an_event_names_the_dependencies_and_never_shows_them(deps: Any, names: tuple[str, ...] | None) -> None:
    heard = Heard()
    executor = Executor([pay], policy=ALLOWED, listeners=[heard])
    assert (await executor.run(call("pay"), at(deps=deps))).ok

    [started] = heard.of(CallStarted)
    if names is not None:
        assert started.dependencies == names


async def test_a_ledger_that_is_away_when_a_call_is_looked_up_leaves_its_outcome_unknown() -> None:
    ledger = Book()
    executor = Executor([pay], policy=ALLOWED, ledger=ledger, timeouts=Timeouts(overhead=1))
    await executor.run(call("pay"), at())
    ledger.away["recall"] = 1
    lost = await executor.look_up(call("pay"), at())
    found = await executor.look_up(call("pay"), at())

    assert lost is not None
    assert found is not None
    assert (code_of(lost), found.output) == ("outcome_unknown", "paid")


def test_flags_of_a_host_are_flags() -> None:
    wrong: Any = {"read_only": True}
    with pytest.raises(ConfigError, match=r"must be ToolFlags\(…\)"):
        Executor(declared={"send": wrong})


async def test_a_host_that_passes_wrong_flags_is_told_so() -> None:
    wrong: Any = {"read_only": True}
    with pytest.raises(ConfigError, match=r"flags must be ToolFlags\(…\)"):
        await Executor(policy=ALLOWED).guard(call("send"), at(), lambda arguments: "done", flags=wrong)


async def test_the_origin_of_a_value_is_the_tool_that_a_host_passed_or_only_its_name() -> None:
    executor = Executor([pay], policy=ALLOWED)
    assert executor.find_source_tool("send") == executor.find_source_tool("send")
    unknown = executor.find_source_tool("send")
    await executor.guard(call("send"), at(), lambda arguments: "done", schema=SCHEMA, flags=ToolFlags(tags=("mail",)))

    assert (unknown.name, executor.find_source_tool("send").name) == ("send", "send")
    assert executor.find_source_tool("send") != unknown
    assert executor.find_source_tool("pay").name == "pay"


async def test_another_policy_is_for_tools_of_its_own() -> None:
    executor = Executor([pay], policy=Policy([Rule.deny("pay")]))
    other = executor.with_tools([tool(name="send")(pay.function)], policy=Policy([Rule.allow("send")]))

    assert code_of(await executor.run(call("pay"), at())) == "permission_denied"
    assert (await other.run(call("send", "c-2"), at())).ok
    assert [executor.has_tool("send"), other.has_tool("pay")] == [False, False]
    with pytest.raises(ConfigError, match="unknown tool 'pay'"):
        executor.with_tools([tool(name="send")(pay.function)], policy=Policy([Rule.allow("pay")]))


@pytest.mark.parametrize(
    "use",
    [
        lambda executor: executor.run(call("wait", "c-2"), at()),
        lambda executor: executor.guard(call("send", "c-2"), at(), lambda arguments: "done"),
        lambda executor: executor.submit(call("wait", "c-2"), at()),
        lambda executor: executor.look_up(call("send", "c-2"), at()),
    ],
    ids=["run", "guard", "submit", "look_up"],
)
async def test_an_executor_serves_one_event_loop_at_a_time(use: Any) -> None:
    held = Held()

    @tool(read_only=True)
    async def wait() -> str:
        """Wait."""
        return await held()

    executor = Executor([wait])
    running = asyncio.create_task(executor.run(call("wait"), at()))
    await held.begun.wait()
    with pytest.raises(ConfigError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, use(executor))
    held.go.set()
    assert (await running).output == "done"


# What hosts pass, and what is declared.


@pytest.mark.parametrize("declared", [["send"], None, 5])
def test_what_is_declared_is_a_mapping(declared: Any) -> None:
    if not declared:
        assert Executor(declared=declared).known_tools == ()
        return
    with pytest.raises(ConfigError, match=f"declared must be a mapping .*, got {type(declared).__name__}"):
        Executor(declared=declared)


def test_a_tool_of_the_pool_is_not_declared_beside_it() -> None:
    with pytest.raises(ConfigError, match="declared names 'pay', which is in the pool"):
        Executor([pay], declared={"send": ToolFlags(), "pay": ToolFlags()})


@pytest.mark.parametrize("schema", [{"type": object()}, {1: 2, "a": 3}])
async def test_a_schema_of_a_host_that_is_none_is_an_error_of_the_host(schema: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="`send`: schema must be a JSON Schema"):
        await Executor(policy=ALLOWED).guard(call("send"), at(), lambda arguments: "done", schema=schema)


@pytest.mark.parametrize("is_changed", [True, False])
async def test_a_host_that_takes_no_arguments_runs_only_what_it_asked_for(is_changed: bool) -> None:
    ran: list[int] = []
    executor = Executor(policy=Policy([Rule.ask("send", by="operator")]), declared={"send": ToolFlags()})

    async def guard() -> Any:
        return await executor.guard(call("send", amount=1), at(), lambda: ran.append(1))

    asked = await guard()
    arguments = {"amount": 2} if is_changed else None
    await executor.approvals.approve(asked.approval.token, by="operator", who="bo", arguments=arguments)
    result = await guard()

    assert (result.ok, len(ran)) == (not is_changed, not is_changed)
    assert ("its host can only run the original ones" in result.for_model()) is is_changed


async def test_durable_calls_of_tools_that_are_not_in_the_pool_are_run_by_the_fallback() -> None:
    ran: list[str] = []

    async def fallback(call: ToolCall, context: ToolContext[Any]) -> str:
        ran.append(call.arguments_json)
        return "theirs"

    stores: Any = {"ledger": MemoryLedger(), "work": MemoryWork(), "approvals": MemoryApprovals()}
    declared = {"old": ToolFlags(durable=True), "other": ToolFlags()}
    executor = Executor([pay], policy=ALLOWED, fallback=fallback, declared=declared, **stores)
    without = Executor([pay], policy=ALLOWED, declared=declared, **stores)
    assert await executor.submit(call("old", amount=1), at()) is None
    await Worker(executor).handle("s-1/c-1")

    assert (await executor.wait(session_id="s-1", call_id="c-1", timeout=0)).output == "theirs"
    assert (len(executor.durable_definitions), len(without.durable_definitions)) == (1, 0)
    assert ran == ['{"amount": 1}']


async def test_a_tool_of_a_host_is_what_was_said_last_about_it() -> None:
    reads, acts = ToolFlags(read_only=True), ToolFlags()
    executor = Executor()

    async def guard(id: str, name: str = "send", **of: Any) -> str | None:
        return code_of(await executor.guard(call(name, id, amount=1), at(), lambda arguments: "done", **of))

    assert [await guard("c-1", flags=reads), await guard("c-2", flags=acts), await guard("c-3", flags=reads)] == [
        None,
        "approval_required",
        None,
    ]
    wants_text = {"type": "object", "properties": {"amount": {"type": "string"}}}
    assert await guard("c-4", flags=reads, schema=SCHEMA) is None
    assert await guard("c-5", flags=reads, schema=wants_text) == "invalid_arguments"
    executor.replace_tools([tool(name="look", read_only=True)(pay.function)])
    assert await guard("c-6", "look") is None
    executor.replace_tools([tool(name="look")(pay.function)])
    assert await guard("c-7", "look") == "approval_required"


async def test_another_policy_decides_about_the_tools_of_a_host_too() -> None:
    executor = Executor(policy=ALLOWED)

    async def guard(number: int, **of: Any) -> str | None:
        sent = call("send", f"c-{number}", amount=number)
        return code_of(await executor.guard(sent, at(), lambda arguments: "done", **of))

    assert [await guard(1), await guard(2, schema=SCHEMA)] == [None, None]
    executor.replace_policy(Policy([Rule.deny("send")]))
    assert [await guard(3), await guard(4, schema=SCHEMA)] == ["permission_denied"] * 2


async def test_a_read_of_a_host_is_decided_about_and_takes_the_short_way() -> None:
    heard, threads = Heard(), list[threading.Thread]()
    policy = Policy([Rule.ask("peek", by="operator")])
    declared = {name: ToolFlags(read_only=True) for name in ("look", "peek")}
    executor = Executor(policy=policy, declared=declared, listeners=[heard])

    def run() -> str:
        threads.append(threading.current_thread())
        return "seen"

    assert (await executor.guard(call("look"), at(), run)).output == "seen"
    assert heard.names == ["CallStarted", "CallFinished"]
    assert code_of(await executor.guard(call("peek", "c-2"), at(), run)) == "approval_required"
    assert threads == [threading.current_thread()]  # It runs in the loop.


async def test_a_tool_of_the_pool_that_a_host_passes_too_is_known_once() -> None:
    executor = Executor([pay], policy=Policy([Rule.allow("pay")]))
    await executor.guard(call("pay", amount=1), at(), lambda arguments: "done", schema=SCHEMA)

    assert [item.name for item in executor.known_tools] == ["pay"]


def test_a_rule_that_names_no_declared_tool_is_a_diagnostic() -> None:
    executor = Executor(policy=Policy([Rule.allow("sned")]), declared={"send": ToolFlags()})

    assert len(executor.diagnostics) == 1
    assert "unknown tool 'sned'" in executor.diagnostics[0]
    assert Executor(policy=Policy([Rule.allow("sned")])).diagnostics == ()


async def test_what_is_registered_has_the_name_that_it_is_given() -> None:
    class Desk:
        def sell(self, what: str) -> str:
            """Sell."""
            return f"sold {what}"

    def buy(what: str) -> str:
        """Buy."""
        return f"bought {what}"

    executor = Executor([pay], policy=ALLOWED)
    for name, function in (("sell", Desk().sell), ("buy", buy), ("refund", pay)):
        executor = executor.register(name, function)

    assert executor.registry.names == ("pay", "sell", "buy", "refund")
    assert (await executor.run(call("sell", "c-1", what="it"), at())).output == "sold it"
    assert (await executor.run(call("refund", "c-2"), at())).output == "paid"
    assert executor.registry.get("refund").name == "refund"


def test_an_executor_that_gets_its_tools_later_may_have_rules_about_them() -> None:
    policy = Policy([Rule.allow("later")])
    none = Executor([pay]).with_tools([], policy=policy)
    open_one = Executor([pay], fallback=lambda call, context: "done").with_tools([pay], policy=policy)

    assert (none.policy, open_one.policy) == (policy, policy)
    assert len(open_one.diagnostics) == 1
