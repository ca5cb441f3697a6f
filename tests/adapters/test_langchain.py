"""A LangChain agent whose tools run under an executor."""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from handrail import ConfigError, Executor, Policy, Rule, ToolContext, ToolFlags
from handrail.adapters.langchain import HandrailMiddleware, record_decisions
from tests.adapters.faults import FAULTS, expected, play_fault

ASK = Policy([Rule.ask("pay", by="customer"), Rule.allow("*")])
ASK_OPERATOR = Policy([Rule.ask("pay", by="operator"), Rule.allow("*")])
ALLOW = Policy([Rule.allow("*")])
DECLARED = {"pay": ToolFlags(key="invoice_id"), "look": ToolFlags(read_only=True, concurrency_safe=True)}

Step = str | Sequence[tuple[str, str, dict[str, Any]]]


class Model(BaseChatModel):
    """Says one step after the other: a text, or calls as `(id, tool, arguments)`; keeps what it was told."""

    steps: list[Any]
    told: dict[str, str] = {}  # noqa: RUF012  # a field of a Pydantic model
    finish: str = "tool_calls"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> "Model":
        return self

    def _next(self, messages: list[BaseMessage]) -> Step:
        self.told.update(
            {message.tool_call_id: message.text for message in messages if isinstance(message, ToolMessage)}
        )
        return self.steps.pop(0)

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        step = self._next(messages)
        if isinstance(step, str):
            message = AIMessage(step)
        else:
            message = AIMessage("", tool_calls=[{"id": i, "name": n, "args": a} for i, n, a in step])
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(self, messages: list[BaseMessage], *args: Any, **options: Any) -> Any:
        step = self._next(messages)
        if isinstance(step, str):
            for piece in (step[:2], step[2:]):
                yield ChatGenerationChunk(message=AIMessageChunk(piece))
            return
        for number, (call_id, name, arguments) in enumerate(step):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            chunk = tool_call_chunk(name=name, args=text, id=call_id, index=number)
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=[chunk]))
        yield ChatGenerationChunk(message=AIMessageChunk("", response_metadata={"finish_reason": self.finish}))


def pay_call(call_id: str, invoice_id: str = "R-7", amount: int = 100) -> tuple[str, str, dict[str, Any]]:
    return call_id, "pay", {"invoice_id": invoice_id, "amount": amount}


class Desk:
    """An agent with `pay` under an executor, and what was paid."""

    def __init__(
        self,
        *steps: Any,
        policy: Policy = ASK,
        tools: Sequence[Any] = (),
        context: Any = None,
        middleware: Sequence[Any] = (),
    ) -> None:
        self.paid: list[tuple[str, int]] = []
        self.model = Model(steps=list(steps), told={})
        self.executor = Executor(policy=policy, declared=DECLARED)
        self.running = self.most_running = 0
        named = {tool.name for tool in tools}
        own = [self._tool("pay", self._pay), self._tool("look", self._look)]
        self.agent: Any = create_agent(
            self.model,
            [*tools, *(item for item in own if item.name not in named)],
            middleware=[
                HandrailMiddleware(
                    self.executor, context=context or ToolContext(session_id="s-1", customer_id="c-1", turn=1)
                ),
                *middleware,
            ],
            checkpointer=InMemorySaver(),
        )
        self.thread: Any = {"configurable": {"thread_id": uuid.uuid4().hex}}

    @staticmethod
    def _tool(name: str, function: Any) -> Any:
        return StructuredTool.from_function(coroutine=function, name=name, description=name)

    async def _pay(self, invoice_id: str, amount: int) -> str:
        self.paid.append((invoice_id, amount))
        return f"paid {amount}"

    async def _look(self, what: str) -> str:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return f"saw {what}"

    async def run(self, given: Any = None) -> list[Any]:
        """Run until the graph ends or is interrupted, and give the interrupts."""
        first = {"messages": [HumanMessage("Go.")]}
        result = await self.agent.ainvoke(first if given is None else given, self.thread)
        return list(result.get("__interrupt__", ()))

    async def wake(self, interrupts: Sequence[Any], value: Any = True) -> list[Any]:
        return await self.run(Command(resume={item.id: value for item in interrupts}))

    async def approve(self, one: Any, *, by: Any = "customer", **options: Any) -> None:
        await self.executor.approvals.approve(one.value["token"], by=by, who="c-1", **options)


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_fault_pays_twice_loses_a_payment_or_tells_the_model_what_is_not_so(
    fault: str, tmp_path: Path
) -> None:
    assert await play_fault("langchain", fault, tmp_path) == expected(fault)


async def test_a_question_interrupts_the_graph_and_the_approval_in_our_store_lets_it_continue() -> None:
    desk = Desk([pay_call("c1")], "Done.")

    (asked,) = await desk.run()
    (again,) = await desk.wake([asked])
    paid_before = list(desk.paid)
    await desk.approve(asked)

    assert (asked.value["reason"], asked.value["arguments"]) == (
        "approval_required",
        {"invoice_id": "R-7", "amount": 100},
    )
    assert again.value["token"] == asked.value["token"]  # LangGraph's own yes only wakes.
    assert paid_before == []
    assert await desk.wake([again]) == []
    assert desk.paid == [("R-7", 100)]
    assert desk.model.told == {"c1": "paid 100"}


async def test_the_yes_to_another_call_runs_nothing() -> None:
    desk = Desk([pay_call("c1"), pay_call("c2", "R-8", 9_000)], "Done.")

    asked = await desk.run()
    await desk.approve(next(call for call in asked if call.value["call_id"] == "c1"))
    (still,) = await desk.wake(asked)

    assert still.value["call_id"] == "c2"
    assert desk.paid == [("R-7", 100)]


async def test_arguments_that_an_approver_changed_reach_the_tool() -> None:
    desk = Desk([pay_call("c1")], "Done.")
    asked = await desk.run()

    await desk.approve(asked[0], arguments={"invoice_id": "R-7", "amount": 60})
    await desk.wake(asked)

    assert desk.paid == [("R-7", 60)]


async def test_a_doubt_interrupts_until_an_operator_resolves_it() -> None:
    async def pay(invoice_id: str, amount: int) -> str:
        raise ConnectionError("reset")

    desk = Desk([pay_call("c1")], "Done.", policy=ALLOW, tools=[Desk._tool("pay", pay)])

    paused = await desk.run()
    told_before = dict(desk.model.told)
    await desk.executor.resolve(session_id="s-1", call_id="c1", happened=True, who="ann", reason="receipt 12")

    assert [item.value["reason"] for item in paused] == ["outcome_unknown"]
    assert told_before == {}
    assert await desk.wake(paused) == []
    assert "receipt 12" in desk.model.told["c1"]


async def test_an_error_that_langchain_made_a_message_of_is_a_doubt_unless_the_tool_only_reads() -> None:
    async def fail(what: str = "", invoice_id: str = "", amount: int = 0) -> str:
        raise ValueError("broken")

    tools = [Desk._tool(name, fail) for name in ("pay", "look")]
    for tool in tools:
        tool.handle_tool_error = tool.handle_validation_error = "It failed."
        tool.coroutine = _raise_tool_exception
    desk = Desk([("c1", "look", {"what": "x"})], [pay_call("c2")], "Done.", policy=ALLOW, tools=tools)

    paused = await desk.run()

    assert desk.model.told == {"c1": "It failed."}
    assert [item.value["reason"] for item in paused] == ["outcome_unknown"]


async def _raise_tool_exception(**_: Any) -> str:
    from langchain_core.tools import ToolException

    raise ToolException("broken")


async def test_the_tools_own_interrupt_gets_its_own_answer_and_never_the_one_that_woke_us() -> None:
    answers: list[Any] = []

    async def pay(invoice_id: str, amount: int) -> str:
        answers.append(interrupt({"mine": invoice_id}))
        return "paid"

    desk = Desk([pay_call("c1")], "Done.", policy=ASK_OPERATOR, tools=[Desk._tool("pay", pay)])
    asked = await desk.run()
    await desk.approve(asked[0], by="operator")

    own = await desk.wake(asked, "this only wakes")
    assert [item.value for item in own] == [{"mine": "R-7"}]
    assert await desk.wake(own, "the tool's own answer") == []
    assert answers == ["the tool's own answer"]
    assert desk.model.told == {"c1": "paid"}


async def test_a_command_of_a_tool_reaches_the_graph() -> None:
    async def pay(invoice_id: str, amount: int) -> Any:
        return Command(update={"messages": [ToolMessage("paid by command", tool_call_id="c1")]})

    desk = Desk([pay_call("c1")], "Done.", policy=ALLOW, tools=[Desk._tool("pay", pay)])

    assert await desk.run() == []
    assert desk.model.told == {"c1": "paid by command"}


async def test_arguments_that_were_cut_off_and_repaired_never_run() -> None:
    desk = Desk([("c1", "pay", '{"invoice_id": "R-7", "amount": 10')], "Sorry.", policy=ALLOW)
    desk.model.finish = "length"

    async for _ in desk.agent.astream({"messages": [HumanMessage("Go.")]}, desk.thread, stream_mode="messages"):
        pass

    assert desk.paid == []
    assert "cut off" in desk.model.told["c1"]


async def test_parallel_calls_run_together_where_they_may_and_each_gets_its_own_result() -> None:
    desk = Desk([(f"c{n}", "look", {"what": str(n)}) for n in range(4)] + [pay_call("p")], "Done.", policy=ALLOW)

    assert await desk.run() == []
    assert desk.model.told == {**{f"c{n}": f"saw {n}" for n in range(4)}, "p": "paid 100"}
    assert desk.most_running > 1


async def test_a_streamed_graph_is_interrupted_and_continues_like_any_other() -> None:
    desk = Desk([pay_call("c1")], "Done.")

    async for _ in desk.agent.astream({"messages": [HumanMessage("Go.")]}, desk.thread, stream_mode="messages"):
        pass
    asked = (await desk.agent.aget_state(desk.thread)).interrupts
    await desk.approve(asked[0])
    resume = Command(resume={asked[0].id: True})
    texts = [
        chunk.text
        async for chunk, _ in desk.agent.astream(resume, desk.thread, stream_mode="messages")
        if isinstance(chunk, AIMessageChunk)
    ]

    assert "".join(texts) == "Done."
    assert desk.paid == [("R-7", 100)]


async def test_an_agent_can_be_a_tool_of_another_one_and_its_questions_come_through() -> None:
    inner = Desk([pay_call("c1")], "Paid inside.", policy=ASK_OPERATOR)
    inner.agent.checkpointer = None  # A graph inside another one uses the checkpoints of the outer one.

    async def delegate(task: str) -> str:
        result = await inner.agent.ainvoke({"messages": [HumanMessage(task)]})
        return result["messages"][-1].text

    outer = Desk([("d1", "delegate", {"task": "pay"})], "Done.", policy=ALLOW, tools=[Desk._tool("delegate", delegate)])
    asked = await outer.run()
    await inner.approve(asked[0], by="operator")

    assert await outer.wake(asked) == []
    assert outer.model.told == {"d1": "Paid inside."}
    assert inner.paid == [("R-7", 100)]


def test_a_graph_without_an_event_loop_pauses_and_continues() -> None:
    paid: list[str] = []

    def pay(invoice_id: str, amount: int) -> str:
        paid.append(invoice_id)
        return "paid"

    tool = StructuredTool.from_function(func=pay, name="pay", description="pay")
    desk = Desk([pay_call("c1")], "Done.", tools=[tool])

    asked = desk.agent.invoke({"messages": [HumanMessage("Go.")]}, desk.thread)["__interrupt__"]
    desk.executor.run_coroutine(desk.approve(asked[0]))
    result = desk.agent.invoke(Command(resume=True), desk.thread)

    assert result["messages"][-1].text == "Done."
    assert paid == ["R-7"]


async def test_the_context_comes_from_the_runtime() -> None:
    def make(runtime: Any) -> ToolContext[None]:
        return ToolContext(session_id=runtime.config["configurable"]["thread_id"], customer_id="c-1", turn=1)

    desk = Desk([pay_call("c1")], context=make)

    (asked,) = await desk.run()

    pending = await desk.executor.approvals.get(asked.value["token"])
    assert pending is not None
    assert pending.session_id == desk.thread["configurable"]["thread_id"]


class AddTool(AgentMiddleware[Any, Any, Any]):
    """Adds a tool at run time, which the agent was not built with."""

    def __init__(self, tool: Any) -> None:
        super().__init__()
        self.added = tool

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(tool=self.added) if request.tool is None else request)


async def test_a_tool_that_another_middleware_adds_at_run_time_is_guarded_like_any_other() -> None:
    paid: list[str] = []

    async def send(invoice_id: str) -> str:
        paid.append(invoice_id)
        return "sent"

    call = ("c1", "send", {"invoice_id": "R-7"})
    desk = Desk(
        [call],
        "Done.",
        middleware=[AddTool(Desk._tool("send", send))],
        policy=Policy([Rule.ask("send", by="customer")]),
    )

    (asked,) = await desk.run()
    assert (asked.value["tool"], paid) == ("send", [])
    await desk.approve(asked)
    assert await desk.wake([asked]) == []
    assert paid == ["R-7"]
    assert desk.model.told == {"c1": "sent"}


async def test_a_tool_that_nobody_has_did_nothing_and_is_no_doubt() -> None:
    desk = Desk([("c1", "invented", {})], "Sorry.", policy=ALLOW)

    assert await desk.run() == []
    assert "invented is not a valid tool" in desk.model.told["c1"]
    assert await desk.executor.doubts() == []


async def test_a_retry_between_us_and_the_tool_runs_it_once_and_tells_the_developer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entered: list[str] = []

    async def pay(invoice_id: str, amount: int) -> str:
        entered.append(invoice_id)
        raise ConnectionError("reset")

    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False)
    desk = Desk([pay_call("c1")], "Done.", policy=ALLOW, tools=[Desk._tool("pay", pay)], middleware=[retry])

    paused = await desk.run()

    assert entered == ["R-7"]
    assert [item.value["reason"] for item in paused] == ["outcome_unknown"]
    assert "Place Handrail innermost" in caplog.text


async def test_a_tool_that_only_reads_may_be_retried_inside() -> None:
    entered: list[str] = []

    async def look(what: str) -> str:
        entered.append(what)
        if len(entered) < 3:
            raise ConnectionError("reset")
        return "seen"

    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False)
    call = ("c1", "look", {"what": "x"})
    desk = Desk([call], "Done.", policy=ALLOW, tools=[Desk._tool("look", look)], middleware=[retry])

    assert await desk.run() == []
    assert (len(entered), desk.model.told) == (3, {"c1": "seen"})


async def test_in_a_tool_node_no_answer_reaches_a_question_of_another_tool() -> None:
    answers: list[Any] = []
    desk = Desk()

    async def delete(name: str) -> str:
        answers.append(interrupt({"delete": name}))
        return f"deleted: {answers[-1]}"

    middleware = HandrailMiddleware(desk.executor, context=ToolContext(session_id="s-1", customer_id="c-1", turn=1))
    tools = [Desk._tool("pay", desk._pay), Desk._tool("delete", delete)]
    graph: Any = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools, awrap_tool_call=middleware.awrap_tool_call))
    graph.add_edge(START, "tools")
    agent = graph.compile(checkpointer=InMemorySaver())
    calls = [{"id": i, "name": n, "args": a} for i, n, a in (pay_call("c1"), ("c2", "delete", {"name": "x"}))]

    first = await agent.ainvoke({"messages": [AIMessage("", tool_calls=calls)]}, desk.thread)
    (asked,) = first["__interrupt__"]
    await desk.executor.approvals.approve(
        (await desk.executor.approvals.pending(session_id="s-1"))[0].token, by="customer", who="c-1"
    )
    result = await agent.ainvoke(Command(resume={asked.id: "no"}), desk.thread)

    assert asked.value == {"delete": "x"}  # The question of the tool, and none of ours.
    assert answers == ["no"]
    told = {message.tool_call_id: message.text for message in result["messages"] if isinstance(message, ToolMessage)}
    assert told["c2"] == "deleted: no"
    assert desk.paid == [("R-7", 100)]  # It was approved meanwhile, and runs once.


async def test_a_tool_that_only_reads_gets_the_answer_to_its_own_interrupt() -> None:
    async def look(what: str) -> str:
        return f"saw {interrupt({'which': what})}"

    desk = Desk([("c1", "look", {"what": "x"})], "Done.", policy=ALLOW, tools=[Desk._tool("look", look)])

    asked = await desk.run()
    assert await desk.wake(asked, "the left one") == []
    assert desk.model.told == {"c1": "saw the left one"}


FIXED = ToolContext(session_id="s-1", customer_id="c-1")
"""The application counts no turns: the adapter counts them in the history."""


async def test_a_wanted_repeat_in_the_next_turn_is_asked_about_although_the_first_one_was_woken() -> None:
    desk = Desk([pay_call("c1")], "Done.", [pay_call("c2")], "Done again.", context=FIXED)
    (first,) = await desk.run()
    await desk.approve(first)
    assert await desk.wake([first]) == []

    (again,) = await desk.run({"messages": [HumanMessage("Once more.")]})
    await desk.approve(again)

    assert await desk.wake([again]) == []
    assert desk.paid == [("R-7", 100), ("R-7", 100)]


async def test_each_decision_of_a_person_is_recorded_for_its_own_call() -> None:
    desk = Desk([pay_call("c1"), pay_call("c2", "R-8"), pay_call("c3", "R-9")], "Done.")
    asked = sorted(await desk.run(), key=lambda one: one.value["call_id"])

    edited = {"name": "pay", "args": {"invoice_id": "R-9", "amount": 5}}
    decisions = [
        {"type": "approve"},
        {"type": "reject", "message": "Too much."},
        {"type": "edit", "edited_action": edited},
    ]
    command = await record_decisions(desk.executor, asked, decisions, session_id="s-1", by="customer", who="c-1")

    assert await desk.run(command) == []
    assert sorted(desk.paid) == [("R-7", 100), ("R-9", 5)]
    assert "Too much." in desk.model.told["c2"]


async def test_an_edit_may_not_change_the_tool_and_an_unknown_decision_decides_nothing() -> None:
    desk = Desk([pay_call("c1")], "Done.")
    asked = await desk.run()
    other = {"type": "edit", "edited_action": {"name": "delete", "args": {}}}

    for decision in (other, {"type": "shrug"}):
        with pytest.raises(ConfigError):
            await record_decisions(desk.executor, asked, [decision], session_id="s-1", by="customer", who="c-1")

    (question,) = await desk.executor.approvals.pending(session_id="s-1")
    assert question.state == "pending"


def test_the_example_pauses_for_an_operator_and_pays_once(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "examples.md").read_text("utf-8").split("\n## langgraph_agent.py\n")[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}

    ended = subprocess.run(
        [sys.executable, root / "examples" / "langgraph_agent.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == page.split("```text\n")[1].split("```")[0]


async def test_the_persons_messages_are_the_customers_words_and_a_summary_is_not() -> None:
    where = {"invoice_id": {"from": ["customer", "tool:look"]}}
    policy = Policy([Rule.allow("look"), Rule.allow("pay", where=where)])
    desk = Desk([pay_call("1", "R-TYPED")], "Paid.", policy=policy)
    done = await desk.agent.ainvoke({"messages": [HumanMessage("Pay R-TYPED")]}, desk.thread)
    assert done["messages"][-1].text == "Paid."
    assert desk.paid == [("R-TYPED", 100)]

    desk = Desk([pay_call("1", "R-SUMMARY")], "Paid.", policy=policy)
    summary = HumanMessage(
        "Here is a summary of the conversation to date:\n\nPay R-SUMMARY",
        additional_kwargs={"lc_source": "summarization"},
    )
    paused = await desk.agent.ainvoke({"messages": [summary, HumanMessage("Go on")]}, desk.thread)
    seen = paused["__interrupt__"][0].value["seen"]["invoice_id"]
    assert seen == "not from customer or tool:look; not seen before in this conversation"
    assert desk.paid == []
