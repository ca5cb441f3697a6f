"""A call whose outcome is not known stays open: no model reads something final that nobody knows."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail import ConfigError, Executor, ToolContext, ToolError, ToolResult, tool
from handrail.chat import Budget, ChatSession, FileSessionStore
from handrail.execute import Timeouts, run_until_done, run_until_done_sync
from handrail.formats import openai_chat
from handrail.providers import ModelRequest, ToolMessage
from handrail.store import open_store
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls
from tests.execute.helpers import ALLOWED, Book, code_of
from tests.guide.kit import agent_with, needs, plan, scripted

PAY_5 = tool_calls(("pay", {"amount": 5}))
CONTEXT: ToolContext[Any] = ToolContext(session_id="s-1", customer_id="ann")


class Bank:
    """A bank whose answer gets lost, and that may be asked later."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.says: bool | None = None

    def verify(self, arguments: Any, context: Any) -> bool | None:
        return self.says

    def tools(self) -> list[Any]:
        @tool(verify=self.verify, key="amount")
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            raise ConnectionError("the answer got lost")

        @tool(read_only=True)
        async def look() -> str:
            """Look."""
            return "seen"

        return [pay, look]


def codes_in(request: ModelRequest) -> list[str | None]:
    """What the model reads about its calls: the code of each failure, None for what was done."""
    return [
        code_of(result)
        for message in request.messages
        if isinstance(message, ToolMessage)
        for result in message.results
    ]


async def test_a_call_in_doubt_stays_open_until_an_operator_knows_and_the_model_reads_only_that() -> None:
    bank, provider = Bank(), ScriptedProvider([tool_calls(("look", {}), ("pay", {"amount": 5})), "It is paid."])
    executor = Executor(bank.tools(), policy=ALLOWED)
    session = ChatSession(provider, executor, context=CONTEXT)
    first = await session.send("Pay 5.")

    assert (first.stop_reason, [code_of(result) for result in first.results]) == (
        "outcome_unknown",
        [None, "outcome_unknown"],
    )
    assert [call.name for call in session.conversation.open_calls] == ["pay"]
    assert (await session.resume()).stop_reason == "outcome_unknown"
    assert len(provider.requests) == 1

    (doubt,) = await executor.doubts()
    await executor.resolve(session_id="s-1", call_id=doubt.call_id, happened=True, who="bo", reason="receipt 7")
    done = await session.resume()
    assert (done.stop_reason, done.text, bank.paid) == ("completed", "It is paid.", [5])
    assert codes_in(provider.requests[1]) == [None, None]


@asynccontextmanager
async def opened(form: str, folder: Path) -> AsyncGenerator[tuple[Any, Any]]:
    async with open_store(f"sqlite+aiosqlite:///{folder}/handrail.db") as store:
        yield store, FileSessionStore(folder / "sessions") if form == "file" else store.sessions


@pytest.mark.parametrize("form", ["file", "sql"])
@pytest.mark.parametrize(("says", "code"), [(True, None), (False, "tool_execution_failed")])
async def test_a_provisional_result_is_replaced_by_the_truth_after_a_restart(
    tmp_path: Path, form: str, says: bool, code: str | None
) -> None:
    bank = Bank()

    async def play(lines: list[Any], text: str) -> tuple[ChatSession, ScriptedProvider]:
        """A process of its own: nothing is shared with the others but the store."""
        async with opened(form, tmp_path) as (store, sessions):
            executor = Executor(bank.tools(), policy=ALLOWED, ledger=store.ledger, approvals=store.approvals)
            provider = ScriptedProvider(lines)
            session = await ChatSession.load(provider, executor, context=CONTEXT, sessions=sessions, create=True)
            await session.send(text)
            return session, provider

    await play([PAY_5], "Pay 5.")
    session, provider = await play(["I do not know yet."], "Well?")
    assert codes_in(provider.requests[0]) == ["outcome_unknown"]
    assert [call.name for call in session.conversation.unsettled] == ["pay"]
    session, provider = await play(["Still nothing."], "And now?")
    assert codes_in(provider.requests[0]) == ["outcome_unknown"]

    bank.says = says
    session, provider = await play(["Now I know."], "And now?")
    assert codes_in(provider.requests[0]) == [code]
    assert (session.conversation.unsettled, bank.paid) == ((), [5])


async def test_resuming_a_complete_reply_looks_its_provisional_calls_up_without_asking_the_model() -> None:
    bank, provider = Bank(), ScriptedProvider([PAY_5, "I do not know yet.", "It is paid."])
    session = ChatSession(provider, Executor(bank.tools(), policy=ALLOWED), context=CONTEXT)
    await session.send("Pay 5.")
    await session.send("Well?")
    assert (await session.resume()).stop_reason == "outcome_unknown"
    bank.says = True
    found = await session.resume()

    assert (found.stop_reason, [result.ok for result in found.results], len(provider.requests)) == (
        "completed",
        [True],
        2,
    )
    with pytest.raises(ConfigError, match="nothing to resume"):
        await session.resume()
    await session.send("And?")
    assert codes_in(provider.requests[2]) == [None]


OTHER_PROCESS = """
import asyncio, pathlib, sys
from handrail import Executor, Policy, Rule, ToolContext, tool
from handrail.chat import ChatSession
from handrail.store import open_store
from handrail.testing.scripted import ScriptedProvider
from handrail.testing.servers import tool_calls

folder = pathlib.Path(sys.argv[1])

@tool(key="amount")
async def pay(amount: int) -> str:
    "Pay."
    (folder / "begun").touch()
    await asyncio.to_thread(sys.stdin.readline)
    return f"paid {amount}"

async def main():
    async with open_store(f"sqlite+aiosqlite:///{folder}/handrail.db") as store:
        executor = Executor([pay], policy=Policy([Rule.allow("*")]), ledger=store.ledger)
        provider = ScriptedProvider([tool_calls(("pay", {"amount": 5}))])
        context = ToolContext(session_id="s-1", customer_id="ann")
        session = ChatSession(provider, executor, context=context, sessions=store.sessions)
        sending = asyncio.create_task(session.send("Pay 5."))
        while not (folder / "begun").exists():
            await asyncio.sleep(0.01)
        print("begun", flush=True)
        # The process dies after the payment, before the conversation is saved: another one has it now.
        try:
            await sending
        except BaseException as error:
            print(type(error).__name__, flush=True)

asyncio.run(main())
"""


async def test_a_call_that_another_process_runs_is_open_until_that_process_has_its_result(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert await asyncio.to_thread(other.stdout.readline) == "begun\n"
        async with opened("sql", tmp_path) as (store, sessions):
            executor = Executor(Bank().tools(), policy=ALLOWED, ledger=store.ledger, timeouts=Timeouts(in_progress=0))
            provider = ScriptedProvider(["It is being paid.", "It is paid."])
            session = await ChatSession.load(provider, executor, context=CONTEXT, sessions=sessions)
            first = await session.resume()
            assert (first.stop_reason, len(session.conversation.open_calls)) == ("in_progress", 1)
            await session.send("Well?")
            assert codes_in(provider.requests[0]) == ["in_progress"]

            other.stdin.write("\n")
            other.stdin.flush()
            assert await asyncio.to_thread(other.wait, 30) == 0
            assert other.stdout.read() == "StoreError\n"  # Its own copy of the conversation is out of date.
            await session.send("And now?")
            assert codes_in(provider.requests[1]) == [None]
            (message,) = [item for item in provider.requests[1].messages if isinstance(item, ToolMessage)]
            assert [result.for_model() for result in message.results] == ["paid 5"]
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()


@pytest.mark.parametrize("obstacle", ["ledger", "tool", "hook", "budget"])
async def test_no_obstacle_makes_a_call_that_may_have_run_one_that_did_nothing(obstacle: str) -> None:
    bank, ledger = Bank(), Book()
    hooks: list[Any] = []
    provider = ScriptedProvider([PAY_5, "I do not know."])

    def session_with(tools: list[Any], budget: Budget | None = None, **more: Any) -> ChatSession:
        executor = Executor(tools, policy=ALLOWED, ledger=ledger, hooks=hooks)
        return ChatSession(provider, executor, context=CONTEXT, budget=budget, **more)

    session = session_with(bank.tools())
    await session.send("Pay 5.")

    class No:
        async def before(self, call: Any, tool: Any, context: Any) -> Any:
            raise ToolError("not today")

    if obstacle == "ledger":
        ledger.away["recall"] = -1
    if obstacle == "hook":
        hooks.append(No())
    tools = bank.tools()[1:] if obstacle == "tool" else bank.tools()
    budget = Budget(max_calls=0) if obstacle == "budget" else None
    again = session_with(tools, budget, conversation=session.conversation)
    stopped = await again.resume()

    assert (stopped.stop_reason, [code_of(result) for result in stopped.results]) == (
        "outcome_unknown",
        ["outcome_unknown"],
    )
    await again.send("Well?")
    assert codes_in(provider.requests[1]) == ["outcome_unknown"]
    assert bank.paid == [5]


async def test_a_read_only_tool_may_use_the_words_for_something_else() -> None:
    @tool(read_only=True)
    async def look_at_job() -> ToolResult:
        """Look."""
        raise ToolError("The job is not done.", code="in_progress")

    provider = ScriptedProvider([tool_calls(("look_at_job", {})), "It still runs."])
    session = ChatSession(provider, Executor([look_at_job]), context=CONTEXT)
    assert ((await session.send("Done?")).stop_reason, codes_in(provider.requests[1])) == ("completed", ["in_progress"])


@pytest.mark.parametrize("way", ["async", "sync"])
async def test_a_plain_loop_stops_with_an_open_call_and_resumes_with_the_truth(way: str) -> None:
    bank, asked = Bank(), list[list[Any]]()
    calls = [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "pay", "arguments": '{"amount": 5}'}},
    ]
    script = [{"role": "assistant", "tool_calls": calls}, {"role": "assistant", "content": "Paid."}]

    def step(messages: list[Any], definitions: Any) -> Any:
        asked.append(list(messages))
        return {"choices": [{"message": script[len(asked) - 1]}]}

    executor = Executor(bank.tools(), policy=ALLOWED)

    async def run(**more: Any) -> Any:
        given = {"wire": openai_chat, **more}
        if way == "sync":
            return await asyncio.to_thread(run_until_done_sync, step, executor, CONTEXT, **given)
        return await run_until_done(step, executor, CONTEXT, **given)

    first = await run(messages=[{"role": "user", "content": "Pay 5."}])
    assert (first.stop_reason, [code_of(result) for result in first.results]) == (
        "outcome_unknown",
        [None, "outcome_unknown"],
    )
    assert [message["role"] for message in first.messages] == ["user", "assistant"]
    again = await run(resume=first)
    assert (again.stop_reason, len(asked)) == ("outcome_unknown", 1)

    bank.says = True
    done = await run(resume=again)
    assert (done.stop_reason, bank.paid) == ("completed", [5])
    assert [message.get("tool_call_id") for message in asked[1]] == [None, None, "a", "b"]
    assert "unknown" not in str(asked[1])
    with pytest.raises(ConfigError, match="resume"):
        await run(resume=again, messages=[{"role": "user", "content": "Hi."}])


async def test_a_guided_turn_leaves_a_call_in_doubt_open_too() -> None:
    bank = Bank()
    pay, _ = bank.tools()
    judge = scripted([plan(["g1"], needs("pay", {"amount": 5})), plan(["g1"])], ["I do not know yet.", "It is paid."])
    agent = agent_with(judge, policy=ALLOWED)
    await agent.create_guideline("Customer wants to pay", tools=[pay])
    session = agent.session("s-1", customer_id="ann")
    first = await session.send("Pay 5.")
    assert (first.stop_reason, first.text, bank.paid) == ("outcome_unknown", "", [5])
    assert [call.name for call in session.conversation.open_calls] == ["pay"]

    bank.says = True
    done = await session.resume()
    assert (done.stop_reason, bank.paid, session.conversation.open_calls) == ("completed", [5], ())
    last = judge.reply_requests[-1]
    results = [result for message in last.messages if isinstance(message, ToolMessage) for result in message.results]
    assert [code_of(result) for result in results] == [None]
