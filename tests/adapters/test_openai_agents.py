"""An agent of the OpenAI Agents SDK whose function tools run under an executor."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    RunState,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    Usage,
    WebSearchTool,
    function_tool,
)
from agents.mcp import MCPServer
from msgspec import structs
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
)

from handrail import ConfigError, Executor, Policy, Rule, Tool, ToolCall, ToolContext, ToolError, ToolFlags
from handrail.adapters.openai_agents import RunPausedError, guard_agent, guard_tools, record_decision
from handrail.errors import ApprovalError
from tests.adapters.faults import FAULTS, expected, play_fault

ASK = Policy([Rule.ask("pay", by="customer"), Rule.allow("*")])
ALLOW = Policy([Rule.allow("*")])
DECLARED = {"pay": ToolFlags(key="invoice_id"), "look": ToolFlags(read_only=True, concurrency_safe=True)}
QUIET = RunConfig(tracing_disabled=True)

Step = str | Sequence[tuple[str, str, dict[str, Any]]]


class ScriptedModel(Model):
    """Says one step after the other: a text, or calls as `(id, tool, arguments)`; keeps what it was told."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.told: dict[str, str] = {}

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        for item in [] if isinstance(input, str) else input:
            if item.get("type") == "function_call_output":
                self.told[item["call_id"]] = item["output"]
        step = self.steps.pop(0)
        if isinstance(step, str):
            text = ResponseOutputText(text=step, type="output_text", annotations=[])
            output: list[Any] = [
                ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
            ]
        else:
            output = [
                ResponseFunctionToolCall(call_id=i, name=n, arguments=json.dumps(a), type="function_call")
                for i, n, a in step
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    async def stream_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> Any:
        """As the Responses API streams: each item once it is whole, then the response."""
        output = (await self.get_response(system_instructions, input)).output
        for number, item in enumerate(output):
            yield ResponseOutputItemDoneEvent(
                item=item, output_index=number, sequence_number=number, type="response.output_item.done"
            )
        response = Response(
            id="r",
            created_at=0,
            model="scripted",
            object="response",
            output=output,
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
        )
        yield ResponseCompletedEvent(response=response, sequence_number=len(output), type="response.completed")


def pay_call(call_id: str, invoice_id: str = "R-7", amount: int = 100) -> tuple[str, str, dict[str, Any]]:
    return call_id, "pay", {"invoice_id": invoice_id, "amount": amount}


class Desk:
    """An agent with `pay` under an executor, and what was paid."""

    def __init__(
        self,
        *steps: Step,
        policy: Policy = ASK,
        pay: Callable[..., Any] | None = None,
        hooks: Sequence[object] = (),
        **options: Any,
    ) -> None:
        self.paid: list[tuple[str, int]] = []
        self.running = self.most_running = 0
        self.model = ScriptedModel(*steps)
        self.executor = Executor(policy=policy, declared=DECLARED, hooks=hooks)
        self.tools: list[Any] = [
            function_tool(pay or self._pay, name_override="pay", **options),
            function_tool(self._look, name_override="look"),
        ]
        context = ToolContext(session_id="s-1", customer_id="c-1", turn=1)
        self.agent = Agent(
            name="payer", model=self.model, tools=guard_tools(self.tools, self.executor, context=context)
        )
        self.state = ""

    async def _pay(self, invoice_id: str, amount: int) -> str:
        self.paid.append((invoice_id, amount))
        return f"paid {amount}"

    async def _look(self, what: str) -> str:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return f"saw {what}"

    async def run(self) -> Any:
        return self._keep(await Runner.run(self.agent, "Go.", run_config=QUIET))

    async def wake(self) -> Any:
        """Resume from the saved state, with the SDK's own yes to everything that waits."""
        state = await RunState.from_string(self.agent, self.state)
        for item in state.get_interruptions():
            state.approve(item)
        return self._keep(await Runner.run(self.agent, state, run_config=QUIET))

    async def approve(self, **options: Any) -> None:
        """Approve the oldest question."""
        question = (await self.executor.approvals.pending(session_id="s-1"))[0]
        await self.executor.approvals.approve(question.token, by="customer", who="c-1", **options)

    def _keep(self, result: Any) -> Any:
        if result.interruptions:
            self.state = result.to_state().to_string()
        return result


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_fault_pays_twice_loses_a_payment_or_tells_the_model_what_is_not_so(
    fault: str, tmp_path: Path
) -> None:
    assert await play_fault("openai_agents", fault, tmp_path) == expected(fault)


async def test_a_question_interrupts_the_run_and_the_approval_in_our_store_lets_it_continue() -> None:
    desk = Desk([pay_call("c1")], "Done.")

    asked = await desk.run()
    with pytest.raises(RunPausedError) as paused:
        await desk.wake()  # The SDK's own yes only wakes.
    paid_before = list(desk.paid)
    await desk.approve()

    assert [interruption.call_id for interruption in asked.interruptions] == ["c1"]
    assert paused.value.pause["reason"] == "approval_required"
    assert paid_before == []
    assert (await desk.wake()).final_output == "Done."
    assert desk.paid == [("R-7", 100)]
    assert desk.model.told == {"c1": "paid 100"}


async def test_the_yes_to_another_call_runs_nothing() -> None:
    desk = Desk([pay_call("c1"), pay_call("c2", "R-8", 9_000)], "Done.")

    await desk.run()
    await desk.approve()
    with pytest.raises(RunPausedError) as paused:
        await desk.wake()

    assert paused.value.pause["call_id"] == "c2"
    assert ("R-8", 9_000) not in desk.paid


async def test_arguments_that_an_approver_changed_reach_the_tool() -> None:
    desk = Desk([pay_call("c1")], "Done.")

    await desk.run()
    await desk.approve(arguments={"invoice_id": "R-7", "amount": 60})
    await desk.wake()

    assert desk.paid == [("R-7", 60)]


async def test_a_doubt_ends_the_run_without_a_word_to_the_model_until_an_operator_resolves_it() -> None:
    async def pay(invoice_id: str, amount: int) -> str:
        raise ConnectionError("reset")

    desk = Desk([pay_call("c1")], "Done.", pay=pay)
    await desk.run()
    await desk.approve()

    with pytest.raises(RunPausedError) as paused:
        await desk.wake()
    told_before = dict(desk.model.told)
    await desk.executor.resolve(session_id="s-1", call_id="c1", happened=True, who="ann", reason="receipt 12")

    assert paused.value.pause["reason"] == "outcome_unknown"
    assert told_before == {}
    assert (await desk.wake()).final_output == "Done."
    assert "receipt 12" in desk.model.told["c1"]


async def test_a_tool_error_means_that_nothing_happened_and_the_model_reads_it() -> None:
    async def pay(invoice_id: str, amount: int) -> str:
        raise ToolError("The account is closed.")

    desk = Desk([pay_call("c1")], "Done.", policy=ALLOW, pay=pay)

    assert (await desk.run()).final_output == "Done."
    assert "The account is closed." in desk.model.told["c1"]
    assert await desk.executor.doubts() == []


async def test_the_tools_own_timeout_is_a_doubt_and_not_a_failure() -> None:
    async def pay(invoice_id: str, amount: int) -> str:
        await asyncio.Event().wait()
        return ""

    desk = Desk([pay_call("c1")], "Done.", policy=ALLOW, pay=pay, timeout=0.01)

    with pytest.raises(RunPausedError) as paused:
        await desk.run()

    assert paused.value.pause["reason"] == "outcome_unknown"


async def test_the_tools_own_approval_and_guardrails_stay() -> None:
    async def reject(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("Not on Sundays.")

    own = Desk([pay_call("c1")], "Done.", policy=ALLOW, needs_approval=True)
    guarded = Desk(
        [pay_call("c1")],
        "Done.",
        policy=ALLOW,
        tool_input_guardrails=[ToolInputGuardrail(guardrail_function=reject, name="sundays")],
    )

    asked = await own.run()
    await guarded.run()

    assert [interruption.call_id for interruption in asked.interruptions] == ["c1"]
    assert (await own.wake()).final_output == "Done."
    assert own.paid == [("R-7", 100)]
    assert guarded.model.told == {"c1": "Not on Sundays."}
    assert guarded.paid == []


async def test_parallel_calls_run_together_where_they_may_and_each_gets_its_own_result() -> None:
    desk = Desk([(f"c{n}", "look", {"what": str(n)}) for n in range(4)] + [pay_call("p")], "Done.", policy=ALLOW)

    await desk.run()

    assert desk.model.told == {**{f"c{n}": f"saw {n}" for n in range(4)}, "p": "paid 100"}
    assert desk.most_running > 1


async def test_a_streamed_run_is_interrupted_and_continues_like_any_other() -> None:
    desk = Desk([("l1", "look", {"what": "x"}), pay_call("c1")], "Done.")
    streamed: list[str] = []

    async def stream(given: Any) -> Any:
        result = Runner.run_streamed(desk.agent, given, run_config=QUIET)
        async for event in result.stream_events():
            if event.type == "run_item_stream_event":
                streamed.append(event.name)
        return result

    async def wake(saved: str) -> Any:
        state = await RunState.from_string(desk.agent, saved)
        for item in state.get_interruptions():
            state.approve(item)
        return await stream(state)

    asked = await stream("Go.")
    saved = asked.to_state().to_string()
    with pytest.raises(RunPausedError) as paused:
        await wake(saved)  # The SDK's own yes only wakes.
    paid_before = list(desk.paid)
    await desk.approve()
    streamed.clear()
    done = await wake(saved)

    assert [interruption.call_id for interruption in asked.interruptions] == ["c1"]
    assert paused.value.pause["reason"] == "approval_required"
    assert paid_before == []
    assert done.final_output == "Done."
    assert streamed == ["tool_output", "message_output_created"]
    assert desk.paid == [("R-7", 100)]
    assert desk.model.told == {"l1": "saw x", "c1": "paid 100"}


async def test_an_agent_as_a_tool_is_left_alone_and_the_questions_of_its_tools_come_through() -> None:
    inner = Desk([pay_call("c1")], "Paid inside.")
    tool = inner.agent.as_tool("delegate", "Delegates.")
    outer_model = ScriptedModel([("d1", "delegate", {"input": "pay"})], "Done.")
    context = ToolContext(session_id="s-1", customer_id="c-1", turn=1)
    outer = Agent(name="boss", model=outer_model, tools=guard_tools([tool], inner.executor, context=context))

    asked = await Runner.run(outer, "Go.", run_config=QUIET)
    await inner.approve()
    state = asked.to_state()
    for item in asked.interruptions:
        state.approve(item)
    result = await Runner.run(outer, state, run_config=QUIET)

    assert [interruption.call_id for interruption in asked.interruptions] == ["c1"]
    assert result.final_output == "Done."
    assert inner.paid == [("R-7", 100)]
    assert outer_model.told == {"d1": "Paid inside."}


def test_a_tool_that_runs_elsewhere_cannot_be_guarded() -> None:
    with pytest.raises(ConfigError, match="WebSearchTool runs elsewhere"):
        guard_tools([WebSearchTool()], Executor(), context=ToolContext(session_id="s-1"))


def test_the_tool_that_was_given_is_not_changed() -> None:
    desk = Desk()
    given: FunctionTool = desk.tools[0]

    assert given.needs_approval is False
    assert desk.agent.tools[0] is not given


async def run_turns(agent: Any, *inputs: str, decide: Any) -> None:
    """A conversation: each message with the history before it; what interrupts is decided by `decide(state, item)`."""
    history: list[Any] = []
    for text in inputs:
        result = await Runner.run(agent, [*history, {"role": "user", "content": text}], run_config=QUIET)
        while result.interruptions:
            state = result.to_state()
            for item in result.interruptions:
                await decide(state, item)
            result = await Runner.run(agent, state, run_config=QUIET)
        history = result.to_input_list()


async def test_a_wanted_repeat_in_the_next_turn_is_asked_about_although_the_first_one_was_woken() -> None:
    desk = Desk([pay_call("c1")], "Done.", [pay_call("c2")], "Done again.")
    context = ToolContext(session_id="s-1", customer_id="c-1")
    agent = desk.agent.clone(tools=guard_tools(desk.tools, desk.executor, context=context))
    asked: list[str] = []

    async def decide(state: Any, item: Any) -> None:
        asked.append(item.raw_item.call_id)
        await record_decision(desk.executor, state, item, session_id="s-1", by="customer", who="c-1", approve=True)

    await run_turns(agent, "Pay R-7.", "Once more.", decide=decide)

    assert asked == ["c1", "c2"]
    assert desk.paid == [("R-7", 100), ("R-7", 100)]


async def test_each_decision_of_a_person_is_recorded_for_its_own_call() -> None:
    desk = Desk([pay_call("c1"), pay_call("c2", "R-8"), pay_call("c3", "R-9")], "Done.")
    decisions: dict[str, dict[str, Any]] = {
        "c1": {"approve": True},
        "c2": {"approve": False, "reason": "Too much."},
        "c3": {"approve": True, "arguments": {"invoice_id": "R-9", "amount": 5}},
    }

    async def decide(state: Any, item: Any) -> None:
        decision = decisions[item.raw_item.call_id]
        await record_decision(desk.executor, state, item, session_id="s-1", by="customer", who="c-1", **decision)

    await run_turns(desk.agent, "Go.", decide=decide)

    assert sorted(desk.paid) == [("R-7", 100), ("R-9", 5)]
    assert "Too much." in desk.model.told["c2"]
    assert {approval.state for approval in await desk.executor.approvals.history(session_id="s-1")} == {
        "used",
        "denied",
    }


async def test_cut_arguments_make_no_question_and_run_nothing() -> None:
    desk = Desk([pay_call("c1")], "I cannot read that.")

    class CutModel(ScriptedModel):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
            response = await super().get_response(system_instructions, input)
            for item in response.output:
                if isinstance(item, ResponseFunctionToolCall):
                    item.arguments = item.arguments[:-3]
            return response

    model = CutModel(*desk.model.steps)
    result = await Runner.run(desk.agent.clone(model=model), "Go.", run_config=QUIET)
    questions = await desk.executor.approvals.pending(session_id="s-1")
    # The SDK interrupts for arguments that it cannot read, whatever the tool says: its own yes only wakes the call.
    state = result.to_state()
    for item in result.interruptions:
        state.approve(item)
    await Runner.run(desk.agent.clone(model=model), state, run_config=QUIET)

    assert questions == []
    assert desk.paid == []
    assert "tool_args_parse_error" in model.told["c1"]


class PayServer(MCPServer):
    """An MCP server with `pay`."""

    def __init__(self, *, is_error: bool = False) -> None:
        super().__init__()
        self.is_error = is_error
        self.paid: list[Any] = []

    @property
    def name(self) -> str:
        return "bank"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Any]:
        schema = {"type": "object", "properties": {"invoice_id": {"type": "string"}, "amount": {"type": "integer"}}}
        return [mcp_types.Tool(**{"name": "pay", "inputSchema": schema})]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        self.paid.append(arguments)
        text = "The account is closed." if self.is_error else "paid"
        return mcp_types.CallToolResult(
            **{"content": [mcp_types.TextContent(type="text", text=text)], "isError": self.is_error}
        )

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


async def test_the_tools_of_mcp_servers_are_guarded_also_in_a_clone() -> None:
    server = PayServer()
    executor = Executor(policy=ALLOW, declared=DECLARED)
    context = ToolContext(session_id="s-1", customer_id="c-1")
    model = ScriptedModel([pay_call("c1")], [pay_call("c2")], "Done.")
    guarded = guard_agent(Agent(name="payer", model=model, mcp_servers=[server]), executor, context=context)

    await Runner.run(guarded.clone(name="clone"), "Go.", run_config=QUIET)

    assert server.paid == [{"invoice_id": "R-7", "amount": 100}]
    assert "paid" in str(model.told["c2"])


async def test_what_an_mcp_server_calls_an_error_did_nothing_and_may_be_tried_again() -> None:
    server = PayServer(is_error=True)
    executor = Executor(policy=ALLOW, declared=DECLARED)
    context = ToolContext(session_id="s-1", customer_id="c-1")
    model = ScriptedModel([pay_call("c1")], [pay_call("c2")], "Done.")
    guarded = guard_agent(Agent(name="payer", model=model, mcp_servers=[server]), executor, context=context)

    await Runner.run(guarded, "Go.", run_config=QUIET)

    assert len(server.paid) == 2
    assert "The account is closed." in model.told["c2"]
    assert await executor.doubts() == []


async def test_a_tool_that_the_provider_runs_is_named_and_another_kind_of_agent_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor = Executor(policy=ALLOW)
    context = ToolContext(session_id="s-1", customer_id="c-1")

    guard_agent(Agent(name="searcher", tools=[WebSearchTool()]), executor, context=context)

    class Other(Agent[Any]):
        pass

    assert "WebSearchTool of the agent 'searcher' runs elsewhere, without Handrail" in caplog.text
    with pytest.raises(ConfigError, match="agent must be an Agent, got Other"):
        guard_agent(Other(name="x"), executor, context=context)


class AddTip:
    """A hook of the host that changes what runs."""

    def before(self, call: ToolCall, tool: Tool[..., Any], context: ToolContext[Any]) -> ToolCall:
        given = json.loads(call.arguments_json)
        return structs.replace(call, arguments_json=json.dumps({**given, "amount": given["amount"] + 5}))


async def test_a_yes_to_what_the_interruption_shows_runs_nothing_else() -> None:
    desk = Desk([pay_call("c1")], "Done.", hooks=[AddTip()])
    item = (await desk.run()).interruptions[0]
    state = await RunState.from_string(desk.agent, desk.state)
    decided: dict[str, Any] = {"session_id": "s-1", "by": "customer", "who": "c-1", "approve": True}

    with pytest.raises(ApprovalError, match="other arguments than were shown"):
        await record_decision(desk.executor, state, item, **decided)
    (question,) = await desk.executor.approvals.pending(session_id="s-1")
    await record_decision(desk.executor, state, item, arguments=question.arguments, **decided)
    await Runner.run(desk.agent, state, run_config=QUIET)

    assert json.loads(item.arguments or "") == {"invoice_id": "R-7", "amount": 100}
    assert desk.paid == [("R-7", 105)]
