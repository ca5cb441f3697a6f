"""What runs is what was authorised: whoever changes arguments, everybody sees the same ones."""

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from handrail import (
    Executor,
    Policy,
    Rule,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    build_tool,
    tool,
)
from handrail.authorize import MemoryApprovals
from handrail.chat import ChatSession
from handrail.core import CallFinished, CallStarted
from handrail.execute import Entry, MemoryLedger
from handrail.store import open_store
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls
from tests.execute.helpers import ALLOWED, Heard, at, call, code_of
from tests.postgres import DATABASES, new_database
from tests.postgres import postgres as postgres  # a fixture

FORMS = ["memory", "sqlite"]


@pytest.fixture(scope="module")
def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new database, made once: each test has a copy."""
    path = tmp_path_factory.mktemp("store") / "handrail.db"

    async def make() -> None:
        async with open_store(f"sqlite+aiosqlite:///{path}"):
            pass

    asyncio.run(make())
    return path


@pytest.fixture(params=FORMS)
async def kept(request: pytest.FixtureRequest, tmp_path: Path, new_file: Path) -> AsyncGenerator[dict[str, Any]]:
    """The ledger and the approvals of an executor, in each form."""
    if request.param == "memory":
        yield {"ledger": MemoryLedger(), "approvals": MemoryApprovals()}
        return
    if request.param == "sqlite":
        url = f"sqlite+aiosqlite:///{shutil.copy(new_file, tmp_path / 'handrail.db')}"
    else:
        url = new_database(request.param, tmp_path, request)
    async with open_store(url) as store:
        yield {"ledger": store.ledger, "approvals": store.approvals}


ASK_OPERATOR = Policy([Rule.ask("pay", by="operator")])


class Bank:
    """A tool that pays, and what it has paid."""

    def __init__(self, **options: Any) -> None:
        self.paid: list[tuple[str, int]] = []

        @tool(name="pay", **options)
        async def pay(invoice: str, amount: int) -> str:
            """Pay an invoice."""
            self.paid.append((invoice, amount))
            return f"Paid {amount} for {invoice}."

        self.pay: Tool[..., Any] = pay


class Cap:
    """A hook that refuses payments above a limit, and remembers the amounts that it saw."""

    def __init__(self, limit: int = 1_000) -> None:
        self.limit = limit
        self.seen: list[int] = []

    def authorised(self, call: ToolCall, tool: Any, decision: Any, context: Any) -> None:
        amount = json.loads(call.arguments_json)["amount"]
        self.seen.append(amount)
        if amount > self.limit:
            raise ToolError("Above the cap.")


class Change:
    """A hook that changes the amount."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def before(self, call: ToolCall, tool: Any, context: Any) -> ToolCall:
        arguments = {**json.loads(call.arguments_json), "amount": self.amount}
        return structs.replace(call, arguments_json=json.dumps(arguments))


def pay(id: str = "c-1", invoice: str = "R-1", amount: int = 500) -> ToolCall:
    return call("pay", id, invoice=invoice, amount=amount)


async def approve(executor: Executor, result: ToolResult, **arguments: Any) -> None:
    assert result.approval is not None
    await executor.approvals.approve(result.approval.token, by="operator", who="ann", arguments=arguments or None)


# Hosts


async def test_a_host_runs_the_arguments_that_the_approver_wants(kept: dict[str, Any]) -> None:
    ran: list[Any] = []
    executor = Executor(policy=ASK_OPERATOR, **kept)

    async def run() -> ToolResult:
        return await executor.guard(pay(), at(), lambda arguments: ran.append(arguments) or "paid")

    await approve(executor, await run(), invoice="R-1", amount=300)

    assert (await run()).ok
    assert ran == [{"invoice": "R-1", "amount": 300}]


@pytest.mark.parametrize("read_only", [True, False])
async def test_the_model_is_told_which_arguments_of_the_approver_ran(read_only: bool, kept: dict[str, Any]) -> None:
    @tool(read_only=read_only)
    async def send(text: str, password: str) -> str:
        """Send."""
        return f"sent {text}"

    executor = Executor([send], policy=Policy([Rule.ask("send", by="operator")]), **kept)
    sent = call("send", text="all of it", password="Tr0ub4dor-and-3")
    await approve(executor, await executor.run(sent, at()), text="half of it", password="Tr0ub4dor-and-4")

    first, again = await executor.run(sent, at()), await executor.run(sent, at())

    for result in (first, again):
        assert result.output == "sent half of it"
        told = result.for_model()
        assert "changed its arguments" in told
        assert '"text":"half of it"' in told.replace(": ", ":")
        assert "Tr0ub4dor" not in told
    unchanged = await executor.run(call("send", "c-2", text="x", password="y"), at())
    await approve(executor, unchanged)
    assert (await executor.run(call("send", "c-2", text="x", password="y"), at())).for_model() == "sent x"


async def test_nobody_is_told_of_changes_if_the_approver_passes_the_arguments_as_they_are(kept: dict[str, Any]) -> None:
    bank = Bank()
    executor = Executor([bank.pay], policy=ASK_OPERATOR, **kept)
    asked = await executor.run(pay(), at())
    await approve(executor, asked, amount=500, invoice="R-1")
    await approve(executor, asked, amount=500.0, invoice="R-1")  # It was sent twice, once by a browser.

    assert (await executor.run(pay(), at())).for_model() == "Paid 500 for R-1."
    assert bank.paid == [("R-1", 500)]


async def test_a_host_runs_the_arguments_that_a_hook_made_and_the_policy_judged() -> None:
    ran: list[Any] = []
    policy = Policy([Rule.deny("pay", where={"amount": {"above": 10}}), Rule.allow("pay")])
    executor = Executor(policy=policy, hooks=[Change(1)])

    assert (await executor.guard(pay(amount=99), at(), lambda arguments: ran.append(arguments) or "paid")).ok
    assert ran == [{"invoice": "R-1", "amount": 1}]


@pytest.mark.parametrize("by", ["hook", "approver"])
async def test_a_host_that_cannot_take_changed_arguments_is_refused_with_the_reason(by: str) -> None:
    ran: list[str] = []
    executor = Executor(policy=ASK_OPERATOR, hooks=[Change(1)] if by == "hook" else [])

    async def run() -> ToolResult:
        return await executor.guard(pay(), at(), lambda: ran.append("original"))

    result = await run()
    if by == "approver":
        await approve(executor, result, invoice="R-1", amount=300)
        result = await run()

    assert code_of(result) == "permission_denied"
    assert result.error is not None
    assert "original" in result.error.message
    assert not ran


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_fallback_gets_the_call_as_it_was_authorised(is_async: bool, kept: dict[str, Any]) -> None:
    ran: list[str] = []

    def dispatch(call: ToolCall, context: ToolContext[Any]) -> str:
        ran.append(call.arguments_json)
        return "paid"

    async def dispatch_async(call: ToolCall, context: ToolContext[Any]) -> str:
        return dispatch(call, context)

    executor = Executor(
        policy=ASK_OPERATOR, fallback=dispatch_async if is_async else dispatch, hooks=[Change(2)], **kept
    )
    await approve(executor, await executor.run(pay(), at()), invoice="R-1", amount=300)
    assert (await executor.run(pay(), at())).ok
    allowed = Executor(policy=ALLOWED, fallback=dispatch_async if is_async else dispatch, hooks=[Change(2)], **kept)
    assert (await allowed.run(pay("c-2", "R-2"), at())).ok

    assert [json.loads(item)["amount"] for item in ran] == [300, 2]


# Arguments that an approver changed


async def test_a_hook_judges_the_arguments_of_the_approver(kept: dict[str, Any]) -> None:
    bank, cap = Bank(), Cap()
    executor = Executor([bank.pay], policy=ASK_OPERATOR, hooks=[cap], **kept)
    await approve(executor, await executor.run(pay(), at()), invoice="R-1", amount=50_000)

    assert code_of(await executor.run(pay(), at())) == "refused_by_hook"
    assert cap.seen[-1] == 50_000
    assert not bank.paid


@pytest.mark.parametrize("key", [("invoice",), None])
@pytest.mark.parametrize("kept", ["memory", *DATABASES], indirect=True)
async def test_an_invoice_that_was_paid_is_not_paid_again_because_an_approver_changed_another_call_to_it(
    key: Any, kept: dict[str, Any]
) -> None:
    bank = Bank(key=key)
    executor = Executor([bank.pay], policy=ASK_OPERATOR, **kept)
    await approve(executor, await executor.run(pay("c-1", "R-7", 100), at()))
    assert (await executor.run(pay("c-1", "R-7", 100), at())).ok
    await approve(executor, await executor.run(pay("c-2", "R-8", 100), at(turn=2)), invoice="R-7", amount=100)

    result = await executor.run(pay("c-2", "R-8", 100), at(turn=2))

    assert code_of(result) == "duplicate_call"
    assert bank.paid == [("R-7", 100)]


@pytest.mark.parametrize("key", [("invoice",), None])
async def test_a_repeat_of_what_the_model_sent_finds_what_the_approver_made_of_it(
    key: Any, kept: dict[str, Any]
) -> None:
    bank = Bank(key=key)
    executor = Executor([bank.pay], policy=ASK_OPERATOR, **kept)
    await approve(executor, await executor.run(pay(), at()), invoice="R-9", amount=300)
    first = await executor.run(pay(), at())
    same, equal = await executor.run(pay(), at()), await executor.run(pay("c-2"), at())
    later = await executor.run(pay("c-3"), at(turn=2))

    assert first.output == "Paid 300 for R-9."
    assert (same.origin, equal.origin) == ("replayed", "replayed")
    assert code_of(later) == "approval_required"
    assert later.approval is not None
    assert "already done" in later.approval.question
    assert bank.paid == [("R-9", 300)]


@pytest.mark.parametrize("read_only", [False, True])
async def test_changed_arguments_take_the_lock_of_their_own_key(read_only: bool, kept: dict[str, Any]) -> None:
    running: list[str] = []
    most = 0

    @tool(name="pay", lock_key=("invoice",), concurrency_safe=True, read_only=read_only)
    async def locked(invoice: str, amount: int) -> str:
        """Pay."""
        nonlocal most
        running.append(invoice)
        most = max(most, running.count(invoice))
        for _ in range(5):
            await asyncio.sleep(0)
        running.remove(invoice)
        return invoice

    executor = Executor([locked], policy=ASK_OPERATOR, **kept)
    await approve(executor, await executor.run(pay("c-1", "R-1", 1), at("s-1")))
    await approve(executor, await executor.run(pay("c-2", "R-2", 2), at("s-2")), invoice="R-1", amount=2)
    results = await asyncio.gather(
        executor.run(pay("c-1", "R-1", 1), at("s-1")), executor.run(pay("c-2", "R-2", 2), at("s-2"))
    )

    assert [result.output for result in results] == ["R-1", "R-1"]
    assert most == 1


async def test_policy_hooks_key_lock_events_ledger_and_handler_see_equal_arguments() -> None:
    seen: dict[str, Any] = {}
    heard, cap = Heard(), Cap()

    def note(name: str) -> Callable[[Any], str]:
        return lambda arguments: seen.update({name: dict(arguments)}) or "one"

    @tool(name="pay", key=note("key"), lock_key=note("lock"))
    async def noted(invoice: str, amount: int, context: ToolContext[Any]) -> str:
        """Pay."""
        assert context.call is not None
        seen.update(handler={"invoice": invoice, "amount": amount}, context=json.loads(context.call.arguments_json))
        return "paid"

    def check(arguments: dict[str, Any], context: Any) -> None:
        seen["check"] = dict(arguments)

    ledger = MemoryLedger()
    executor = Executor(
        [replace(noted, permission_check=check)], policy=ASK_OPERATOR, hooks=[Change(77), cap],
        ledger=ledger, listeners=[heard],
    )  # fmt: skip
    await approve(executor, await executor.run(pay(), at()), invoice="R-2", amount=300)
    assert (await executor.run(pay(), at())).ok
    entry: Entry | None = (await ledger.recall(session_id="s-1", call_id="c-1")).by_id
    assert entry is not None
    seen["ledger"] = json.loads(entry.arguments)
    seen["started"] = json.loads(heard.of(CallStarted)[-1].call.arguments_json)
    seen["finished"] = json.loads(heard.of(CallFinished)[-1].call.arguments_json)

    assert seen == {name: {"invoice": "R-2", "amount": 300} for name in seen}
    assert len(seen) == 8
    assert cap.seen[-1] == 300


def spoil(arguments: dict[str, Any], context: Any = None) -> Any:
    """A function of a developer that changes what it gets, as deep as it goes."""
    arguments["amount"] = 1
    arguments["lines"].clear()
    return "one" if context is None else None


ORDER: dict[str, Any] = {"invoice": "R-1", "amount": 5_000, "lines": [{"sku": "a"}]}


def build_pay(ran: list[Any], is_raw: bool, **options: Any) -> Any:
    if not is_raw:

        @tool(name="pay", **options)
        async def pay(invoice: str, amount: int, lines: list[dict[str, str]]) -> str:
            """Pay."""
            ran.append({"invoice": invoice, "amount": amount, "lines": lines})
            return "paid"

        return pay

    async def execute(payload: Any, context: Any) -> str:
        ran.append(payload)
        return "paid"

    properties = {"invoice": {"type": "string"}, "amount": {"type": "integer"}, "lines": {"type": "array"}}
    check = options.pop("permission_check", None)
    made: Any = build_tool({"name": "pay", "input_schema": {"properties": properties}, "execute": execute, **options})
    return replace(made, permission_check=check)


@pytest.mark.parametrize("is_raw", [False, True], ids=["function", "schema"])
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("option", ["key", "lock_key", "permission_check"])
async def test_a_key_or_a_check_that_changes_its_arguments_changes_nothing_that_is_decided_shown_or_run(
    option: str, read_only: bool, is_raw: bool, kept: dict[str, Any]
) -> None:
    ran: list[Any] = []
    options: dict[str, Any] = {"read_only": read_only, option: spoil}
    if option == "key" and read_only:
        options["lock_key"] = options.pop("key")
    made = build_pay(ran, is_raw, **options)
    limited = Policy([Rule.deny("pay", where={"amount": {"above": 100}}), Rule.allow("pay")])

    denied = await Executor([made], policy=limited, **kept).run(call("pay", "c-1", **ORDER), at())
    asking = Executor([made], policy=ASK_OPERATOR, **kept)
    asked = await asking.run(call("pay", "c-2", **ORDER), at())
    await approve(asking, asked)
    done = await asking.run(call("pay", "c-2", **ORDER), at())

    assert code_of(denied) == "permission_denied"
    assert asked.approval is not None
    assert asked.approval.arguments == ORDER
    assert (done.output, ran) == ("paid", [ORDER])


async def test_verify_is_asked_about_the_arguments_that_ran_whatever_the_handler_and_verify_did_with_theirs() -> None:
    asked: list[Any] = []

    def verify(arguments: dict[str, Any], context: Any) -> None:
        asked.append(json.loads(json.dumps(arguments)))
        spoil(arguments)

    async def execute(payload: Any, context: Any) -> None:
        spoil(payload)
        raise RuntimeError("lost")

    made = build_tool({"name": "pay", "input_schema": {}, "execute": execute, "verify": verify})
    executor = Executor([made], policy=ALLOWED)
    for number in (1, 2):
        assert code_of(await executor.run(call("pay", f"c-{number}", **ORDER), at())) == "outcome_unknown"

    assert asked == [ORDER] * 2


async def test_verify_is_asked_about_the_arguments_of_the_call_in_doubt(kept: dict[str, Any]) -> None:
    asked: list[Any] = []

    @tool(name="pay", verify=lambda arguments, context: asked.append(dict(arguments)))
    async def breaks(invoice: str, amount: int) -> str:
        """Pay."""
        raise RuntimeError("lost")

    executor = Executor([breaks], policy=ASK_OPERATOR, **kept)
    await approve(executor, await executor.run(pay(), at()), invoice="R-1", amount=300)
    results = [await executor.run(pay(), at()), await executor.run(pay(), at()), await executor.run(pay("c-2"), at())]

    assert [code_of(result) for result in results] == ["outcome_unknown"] * 3
    assert asked == [{"invoice": "R-1", "amount": 300}] * 3


# The same key, other arguments


@pytest.mark.parametrize("kept", ["memory", *DATABASES], indirect=True)
async def test_the_same_key_with_other_arguments_is_a_duplicate_that_names_what_was_done(kept: dict[str, Any]) -> None:
    bank = Bank(key=("invoice",))
    executor = Executor([bank.pay], policy=ALLOWED, **kept)
    await executor.run(pay("c-1", "R-7", 100), at())
    result = await executor.run(pay("c-2", "R-7", 9_999), at())
    later = await executor.run(pay("c-3", "R-7", 9_999), at(turn=2))

    assert result.error is not None
    assert result.error.code == "duplicate_call"
    assert '"amount":100' in result.error.message
    assert later.approval is not None
    assert '"amount":100' in later.approval.question
    assert later.approval.arguments["amount"] == 9_999
    assert bank.paid == [("R-7", 100)]


@pytest.mark.parametrize("ends", ["running", "unknown"])
async def test_other_arguments_never_join_or_verify_another_call(ends: str, kept: dict[str, Any]) -> None:
    asked: list[Any] = []
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(
        name="pay", key=("invoice",), concurrency_safe=True, verify=lambda arguments, context: asked.append(arguments)
    )
    async def slow(invoice: str, amount: int) -> str:
        """Pay."""
        begun.set()
        if ends == "unknown":
            raise RuntimeError("lost")
        await go.wait()
        return "paid"

    executor = Executor([slow], policy=ALLOWED, **kept)
    first = asyncio.create_task(executor.run(pay("c-1", "R-7", 100), at()))
    await begun.wait()
    if ends == "unknown":
        await first
    before = len(asked)
    result = await executor.run(pay("c-2", "R-7", 9_999), at())
    go.set()
    await first

    assert code_of(result) == ("in_progress" if ends == "running" else "outcome_unknown")
    assert len(asked) == before


async def test_after_a_failure_other_arguments_run(kept: dict[str, Any]) -> None:
    paid: list[int] = []

    @tool(name="pay", key=("invoice",))
    async def picky(invoice: str, amount: int) -> str:
        """Pay."""
        if amount > 1_000:
            raise ToolError("Too much.")
        paid.append(amount)
        return "paid"

    executor = Executor([picky], policy=ALLOWED, **kept)
    await executor.run(pay("c-1", "R-7", 9_999), at())

    assert (await executor.run(pay("c-2", "R-7", 100), at())).output == "paid"
    assert paid == [100]


# Whose approval, whose result


async def test_an_approval_is_for_one_customer(kept: dict[str, Any]) -> None:
    bank = Bank()
    executor = Executor([bank.pay], policy=ASK_OPERATOR, **kept)
    await approve(executor, await executor.run(pay(), at(customer_id="c-1")))

    assert code_of(await executor.run(pay("other"), at(customer_id="c-2"))) == "approval_required"
    assert (await executor.run(pay(), at(customer_id="c-1"))).ok
    assert len(bank.paid) == 1


@pytest.mark.parametrize("public", [False, True])
async def test_a_cached_result_is_of_one_customer_unless_the_tool_is_public(public: bool) -> None:
    @tool(name="balance", read_only=True, cache_for=60, cache_public=public)
    async def balance(context: ToolContext[Any]) -> str:
        """The balance."""
        return f"of {context.customer_id or context.session_id}"

    executor = Executor([balance])
    where = [at(customer_id="alice"), at(customer_id="bob"), at("s-2", customer_id="alice"), at("s-3"), at("s-4")]
    outputs = [(await executor.run(call("balance", f"c-{n}"), one)).output for n, one in enumerate(where)]

    assert outputs == (["of alice"] * 5 if public else ["of alice", "of bob", "of alice", "of s-3", "of s-4"])


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("id", ["c-1", "c-2"])
@pytest.mark.parametrize("state", ["done", "running"])
async def test_an_agent_that_is_denied_does_not_get_the_result_of_another(
    read_only: bool, id: str, state: str, kept: dict[str, Any]
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(name="secret", read_only=read_only, concurrency_safe=True, cache_for=60 if read_only else None)
    async def secret() -> str:
        """A secret."""
        begun.set()
        await go.wait()
        return "the secret"

    executor = Executor([secret], policy=Policy([Rule.deny("secret", agent="intern"), Rule.allow("secret")]), **kept)
    first = asyncio.create_task(executor.run(call("secret", "c-1"), at(agent_id="boss")))
    await begun.wait()
    if state == "done":
        go.set()
        await first
    result = await executor.run(call("secret", id), at(agent_id="intern"))
    go.set()
    await first

    assert code_of(result) == "permission_denied"
    same = await executor.run(call("secret", "c-1"), at(agent_id="boss"))
    assert (same.output, same.origin) == ("the secret", "replayed")


# Questions


class Racing(MemoryApprovals):
    """Approvals in another process: while one call asks, another one of the same effect runs."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Any] | None = None

    async def ask(self, approval: Any) -> Any:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await super().ask(approval)


async def test_a_call_whose_twin_ran_while_it_was_decided_about_asks_nobody_again() -> None:
    bank, approvals, ledger = Bank(), Racing(), MemoryLedger()
    one, two = (Executor([bank.pay], policy=ASK_OPERATOR, ledger=ledger, approvals=approvals) for _ in range(2))
    await approve(one, await one.run(pay("c-1"), at()))
    approvals.meanwhile = lambda: one.run(pay("c-1"), at())
    twin = await two.run(pay("c-2"), at())

    assert (twin.ok, twin.origin) == (True, "replayed")
    assert await approvals.pending() == []
    assert len(bank.paid) == 1


async def test_a_question_is_the_one_that_running_the_call_would_ask(kept: dict[str, Any]) -> None:
    bank = Bank()
    executor = Executor([bank.pay], policy=ALLOWED, hooks=[Change(7)], **kept)
    await executor.run(pay("c-1"), at())
    assert await executor.request_approval(pay("c-1"), at()) is None  # It is done.
    asked = await executor.run(pay("c-2"), at(turn=2))
    question = await executor.request_approval(pay("c-2"), at(turn=2))

    assert question is not None
    assert question == asked.approval
    assert await executor.approvals.pending() == [question]
    assert len(bank.paid) == 1


@pytest.mark.parametrize("approvals", ["kept", "lost"])
async def test_a_question_about_a_repeat_is_asked_once_also_after_the_conversation_is_loaded(
    approvals: str, tmp_path: Path, new_file: Path
) -> None:
    bank = Bank()
    url = f"sqlite+aiosqlite:///{shutil.copy(new_file, tmp_path / 'handrail.db')}"
    line = tool_calls(("pay", {"invoice": "R-1", "amount": 500}))

    async def play(lines: list[Any], turn: Callable[[ChatSession], Any]) -> Any:
        """Another process for every turn."""
        async with open_store(url) as store:
            executor = Executor(
                [bank.pay],
                policy=ALLOWED,
                hooks=[Change(7)],
                ledger=store.ledger,
                approvals=store.approvals if approvals == "kept" else None,
            )
            context = at(customer_id="ann", turn=0)
            session = await ChatSession.load(
                ScriptedProvider(lines), executor, context=context, sessions=store.sessions, create=True
            )
            return await turn(session)

    async def approve_and_resume(session: ChatSession) -> Any:
        (question,) = await session.approvals()
        await session.approve(question.token)
        return question, await session.resume(), await session.approvals()

    assert (await play([line, "Paid."], lambda session: session.send("Pay R-1."))).stop_reason == "completed"
    asked = await play([line], lambda session: session.send("Pay it once more."))
    assert (asked.stop_reason, "already done" in asked.approvals[0].question) == ("approval_required", True)

    question, done, left = await play(["Paid again."], approve_and_resume)
    assert (question.question, question.arguments["amount"]) == (asked.approvals[0].question, 7)
    assert (question.token == asked.approvals[0].token) == (approvals == "kept")
    assert (done.stop_reason, left, bank.paid) == ("completed", [], [("R-1", 7), ("R-1", 7)])

    nothing = await play([], lambda session: session.approvals())
    assert nothing == []
