"""A LiveKit agent whose function tools run under an executor."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from livekit.agents import Agent, AgentSession, AgentTask, RunContext, function_tool
from livekit.agents.llm import (
    LLM,
    ChatChunk,
    ChoiceDelta,
    FunctionToolCall,
    LLMStream,
    StopResponse,
    ToolError,
    Toolset,
)

from handrail import ConfigError, Executor, Policy, Rule, ToolContext, ToolFlags
from handrail.adapters.livekit import guard_agent, guard_tools
from handrail.core.locale_texts import load_locale

ASK = Policy([Rule.ask("pay", by="customer"), Rule.allow("*")])
ALLOW = Policy([Rule.allow("*")])
DECLARED = {"pay": ToolFlags(key="invoice_id"), "look": ToolFlags(read_only=True, concurrency_safe=True)}

Step = str | Sequence[tuple[str, str, dict[str, Any]]]


class Stream(LLMStream):
    async def _run(self) -> None:
        model = self._llm
        assert isinstance(model, Model)
        for item in self._chat_ctx.items:
            if item.type == "function_call_output":
                model.told[item.call_id] = item.output
        step = model.steps.pop(0)
        calls = [
            FunctionToolCall(name=name, arguments=json.dumps(arguments), call_id=call_id)
            for call_id, name, arguments in (() if isinstance(step, str) else step)
        ]
        delta = ChoiceDelta(role="assistant", content=step if isinstance(step, str) else None, tool_calls=calls)
        self._event_ch.send_nowait(ChatChunk(id="r", delta=delta))


class Model(LLM):
    """Says one step after the other: a text, or calls as `(id, tool, arguments)`; keeps what it was told."""

    def __init__(self, *steps: Step) -> None:
        super().__init__()
        self.steps = list(steps)
        self.told: dict[str, str] = {}

    def chat(self, *, chat_ctx: Any, tools: Any = None, conn_options: Any = None, **options: Any) -> LLMStream:
        from livekit.agents import APIConnectOptions

        return Stream(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=conn_options or APIConnectOptions())


def pay_call(call_id: str, invoice_id: str = "R-7", amount: int = 100) -> tuple[str, str, dict[str, Any]]:
    return call_id, "pay", {"invoice_id": invoice_id, "amount": amount}


class Desk:
    """An agent with `pay` under an executor, and what was paid."""

    def __init__(self, *steps: Step, policy: Policy = ASK, pay: Callable[..., Any] | None = None) -> None:
        self.paid: list[tuple[str, int]] = []
        self.turn = 0
        self.model = Model(*steps)
        self.executor = Executor(policy=policy, declared=DECLARED)
        self.tools = [function_tool(pay or self._pay, name="pay", description="Pay.")]

    async def _pay(self, invoice_id: str, amount: int) -> str:
        self.paid.append((invoice_id, amount))
        return f"paid {amount}"

    def context(self, run: RunContext[Any]) -> ToolContext[None]:
        assert run.function_call.name == "pay"
        return ToolContext(session_id="s-1", customer_id="c-1", turn=self.turn)

    async def talk(self, *texts: str, before: Callable[[int], Any] | None = None) -> None:
        agent = Agent(instructions="Pay.", tools=guard_tools(self.tools, self.executor, context=self.context))
        async with AgentSession(llm=self.model) as session:
            await session.start(agent)
            for number, text in enumerate(texts):
                self.turn = number
                if before is not None:
                    await before(number)
                await session.run(user_input=text)

    async def approve(self, turn: int) -> None:
        if turn:
            for question in await self.executor.approvals.pending(session_id="s-1"):
                await self.executor.approvals.approve(question.token, by="customer", who="c-1")


async def test_a_question_is_told_to_the_model_and_after_the_customers_yes_in_a_later_turn_it_runs() -> None:
    desk = Desk([pay_call("c1")], "May I?", [pay_call("c2")], "Done.")

    await desk.talk("Pay R-7.", "Yes.", before=desk.approve)

    assert '"error":"approval_required"' in desk.model.told["c1"]
    assert desk.model.told["c2"] == "paid 100"
    assert desk.paid == [("R-7", 100)]


async def test_without_an_approval_it_never_runs() -> None:
    desk = Desk([pay_call("c1")], "May I?", [pay_call("c2")], "May I?")

    await desk.talk("Pay R-7.", "Yes.")

    assert '"error":"approval_required"' in desk.model.told["c2"]
    assert desk.paid == []


async def test_a_repeated_call_gets_what_was_recorded() -> None:
    desk = Desk([pay_call("c1")], [pay_call("c2")], "Done.", policy=ALLOW)

    await desk.talk("Pay R-7.")

    assert desk.model.told["c2"].startswith("[Already done at")
    assert desk.paid == [("R-7", 100)]


async def test_a_tool_error_means_that_nothing_happened_and_any_other_exception_is_a_doubt() -> None:
    attempts: list[Exception] = [ToolError("closed today"), ConnectionError("reset")]

    async def pay(invoice_id: str, amount: int) -> str:
        raise attempts.pop(0)

    desk = Desk([pay_call("c1")], [pay_call("c2")], [pay_call("c3")], "Done.", policy=ALLOW, pay=pay)

    await desk.talk("Pay R-7.")

    assert "closed today" in desk.model.told["c1"]
    assert '"error":"outcome_unknown"' in desk.model.told["c2"]
    assert '"error":"outcome_unknown"' in desk.model.told["c3"]
    assert attempts == []


async def test_a_tool_that_wants_no_reply_has_done_its_work() -> None:
    ran: list[str] = []

    async def pay(invoice_id: str, amount: int) -> str:
        ran.append(invoice_id)
        raise StopResponse

    desk = Desk([pay_call("c1")], [pay_call("c2")], "Done.", policy=ALLOW, pay=pay)

    await desk.talk("Pay R-7.", "Again.")

    assert ran == ["R-7"]
    assert await desk.executor.doubts() == []


def test_what_is_no_function_tool_cannot_be_guarded() -> None:
    with pytest.raises(ConfigError, match="str is not a function tool"):
        guard_tools(["pay"], Executor(), context=ToolContext(session_id="s-1"))


class Confirm(AgentTask[str]):
    """Asks something by itself, and is done."""

    def __init__(self) -> None:
        super().__init__(instructions="Ask.")

    async def on_enter(self) -> None:
        self.complete("yes")


class Cashier(Agent):
    """An agent whose tools are its methods, and one that was passed."""

    def __init__(self, tools: Sequence[Any] = ()) -> None:
        super().__init__(instructions="Pay.", tools=list(tools))
        self.paid: list[str] = []

    @function_tool
    async def pay(self, run: RunContext[Any], invoice_id: str, amount: int) -> str:
        """Pay."""
        self.paid.append(f"{invoice_id} {await Confirm()}")
        return f"paid {amount}"


async def test_the_methods_of_an_agent_are_guarded_and_may_await_a_task() -> None:
    desk = Desk([pay_call("c1")], "May I?", [pay_call("c2")], "Done.")
    agent = Cashier()

    outside = await guard_agent(agent, desk.executor, context=desk.context)
    async with AgentSession(llm=desk.model) as session:
        await session.start(agent)
        for number, text in enumerate(("Pay R-7.", "Yes.")):
            desk.turn = number
            await desk.approve(number)
            await session.run(user_input=text)

    assert outside == ()
    assert '"error":"approval_required"' in desk.model.told["c1"]
    assert agent.paid == ["R-7 yes"]
    assert await desk.executor.doubts() == []


async def test_what_cannot_be_guarded_is_named() -> None:
    class Everything(Toolset):
        pass

    desk = Desk("Hello.")
    agent = Cashier([Everything(id="everything", tools=[])])

    (outside,) = await guard_agent(agent, desk.executor, context=desk.context)

    assert outside.tool == "everything"
    assert "runs without Handrail" in outside.text


async def test_turns_are_counted_in_the_history_of_the_session() -> None:
    desk = Desk(
        [pay_call("c1")], "May I?", [pay_call("c2")], "Done.", [pay_call("c3")], "Again?", [pay_call("c4")], "Done."
    )
    agent = Agent(instructions="Pay.", tools=desk.tools)
    await guard_agent(agent, desk.executor, context=ToolContext(session_id="s-1", customer_id="c-1"))
    paid: list[int] = []

    async with AgentSession(llm=desk.model) as session:
        await session.start(agent)
        for number, text in enumerate(("Pay R-7.", "Yes.", "Once more.", "Yes.")):
            await desk.approve(number)
            await session.run(user_input=text)
            paid.append(len(desk.paid))

    assert paid == [0, 1, 1, 2]


async def test_arguments_that_livekit_repaired_do_not_run() -> None:
    desk = Desk([pay_call("c1", amount=1_000)], "I could not read that.", policy=ALLOW)

    class CutAgent(Agent):
        async def llm_node(self, chat_ctx: Any, tools: Any, model_settings: Any) -> Any:
            async for chunk in Agent.default.llm_node(self, chat_ctx, tools, model_settings):
                for call in chunk.delta.tool_calls if isinstance(chunk, ChatChunk) and chunk.delta else ():
                    call.arguments = call.arguments[:-3]  # "amount": 10
                yield chunk

    agent = CutAgent(instructions="Pay.", tools=desk.tools)
    await guard_agent(agent, desk.executor, context=ToolContext(session_id="s-1", customer_id="c-1"))
    async with AgentSession(llm=desk.model) as session:
        await session.start(agent)
        await session.run(user_input="Pay R-7.")

    assert desk.paid == []
    assert "tool_args_parse_error" in desk.model.told["c1"]


async def answer(*texts: str, locale: str = "en", question: str = "Pay R-7.") -> tuple[Desk, list[str]]:
    """An agent whose tool asks the customer by itself; what the agent said."""
    desk = Desk([pay_call("c1")], "Done.")
    agent = Agent(instructions="Pay.", tools=desk.tools)
    context = ToolContext(session_id="s-1", customer_id="c-1")
    await guard_agent(agent, desk.executor, context=context, customer_answers=True, locale=locale)
    async with AgentSession(llm=desk.model) as session:
        await session.start(agent)
        for text in (question, *texts):
            await session.run(user_input=text)
        said = [item.text_content or "" for item in session.history.items if getattr(item, "role", "") == "assistant"]
    return desk, said


async def test_a_tool_pauses_reads_the_call_back_and_runs_after_the_customers_yes() -> None:
    desk, said = await answer("Yes, please.")

    assert said == ["Please confirm: pay (invoice id: R-7; amount: 100). Shall I go ahead?", "Done."]
    assert desk.paid == [("R-7", 100)]
    assert "paid 100" in desk.model.told["c1"]
    assert await desk.executor.approvals.pending(session_id="s-1") == []


async def test_a_no_to_the_read_back_is_a_no_and_the_model_is_told() -> None:
    desk, _ = await answer("No, don't.")

    assert desk.paid == []
    assert "permission_denied" in desk.model.told["c1"]


@pytest.mark.parametrize("words", ["Yes, but 50.", "What is R-7?", "Yes, R-8."])
async def test_an_answer_that_is_no_yes_is_asked_about_again_and_runs_nothing(words: str) -> None:
    desk, said = await answer(words, words, words)

    assert desk.paid == []
    assert said[:-1] == [said[0]] * 3
    assert "approval_required" in desk.model.told["c1"]


async def test_the_customer_is_asked_in_their_language() -> None:
    desk, said = await answer("Ja, bitte.", locale="de")

    assert desk.paid == [("R-7", 100)]
    assert said[0].endswith("?")
    assert "confirm" not in said[0]


async def test_two_calls_of_one_response_are_two_questions_one_after_the_other() -> None:
    desk = Desk([pay_call("c1"), pay_call("c2", "R-8")], "Done.")
    agent = Agent(instructions="Pay.", tools=desk.tools)
    context = ToolContext(session_id="s-1", customer_id="c-1")
    await guard_agent(agent, desk.executor, context=context, customer_answers=True)
    async with AgentSession(llm=desk.model) as session:
        await session.start(agent)
        for text in ("Pay both.", "Yes.", "No."):
            await session.run(user_input=text)

    assert desk.paid == [("R-7", 100)]
    assert "permission_denied" in desk.model.told["c2"]


async def test_a_repetition_is_named_first_in_the_customers_language_and_needs_a_yes_to_the_call() -> None:
    desk = Desk([pay_call("c1")], "Done.", [pay_call("c2")], "Done.")
    agent = Agent(instructions="Pay.", tools=desk.tools)
    context = ToolContext(session_id="s-1", customer_id="c-1")
    await guard_agent(agent, desk.executor, context=context, customer_answers=True, locale="de")
    async with AgentSession(llm=desk.model) as session:
        await session.start(agent)
        for text in ("R-7 bezahlen.", "Ja.", "Noch einmal.", "Ja, bitte."):
            await session.run(user_input=text)
        said = [item.text_content or "" for item in session.history.items if getattr(item, "role", "") == "assistant"]

    asked = load_locale("de")["confirm.one"].format(calls="pay (invoice id: R-7; amount: 100)")
    notice = load_locale("de")["confirm.repeat"].format(calls="pay")
    assert said == [asked, "Done.", f"{notice} {asked}", "Done."]
    assert desk.paid == [("R-7", 100), ("R-7", 100)]


class AskEmail(AgentTask[str]):
    """Asks the customer for something else, and takes their next words."""

    def __init__(self) -> None:
        super().__init__(instructions="Ask for the email.")

    async def on_enter(self) -> None:
        self.session.generate_reply()

    async def llm_node(self, chat_ctx: Any, tools: Any, model_settings: Any) -> Any:
        words = [item.text_content for item in chat_ctx.items if getattr(item, "role", "") == "user"]
        if words:
            self.complete(words[-1])
        else:
            yield "Your email?"


async def test_a_tool_that_the_customer_agreed_to_may_converse_by_itself() -> None:
    receipts: list[str] = []

    async def pay(invoice_id: str, amount: int) -> str:
        receipts.append(await AskEmail())
        return f"paid {amount}"

    desk = Desk([pay_call("c1")], "Done.", pay=pay)
    agent = Agent(instructions="Pay.", tools=desk.tools)
    context = ToolContext(session_id="s-1", customer_id="c-1")
    await guard_agent(agent, desk.executor, context=context, customer_answers=True)
    async with AgentSession(llm=desk.model) as session:
        await session.start(agent)
        for text in ("Pay R-7.", "Yes.", "a@b.example"):
            await session.run(user_input=text)

    assert receipts == ["a@b.example"]
    assert "paid 100" in desk.model.told["c1"]
