"""The executor answers every call: under its id, in order, by whichever door it came in."""

import asyncio
import threading
from contextvars import ContextVar
from dataclasses import replace
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator

from handrail import (
    ConfigError,
    Executor,
    Policy,
    Rule,
    ToolCall,
    ToolContext,
    ToolError,
    ToolFlags,
    ToolRegistry,
    ToolResult,
    tool,
)
from handrail.core import CallFinished, CallIgnored, CallStarted
from handrail.execute import Limits, Timeouts
from tests.execute.helpers import ALLOWED, Book, Heard, at, call, code_of, list_unawaited
from tests.tools import pay


@tool(read_only=True, concurrency_safe=True)
async def echo(text: str) -> str:
    """Say it again."""
    return text


# run and run_all


@pytest.mark.proves("PH-39")
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (call("echo", text="hi"), None),
        (call("pay", amount=5), None),
        (call("nobody"), "tool_not_found"),
        (ToolCall(id="c-1", name=""), "tool_not_found"),
        (ToolCall(id="c-1", name="echo", arguments_json="{"), "tool_args_parse_error"),
        (ToolCall(id="c-1", name="pay", arguments_json="[1]"), "tool_args_parse_error"),
        (call("echo", text=7), "invalid_arguments"),
        (call("pay", amount="many"), "invalid_arguments"),
        (ToolCall(id="c-1", name="pay"), "invalid_arguments"),
    ],
)
async def test_every_call_has_a_result_under_its_id(sent: ToolCall, code: str | None) -> None:
    heard = Heard()
    result = await Executor([echo, pay], policy=ALLOWED, listeners=[heard]).run(sent, at())

    assert (result.error.code if result.error else None) == code
    assert (result.call_id, result.tool_name) == (sent.id, sent.name)
    assert isinstance(result.for_model(), str)
    assert [(event.call, event.result) for event in heard.of(CallFinished)] == [(sent, result)]


async def test_what_is_not_a_call_is_an_error_that_says_what_a_call_is() -> None:
    executor: Any = Executor([pay])
    for sent in ({"id": "c-1", "name": "pay", "arguments": {}}, None, "pay"):
        runs = (executor.run(sent, at()), executor.run_all([sent], at()), executor.guard(sent, at(), print))
        for run in (*runs, executor.submit(sent, at())):
            with pytest.raises(TypeError, match="call must be a ToolCall\\(id=…, name=…, arguments_json=…\\), got "):
                await run


async def test_what_is_not_a_context_is_an_error_that_says_what_a_context_is() -> None:
    executor: Any = Executor([pay])
    sent = call("pay", amount=5)
    for context in ({"session_id": "s-1"}, None, "s-1", ToolContext):
        runs = (executor.run(sent, context), executor.run_all([sent], context), executor.guard(sent, context, print))
        for run in (*runs, executor.submit(sent, context)):
            with pytest.raises(TypeError, match="context must be a ToolContext\\(session_id=…\\), got "):
                await run


def test_an_executor_and_its_policy_show_what_they_have() -> None:
    policy = Policy([Rule.deny("pay", where={"amount": {"above": 5}}), Rule.ask("pay", by="operator")])

    assert repr(Policy()) == "Policy([])"
    assert repr(Executor([pay], policy=policy)) == (
        "Executor([pay], policy=Policy([deny('pay', where={'amount': {'above': 5}}), ask('pay', by='operator')]), "
        "ledger=MemoryLedger)"
    )
    many = ToolRegistry([replace(pay, name=f"pay_{n}") for n in range(20)])
    assert repr(many) == "ToolRegistry(pay_0, pay_1, pay_2, pay_3, pay_4, pay_5, pay_6, pay_7 and 12 more)"


@pytest.mark.proves("PH-41")
async def test_an_unknown_tool_is_named_with_what_was_meant() -> None:
    heard = Heard()
    result = await Executor([echo], listeners=[heard]).run(call("ecko", text="hi", response_id="r-1"), at())

    assert result.error is not None
    assert result.error.code == "tool_not_found"
    assert "`echo`" in result.error.message
    assert heard.names == ["CallFinished"]
    assert heard.of(CallFinished)[0].call.response_id == "r-1"


class Seen:
    """A hook that counts the calls that it was shown."""

    calls = 0

    def before(self, call: ToolCall, tool: object, context: object) -> None:
        self.calls += 1


@pytest.mark.parametrize("hooks", [[], [Seen()]])
@pytest.mark.parametrize("name", ["echo", "pay", "nobody"])
async def test_arguments_that_are_too_long_are_refused_before_anything_parses_them(
    name: str, hooks: list[Seen]
) -> None:
    heard = Heard()
    executor = Executor(
        [echo, pay], policy=ALLOWED, listeners=[heard], hooks=hooks, limits=Limits(max_argument_chars=100)
    )
    long = ToolCall(id="c-1", name=name, arguments_json="[" * 101)  # Parsed, it would be another error.

    for result in (await executor.run(long, at()), *await executor.run_all([long, long], at())):
        assert result.error is not None
        if name == "nobody":
            assert result.error.code == "tool_not_found"
            continue
        assert result.error.code == "invalid_arguments"
        assert "have 101 characters; at most 100 are accepted" in result.error.message
    assert {event.call.arguments_json for event in heard.of(CallFinished)} == {""}
    assert await executor.request_approval(long, at()) is None
    assert [hook.calls for hook in hooks] == [0] * len(hooks)
    guarded = await executor.guard(long, at(), lambda arguments: "it ran")
    assert guarded.error is not None
    assert guarded.error.code == "invalid_arguments"


def fail(value: object) -> Any:
    raise RuntimeError("a function of the developer")


@pytest.mark.parametrize("options", [{"key": fail}, {"lock_key": fail}, {"read_only": True}])
async def test_nobody_is_asked_about_a_call_whose_arguments_a_function_of_the_developer_fails_on(options: Any) -> None:
    if "read_only" in options:

        async def act(amount: Annotated[int, AfterValidator(fail)]) -> None:
            """Act."""
    else:

        async def act(amount: int) -> None:
            """Act."""

    executor = Executor([tool(name="act", **options)(act)])

    assert code_of(await executor.run(call("act", amount=1), at())) == "tool_execution_failed"
    assert await executor.request_approval(call("act", amount=1), at()) is None


@pytest.mark.parametrize("hooks", [[], [Seen()]])
async def test_arguments_of_exactly_the_maximal_length_are_accepted(hooks: list[Seen]) -> None:
    fits = call("echo", text="x" * 50)
    limits = Limits(max_argument_chars=len(fits.arguments_json))
    executor = Executor([echo, pay], limits=limits, hooks=hooks)
    costs = ToolCall(id="c-2", name="pay", arguments_json='{"amount": 5}'.ljust(limits.max_argument_chars))

    assert (await executor.run(fits, at())).ok
    assert await executor.request_approval(costs, at()) is not None
    with pytest.raises(ConfigError, match="max_argument_chars must be at least 1, got 0"):
        Executor([echo], limits=Limits(max_argument_chars=0))


@given(st.lists(st.sampled_from(["echo", "pay", "nobody", "broken"]), max_size=8))
def test_results_come_in_the_order_of_the_calls(names: list[str]) -> None:
    sent = [
        ToolCall(id=f"c-{n}", name=name.replace("broken", "echo"), arguments_json="{")
        if name == "broken"
        else call(name, f"c-{n}", **({"amount": n} if name == "pay" else {"text": f"{n}"}))
        for n, name in enumerate(names)
    ]
    results = asyncio.run(Executor([echo, pay], policy=ALLOWED).run_all(sent, at()))

    assert [result.call_id for result in results] == [message.id for message in sent]
    assert [result.tool_name for result in results] == [message.name for message in sent]
    assert all(
        one.output == (f"Paid {n}." if one.tool_name == "pay" else f"{n}") for n, one in enumerate(results) if one.ok
    )


async def test_calls_without_an_id_are_all_run() -> None:
    ran: list[str] = []

    @tool(concurrency_safe=True)
    async def note(text: str) -> str:
        """Note."""
        await asyncio.sleep(0)
        ran.append(text)
        return text

    @tool(read_only=True, concurrency_safe=True)
    async def look(text: str) -> str:
        """Look."""
        await asyncio.sleep(0)
        return text

    sent = [
        ToolCall(id="", name=name, arguments_json=f'{{"text": "{text}"}}') for name in ("note", "look") for text in "ab"
    ]
    results = await Executor([note, look], policy=ALLOWED).run_all(sent, at())

    assert [result.output for result in results] == ["a", "b", "a", "b"]
    assert ran == ["a", "b"]


@pytest.mark.proves("PH-38", "PH-D15")
async def test_two_sessions_get_their_own_dependencies_and_never_each_others() -> None:
    @tool(read_only=True, concurrency_safe=True)
    async def who(context: ToolContext[Any]) -> str:
        """Who asks."""
        await asyncio.sleep(0)
        return f"{context.deps} {context.session_id} {context.tenant_id} {context.call.id if context.call else ''}"

    executor = Executor([who])
    results = await asyncio.gather(
        *(executor.run(call("who", f"c-{n}"), at(f"s-{n}", tenant_id=f"t-{n}", deps=f"d-{n}")) for n in range(3))
    )

    assert [result.output for result in results] == [f"d-{n} s-{n} t-{n} c-{n}" for n in range(3)]
    assert not any(executor.running_calls(f"s-{n}") for n in range(3))


@pytest.mark.proves("PH-38")
@pytest.mark.parametrize("read_only", [True, False])
async def test_another_tenant_never_gets_the_result_of_a_call_with_the_same_ids(read_only: bool) -> None:
    @tool(read_only=read_only)
    async def balance(context: ToolContext[Any]) -> str:
        """A balance."""
        return f"of {context.tenant_id}"

    executor = Executor([balance], policy=ALLOWED)
    first = await executor.run(call("balance"), at(tenant_id="acme"))
    second = await executor.run(call("balance"), at(tenant_id="globex"))

    assert first.output == "of acme"
    assert second.error is not None
    assert second.error.code == "duplicate_call"


@pytest.mark.proves("GC-22", "GC-23", "PH-40")
@pytest.mark.parametrize("name", ["echo", "pay"])
async def test_every_call_is_reported_when_it_starts_and_when_it_ends(name: str) -> None:
    heard = Heard()
    sent = ToolCall(
        id="c-1",
        name=name,
        arguments_json='{"text": "a"}' if name == "echo" else '{"amount": 1}',
        response_id="r",
        item_id="i",
    )
    result = await Executor([echo, pay], policy=ALLOWED, listeners=[heard]).run(
        sent, at(tenant_id="acme", agent_id="a-1")
    )

    started, finished = heard.of(CallStarted)[0], heard.of(CallFinished)[0]
    assert heard.index(started) < heard.index(finished)
    assert (started.call, started.session_id, started.tenant_id, started.agent_id) == (sent, "s-1", "acme", "a-1")
    assert (finished.call, finished.result, finished.tenant_id) == (sent, result, "acme")


# around


async def test_guard_runs_the_handler_of_another_framework_under_our_rules() -> None:
    heard = Heard()
    executor = Executor(policy=Policy([Rule.deny("wire"), Rule.allow("send")]), listeners=[heard])
    ran: list[str] = []

    async def proceed() -> str:
        ran.append("sent")
        return "sent"

    assert (await executor.guard(call("send", to="bo"), at(), proceed)).output == "sent"
    again = await executor.guard(call("send", to="bo"), at(), proceed)
    denied = await executor.guard(call("wire", "c-2", to="bo"), at(), proceed)
    asked = await executor.guard(call("other", "c-3", to="bo"), at(), proceed)

    assert ran == ["sent"]
    assert again.origin == "replayed"
    assert [item.error.code for item in (denied, asked) if item.error] == ["permission_denied", "approval_required"]
    assert [type(event).__name__ for event in heard.of(CallIgnored)] == ["CallIgnored"]


async def test_guard_of_a_registered_tool_keeps_what_the_tool_says_of_itself() -> None:
    @tool(read_only=True, timeout=3)
    def lookup(key: str) -> str:
        """Look up."""
        raise AssertionError("the other framework runs it")

    executor = Executor([lookup])
    # The arguments are the other framework's to check, and its handler may be a plain function.
    result = await executor.guard(call("lookup", whatever=1), at(), lambda: "theirs")

    assert result.output == "theirs"


async def test_guard_of_a_name_that_is_no_tools_name_gets_a_result_too() -> None:
    result = await Executor().guard(call("a:b"), at(), lambda: "never")

    assert result.error is not None
    assert result.error.code == "tool_not_found"


# fallback


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_is_not_registered_goes_to_the_fallback_under_policy_and_is_recorded(is_async: bool) -> None:
    ran: list[str] = []
    threads: list[str] = []

    def dispatch(call: ToolCall, context: ToolContext[Any]) -> str:
        ran.append(f"{call.name} {call.arguments_json} {context.session_id}")
        threads.append(threading.current_thread().name)
        return "theirs"

    async def dispatch_async(call: ToolCall, context: ToolContext[Any]) -> str:
        return dispatch(call, context)

    heard = Heard()
    executor = Executor(
        [echo],
        policy=Policy([Rule.allow("old_*")]),
        fallback=dispatch_async if is_async else dispatch,
        listeners=[heard],
    )
    result = await executor.run(call("old_pay", amount=1), at())
    again = await executor.run(call("old_pay", amount=1), at())
    asked = await executor.run(call("new_pay", "c-2", amount=1), at())

    assert result.output == "theirs"
    assert ran == ['old_pay {"amount": 1} s-1']
    assert again.origin == "replayed"
    assert asked.error is not None
    assert asked.error.code == "approval_required"  # Nothing is known of it, so that somebody has to agree.
    assert "CallStarted" in heard.names
    assert (threads[0] == threading.current_thread().name) is is_async  # One that may block has a thread of its own.
    assert "old_pay" in str(executor.explain(call("old_pay"), at()))


@pytest.mark.parametrize("name", ["", "a:b", " pay", "x" * 300])
async def test_a_name_that_no_tool_can_have_is_not_found_also_with_a_fallback(name: str) -> None:
    result = await Executor(fallback=lambda call, context: "never").run(ToolCall(id="1", name=name), at())

    assert result.error is not None
    assert result.error.code == "tool_not_found"


async def test_a_model_that_makes_up_names_does_not_fill_the_memory() -> None:
    executor = Executor(policy=ALLOWED, fallback=lambda call, context: call.name)
    for n in range(1_100):
        assert (await executor.run(call(f"made_up_{n}", f"c-{n}"), at())).output == f"made_up_{n}"

    assert len(executor._pool.host_tools._compiled) == 1_000  # pyright: ignore[reportPrivateUsage]
    assert len(executor._pool.host_tools._latest) == 1_000  # pyright: ignore[reportPrivateUsage]


# The sync edge


def test_a_caller_without_a_loop_gets_the_same_result() -> None:
    executor = Executor([echo, pay], policy=ALLOWED)

    assert executor.run_sync(call("echo", text="hi"), at()).output == "hi"
    assert [
        item.output
        for item in executor.run_all_sync([call("pay", "c-2", amount=1), call("echo", "c-3", text="x")], at())
    ] == [
        "Paid 1.",
        "x",
    ]
    assert executor.run_coroutine(executor.approvals.pending()) == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_caller_without_a_loop_guards_the_tools_of_its_host(is_async: bool) -> None:
    ran: list[tuple[object, bool]] = []

    def proceed(arguments: dict[str, Any]) -> str:
        ran.append((arguments["amount"], threading.current_thread().name == "handrail-portal"))
        return f"Paid {arguments['amount']}."

    async def proceed_async(arguments: dict[str, Any]) -> str:
        return proceed(arguments)

    executor = Executor()
    sent, host = call("pay", amount=5), proceed_async if is_async else proceed
    asked = executor.guard_sync(sent, at(), host)
    assert asked.approval is not None
    executor.run_coroutine(executor.approvals.approve(asked.approval.token, by="customer", who="c-1"))

    assert executor.guard_sync(sent, at(turn=2), host).output == "Paid 5."
    assert executor.guard_sync(sent, at(turn=2), host).origin == "replayed"
    assert ran == [(5, is_async)]  # What blocks does not block the loop of the others.


async def test_the_sync_form_refuses_to_block_a_running_loop(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(ConfigError, match="await the async form"):
        Executor([echo]).run_sync(call("echo", text="hi"), at())
    assert list_unawaited(recwarn) == []  # What it would have run is closed.


HERE: ContextVar[str] = ContextVar("HERE", default="nowhere")


@pytest.mark.parametrize("way", ["async", "sync"])
def test_a_sync_handler_may_call_other_tools_through_the_same_executor(way: str) -> None:
    @tool(read_only=True)
    async def inner() -> str:
        """Inner."""
        await asyncio.sleep(0)
        return f"inner {HERE.get()}"

    @tool
    def middle() -> str:
        """Middle."""
        return f"middle {executor.run_sync(call('inner', 'c-3'), at()).output}"

    @tool
    def outer() -> str:
        """Outer."""
        HERE.set("here")
        return f"outer {executor.run_sync(call('middle', 'c-2'), at()).output}"

    executor = Executor(
        [inner, middle, outer], policy=ALLOWED, limits=Limits(max_threads=1), timeouts=Timeouts(call=20)
    )
    result = executor.run_sync(call("outer"), at()) if way == "sync" else asyncio.run(executor.run(call("outer"), at()))

    assert result.output == "outer middle inner here"


def test_many_threads_may_use_one_executor() -> None:
    executor = Executor([echo, pay], policy=ALLOWED)
    outputs: dict[int, str] = {}

    def work(n: int) -> None:
        outputs[n] = executor.run_sync(call("pay", f"c-{n}", amount=n), at(f"s-{n % 3}")).output

    threads = [threading.Thread(target=work, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outputs == {n: f"Paid {n}." for n in range(20)}


# Configuration


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "watch"},
        {"mode": {"pay": "watch"}},
        {"listeners": ["print"]},
        {"listeners": [asyncio.sleep]},
        {"secrets": {"key": "sk-123"}},
    ],
)
def test_a_wrong_setting_is_refused_when_the_executor_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Executor([echo], **wrong)


async def test_a_handler_may_raise_or_return_a_result_of_its_own() -> None:
    @tool
    async def refund(order: str) -> ToolResult:
        """Refund."""
        if order == "closed":
            raise ToolError("It is closed.", code="closed", retryable=True)
        return ToolResult(output={"order": order}, metadata={"by": "desk"}, context=["kept"])

    executor = Executor([refund], policy=ALLOWED)
    good = await executor.run(call("refund", order="o-1"), at())
    bad = await executor.run(call("refund", "c-2", order="closed"), at())

    assert (good.output, good.metadata["by"], good.context, good.call_id) == ({"order": "o-1"}, "desk", ["kept"], "c-1")
    assert bad.error is not None
    assert (bad.error.code, bad.error.message, bad.error.retryable) == ("closed", "It is closed.", True)


@pytest.mark.parametrize(
    ("wanted", "asks"),
    [
        (call("pay", amount=5), True),
        (call("pay", amount="x"), False),
        (call("pay", amount=500), False),
        (call("look"), False),
        (call("nothing"), False),
    ],
)
async def test_a_question_can_be_asked_without_running_anything(wanted: ToolCall, asks: bool) -> None:
    ran: list[str] = []

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    executor = Executor([pay, look], policy=Policy([Rule.deny("pay", where={"amount": {"above": 100}})]))
    question = await executor.request_approval(wanted, at(turn=1))

    assert await executor.approvals.pending() == ([question] if asks else [])
    assert ran == []
    if question is not None:
        await executor.approvals.approve(question.token, by="customer", who="ann")
        assert await executor.request_approval(wanted, at(turn=2)) is None
        assert (await executor.run(wanted, at(turn=2))).ok


@pytest.mark.parametrize(
    ("name", "arguments", "asks"), [("look", {}, True), ("see", {}, False), ("look", {"much": 1}, False)]
)
async def test_a_question_can_be_asked_about_a_read_too(name: str, arguments: dict[str, Any], asks: bool) -> None:
    def run() -> str:
        """Look."""
        raise AssertionError("nothing runs")

    tools = [tool(name=name, read_only=True)(run) for name in ("look", "see")]
    executor = Executor(tools, policy=Policy([Rule.ask("look", by="operator")]))
    question = await executor.request_approval(call(name, **arguments), at())

    assert await executor.approvals.pending() == ([question] if asks else [])


@pytest.mark.parametrize("of_host", [{"schema": {"type": "object"}}, {"flags": ToolFlags()}, {}])
async def test_a_question_about_a_tool_of_a_host_is_asked_if_the_host_says_what_it_is(of_host: dict[str, Any]) -> None:
    executor = Executor()
    question = await executor.request_approval(call("send", to="bo"), at(), **of_host)

    assert await executor.approvals.pending() == ([question] if of_host else [])


async def test_texts_of_exceptions_are_in_the_log_of_the_calls_of_a_debugged_executor_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool(read_only=True)
    async def fail() -> str:
        """Fail."""
        raise ValueError(text)

    text = " ".join(["the", "text", "of", "an", "exception"])  # The log shows the line that raised.

    async def log_of(executor: Executor, id: str) -> str:
        caplog.clear()
        await executor.run(call("fail", id), at())
        return caplog.text

    debugged, plain = Executor([fail], debug=True), Executor([fail])

    assert text in await log_of(debugged, "c-1")
    assert text not in await log_of(plain, "c-2")
    assert text in await log_of(debugged, "c-3")


async def test_a_question_is_not_asked_about_what_a_hook_refuses() -> None:
    class Closed:
        def before(self, call: Any, tool: Any, context: Any) -> None:
            raise ToolError("closed")

    executor = Executor([pay], hooks=[Closed()])

    assert await executor.request_approval(call("pay", amount=5), at()) is None
    assert await executor.approvals.pending() == []


async def test_texts_of_exceptions_of_a_host_are_in_the_log_of_a_debugged_executor_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(arguments: Any) -> None:
        raise ValueError(text)

    text = " ".join(["the", "text", "of", "an", "exception"])
    for debug in (True, False):
        caplog.clear()
        await Executor(policy=ALLOWED, debug=debug).guard(call("send"), at(), fail)
        assert (text in caplog.text) is debug


async def test_the_end_of_a_session_forgets_where_its_values_came_from() -> None:
    executor = Executor([pay])
    mine, other = executor.get_provenance(at("s-1")), executor.get_provenance(at("s-2"))
    await executor.cancel_all("s-1")

    assert executor.get_provenance(at("s-1")) is not mine
    assert executor.get_provenance(at("s-2")) is other


@pytest.mark.parametrize("read_only", [True, False])
async def test_an_executor_whose_calls_have_ended_may_be_used_by_another_loop(read_only: bool) -> None:
    @tool(read_only=read_only)
    async def act(n: int) -> int:
        """Act."""
        await asyncio.sleep(0)
        return n

    executor = Executor([act], policy=ALLOWED)
    here = await executor.run(call("act", "c-1", n=1), at())
    there = await asyncio.to_thread(asyncio.run, executor.run(call("act", "c-2", n=2), at()))
    again = await executor.run(call("act", "c-3", n=3), at())

    assert [item.output for item in (here, there, again)] == [1, 2, 3]


async def test_nobody_is_asked_about_what_is_done_and_somebody_is_about_a_read_that_needs_it() -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    @tool(read_only=True)
    async def look(amount: int) -> str:
        """Look."""
        return "seen"

    policy = Policy([Rule.ask("*", by="operator")])
    executor = Executor([pay, look], policy=policy)
    asked = await executor.run(call("pay", amount=1), at())
    assert asked.approval is not None
    await executor.approvals.approve(asked.approval.token, by="operator", who="ann")
    assert (await executor.run(call("pay", amount=1), at())).ok

    assert await executor.request_approval(call("pay", amount=1), at()) is None
    question = await executor.request_approval(call("look", "c-2", amount=1), at())
    assert question is not None
    assert question.tool == "look"


async def test_a_name_that_a_model_made_up_comes_back_shortened() -> None:
    name, book = "x" * 900_000, Book(can_claim_new=False)
    executor = Executor([echo], policy=ALLOWED, ledger=book)
    long = ToolCall(id="c-2", name=name, arguments_json="[" * 2_000_000)
    results = [await executor.run(sent, at()) for sent in (call(name), call(name, "\x00"), long)]
    book.away = {"recall": -1}
    found = await executor.look_up(call(name), at())
    assert found is not None
    results += [found, await executor.run(call(name), at())]

    assert [code_of(result) for result in results] == [*["tool_not_found"] * 3, "outcome_unknown", "unavailable"]
    assert all(len(result.for_model()) < 1_000 for result in results)
    assert len(str(executor.explain(call(name), at()))) < 1_000


async def test_a_read_with_arguments_that_are_too_long_is_refused_without_the_ledger() -> None:
    @tool(read_only=True)
    async def look(text: str) -> str:
        """Look."""
        return "seen"

    book = Book()
    book.away = {"recall": -1}
    executor = Executor([look], ledger=book, limits=Limits(max_argument_chars=10))
    assert code_of(await executor.run(call("look", text="a" * 20), at())) == "invalid_arguments"
