"""A conversation: words and calls, approvals in the middle of a turn, a person who takes over."""

import asyncio
import re
from contextlib import aclosing
from typing import Any

import pytest

from handrail import ConfigError, Control, Executor, Policy, Rule, ToolContext, ToolResult, tool
from handrail.chat import Budget, ChatSession, FileSessionStore, TurnResult
from handrail.core import CallFinished, CallStarted, Progress
from handrail.errors import ApprovalError, BadResponseError, ProviderDownError
from handrail.execute import Timeouts
from handrail.providers import AssistantMessage, ModelResponse, TextDelta, ToolMessage, Usage, UserMessage
from handrail.testing import ScriptedProvider
from handrail.testing.servers import refusal, text, text_and_calls, tool_calls, truncated
from tests.chat.bank import PAY_5, Bank, at, balance, chat, pay, yes
from tests.execute.helpers import Held, code_of


async def test_text_gets_a_text_response() -> None:
    session = chat(["Hello!"])
    answer = await session.send("Hi.")

    assert (answer.text, answer.stop_reason, answer.results) == ("Hello!", "completed", ())
    assert session.conversation.messages == (UserMessage(text="Hi."), AssistantMessage(text="Hello!"))
    assert session.conversation.usage == Usage(input=10, output=5)


async def test_calls_are_run_and_their_results_go_back_to_the_model() -> None:
    session = chat([tool_calls(("balance", {})), "You have 100 EUR."])
    answer = await session.send("How much is there?")

    assert answer.text == "You have 100 EUR."
    assert [result.output for result in answer.results] == ["100 EUR"]
    assert answer.usage == Usage(input=20, output=10)
    provider: Any = session.provider
    assert isinstance(provider.requests[1].messages[-1], ToolMessage)
    assert [item.name for item in provider.requests[0].tools] == ["balance", "pay"]


async def test_a_stream_tells_everything_as_it_happens_and_ends_with_the_result() -> None:
    executor = Executor([balance, pay], policy=Policy([Rule.allow("*")]))
    session = chat([text_and_calls("One moment.", ("pay", {"amount": 5})), "Paid."], executor=executor)
    events = [event async for event in session.stream("Pay 5.")]

    kinds = [type(event) for event in events]
    assert kinds == [TextDelta, TextDelta, CallStarted, Progress, CallFinished, TextDelta, TurnResult]
    assert "".join(item.text for item in events if isinstance(item, TextDelta)) == "One moment.Paid."
    assert events[-1].text == "Paid."


async def test_what_other_sessions_do_is_not_heard_here() -> None:
    held = Held()

    @tool(read_only=True)
    async def slow() -> str:
        """Slow."""
        return await held()

    executor = Executor([slow, balance])
    one = chat([tool_calls(("slow", {})), "one"], executor=executor, context=at(Bank(), session_id="one"))
    two = chat([tool_calls(("balance", {})), "two"], executor=executor, context=at(Bank(), session_id="two"))

    async def events(session: ChatSession) -> list[Any]:
        return [event async for event in session.stream("Go.")]

    first = asyncio.create_task(events(one))
    await asyncio.wait_for(held.begun.wait(), 20)
    second = await events(two)
    held.go.set()
    for heard, session_id in ((await first, "one"), (second, "two")):
        assert {event.session_id for event in heard if isinstance(event, CallStarted | CallFinished)} == {session_id}


@pytest.mark.proves("GC-40", "GC-D5")
async def test_an_approval_stops_the_turn_and_the_persons_yes_resumes_it() -> None:
    bank = Bank()
    session = chat([PAY_5, "Paid."], bank)
    asked = await session.send("Pay 5.")

    assert (asked.stop_reason, asked.results, bank.paid) == ("approval_required", (), [])
    (approval,) = asked.approvals
    assert (approval.tool, approval.arguments, approval.by) == ("pay", {"amount": 5}, "customer")

    done = await yes(session, asked)
    assert (done.text, done.stop_reason, bank.paid) == ("Paid.", "completed", [5])
    assert await session.approvals() == []


async def test_an_approval_that_has_expired_is_not_among_those_that_a_turn_asks_for() -> None:
    executor = Executor([balance, pay], timeouts=Timeouts(approval=1e-9))  # It is over when it is asked.
    asked = await chat([PAY_5], executor=executor).send("Pay 5.")

    assert (asked.stop_reason, asked.approvals) == ("approval_required", ())


async def test_equal_calls_of_one_response_share_a_question_and_neither_is_said_to_have_failed() -> None:
    bank = Bank()
    session = chat([tool_calls(("pay", {"amount": 5}), ("pay", {"amount": 5})), "Paid."], bank)
    asked = await session.send("Pay 5.")
    done = await yes(session, asked)

    assert len(asked.approvals) == 1
    assert (done.text, bank.paid) == ("Paid.", [5])
    assert [result.ok for result in done.results] == [True, True]


async def test_a_no_is_reported_to_the_model_with_its_reason() -> None:
    bank = Bank()
    session = chat([PAY_5, "All right."], bank)
    asked = await session.send("Pay 5.")
    await session.deny(asked.approvals[0].token, reason="too much")
    answer = await session.resume()

    assert (answer.text, bank.paid) == ("All right.", [])
    assert code_of(answer.results[0]) == "permission_denied"
    assert "too much" in answer.results[0].for_model()


async def test_calls_beside_a_question_are_answered_once() -> None:
    bank = Bank()
    session = chat([tool_calls(("balance", {}), ("pay", {"amount": 5})), "Done."], bank)
    answer = await yes(session, await session.send("Go."))

    assert answer.stop_reason == "completed"
    assert (bank.reads, bank.paid) == (1, [5])
    tools = next(message for message in session.conversation.messages if isinstance(message, ToolMessage))
    assert [result.for_model() for result in tools.results] == ["100 EUR", "paid 5"]


async def test_going_on_without_a_decision_still_waits() -> None:
    bank = Bank()
    session = chat([PAY_5, "Paid."], bank)
    asked = await session.send("Pay 5.")
    again = await session.resume()

    assert (again.stop_reason, bank.paid) == ("approval_required", [])
    assert [approval.token for approval in again.approvals] == [approval.token for approval in asked.approvals]
    assert (await yes(session, again)).stop_reason == "completed"


async def test_words_instead_of_a_decision_are_no_decision() -> None:
    bank = Bank()
    session = chat([PAY_5, "Shall I?", "Cancelled."], bank)
    await session.send("Pay 5.")
    answer = await session.send("Yes, I agree, do it.")

    assert (answer.text, bank.paid) == ("Shall I?", [])
    assert code_of(answer.results[0]) == "approval_required"
    assert (await session.send("No.")).text == "Cancelled."


async def test_words_after_a_yes_are_heard_after_it_is_done() -> None:
    bank = Bank()
    session = chat([PAY_5, "Paid, and thanks."], bank)
    asked = await session.send("Pay 5.")
    await session.approve(asked.approvals[0].token)
    answer = await session.send("Go ahead, and thanks.")

    assert (answer.text, bank.paid) == ("Paid, and thanks.", [5])
    kinds = [type(message) for message in session.conversation.messages]
    assert kinds == [UserMessage, AssistantMessage, ToolMessage, UserMessage, AssistantMessage]


async def test_an_operators_question_is_not_the_customers_to_answer() -> None:
    bank = Bank()
    executor = Executor([pay], policy=Policy([Rule.ask("pay", by="operator")]))
    session = chat([PAY_5, "Paid."], bank, executor=executor)
    asked = await session.send("Pay 5.")
    token = asked.approvals[0].token
    with pytest.raises(ApprovalError, match="operator"):
        await session.approve(token)
    await executor.approvals.approve(token, by="operator", who="olga")

    assert (await session.resume()).text == "Paid."
    assert bank.paid == [5]


async def test_a_question_of_another_conversation_cannot_be_answered_here() -> None:
    executor = Executor([pay])
    one = chat([PAY_5], executor=executor, context=at(Bank(), session_id="one"))
    two = chat([], executor=executor, context=at(Bank(), session_id="two"))
    asked = await one.send("Pay 5.")

    for decide in (two.approve, two.deny):
        with pytest.raises(ApprovalError):
            await decide(asked.approvals[0].token)


async def test_unknown_tools_and_bad_arguments_get_errors_so_that_the_model_can_mend_them() -> None:
    session = chat(
        [
            tool_calls(("balanc", {}), ("pay", {"amount": "lots"}), ("pay", '{"amount": ')),
            truncated("", ("balance", "{}")),
            tool_calls(("balance", {})),
            "100.",
        ]
    )
    answer = await session.send("How much?")

    assert [code_of(result) for result in answer.results] == [
        "tool_not_found",
        "invalid_arguments",
        "tool_args_parse_error",
        "tool_args_parse_error",
        None,
    ]
    assert "`balance`" in answer.results[0].for_model()


async def test_a_server_that_counts_its_calls_anew_does_not_swallow_a_second_payment() -> None:
    bank = Bank()
    executor = Executor([balance, pay], policy=Policy([Rule.allow("*")]), timeouts=Timeouts(repeat_window=1e-9))
    same = tool_calls(("pay", {"amount": 5}, "call_0"), id="resp")
    session = chat([same, "Once.", same, "Twice."], bank, executor=executor)
    await session.send("Pay 5.")
    answer = await session.send("And again.")

    assert bank.paid == [5, 5]
    assert answer.text == "Twice."
    assert len(session.conversation.call_ids) == 2


async def test_two_calls_under_one_id_are_two_calls() -> None:
    executor = Executor([balance])
    session = chat(
        [tool_calls(("balance", {}, "x"), ("balance", {}, "x"), ("balance", {}, "")), "Done."], executor=executor
    )
    answer = await session.send("Go.")

    assert [result.ok for result in answer.results] == [True] * 3
    assert len({result.call_id for result in answer.results}) == 3


@pytest.mark.parametrize(
    ("budget", "stop_reason", "asked"),
    [
        (Budget(max_steps=2), "max_steps", 2),
        (Budget(max_calls=2), "max_calls", 3),
        (Budget(max_tokens=20), "token_budget", 2),
        (Budget(timeout=1e-9), "timeout", 0),
    ],
)
async def test_a_budget_that_runs_out_leaves_a_conversation_that_can_continue(
    budget: Budget, stop_reason: str, asked: int
) -> None:
    lines: Any = [tool_calls(("balance", {})) for _ in range(asked)]
    session = chat([*lines, "Enough."], budget=budget)
    answer = await session.send("Go.")

    assert answer.stop_reason == stop_reason
    provider: Any = session.provider
    assert len(provider.requests) == asked
    assert session.conversation.open_calls == ()
    if stop_reason != "timeout":
        assert (await session.resume()).text == "Enough."


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"max_steps": 0}])
def test_a_budget_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Budget(**wrong)


@pytest.mark.parametrize(("line", "stop"), [(truncated("Half a"), "length"), (refusal("I will not."), "refusal")])
async def test_why_the_model_stopped_is_said(line: Any, stop: str) -> None:
    answer = await chat([line]).send("Go.")

    assert (answer.finish_reason, answer.stop_reason) == (stop, "completed")
    assert answer.text


async def test_a_provider_that_fails_loses_nothing() -> None:
    bank = Bank()
    session = chat([tool_calls(("balance", {})), ProviderDownError("gone"), "100 EUR."], bank)
    with pytest.raises(ProviderDownError):
        await session.send("How much?")

    assert not session.is_busy
    answer = await session.resume()
    assert (answer.text, bank.reads) == ("100 EUR.", 1)


async def test_a_stream_that_was_cut_can_be_asked_for_again() -> None:
    session = chat([text("This is a long answer.", cut_after=2), "Short."])
    heard: list[Any] = []

    async def listen() -> None:
        async for event in session.stream("Go."):
            heard.append(event)

    with pytest.raises(ProviderDownError):
        await listen()
    assert [item.text for item in heard] == ["This ", "is "]
    assert session.conversation.messages == (UserMessage(text="Go."),)
    assert (await session.resume()).text == "Short."


async def test_a_provider_that_ends_without_a_reply_is_not_believed() -> None:
    class Silent(ScriptedProvider):
        async def stream(self, request: Any) -> Any:
            yield TextDelta(text="Hm.")

    session = ChatSession(Silent([]), Executor(), context=at(Bank()))
    with pytest.raises(BadResponseError, match="without a response"):
        await session.send("Go.")


async def test_an_empty_response_leaves_no_empty_message() -> None:
    session = chat([ModelResponse(), "Again."])
    assert (await session.send("Go.")).text == ""
    assert session.conversation.messages == (UserMessage(text="Go."),)
    assert (await session.send("Well?")).text == "Again."


async def test_there_must_be_something_to_resume() -> None:
    session = chat(["Hello."])
    with pytest.raises(ConfigError, match="nothing to resume"):
        await session.resume()
    await session.send("Hi.")
    with pytest.raises(ConfigError, match="nothing to resume"):
        await session.resume()


async def test_one_turn_at_a_time() -> None:
    session = chat(["One two three.", "Next."])
    async with aclosing(session.stream("Go.")) as events:
        await anext(events)
        assert session.is_busy
        for wrong in (session.send("Now."), session.resume()):
            with pytest.raises(ConfigError, match="is running"):
                await wrong
        with pytest.raises(ConfigError, match="is running"):
            session.hand_back()
        with pytest.raises(ConfigError, match=r"save\(\) cannot be called during a turn"):
            await session.save(FileSessionStore("nowhere"))
    assert not session.is_busy
    assert (await session.send("And now?")).text == "Next."


async def test_a_person_takes_over_and_gives_back() -> None:
    @tool(idempotent=True)
    async def hand_over() -> ToolResult:
        """A person takes over."""
        return ToolResult(output="Over.", control=Control(mode="manual"))

    executor = Executor([hand_over], policy=Policy([Rule.allow("*")]))
    session = chat([tool_calls(("hand_over", {})), "I am back."], executor=executor)
    answer = await session.send("A person, please.")

    assert (answer.stop_reason, session.handed_off) == ("handed_off", True)
    silent = await session.send("Hello?")
    assert (silent.stop_reason, silent.text) == ("handed_off", "")
    session.reply_as_operator("Olga here: all done.")
    session.hand_back()
    assert (await session.send("Thanks.")).text == "I am back."
    assert AssistantMessage(text="Olga here: all done.") in session.conversation.messages


async def test_a_result_for_one_response_only_leaves_the_history_after_it() -> None:
    @tool(read_only=True)
    async def secret() -> ToolResult:
        """A secret."""
        return ToolResult(output="hunter2", control=Control(lifespan="response"))

    session = chat([tool_calls(("secret", {})), "It is a word.", "No idea."], executor=Executor([secret]))
    await session.send("What is it?")
    provider: Any = session.provider

    assert "hunter2" in repr(provider.requests[1])
    await session.send("Say it again.")
    assert "hunter2" not in repr(provider.requests[2])
    assert "hunter2" not in repr(session.conversation)


async def test_the_turn_counts_up_and_reaches_the_tools() -> None:
    @tool(read_only=True)
    async def which(context: ToolContext[Bank]) -> int:
        """Which turn this is."""
        return context.turn

    lines: Any = [tool_calls(("which", {})), "One.", tool_calls(("which", {})), "Two."]
    session = chat(lines, executor=Executor([which]))
    answers = [await session.send(words) for words in ("a", "b")]
    assert [answer.results[0].output for answer in answers] == [1, 2]


def test_a_program_without_a_loop_can_chat_too() -> None:
    bank = Bank()
    session = chat([PAY_5, "Paid.", "Bye."], bank)
    asked = session.send_sync("Pay 5.")
    session.executor.run_coroutine(session.approve(asked.approvals[0].token))

    assert session.resume_sync().text == "Paid."
    assert bank.paid == [5]
    assert session.send_sync("Bye.").text == "Bye."


def test_hostile_words_are_kept_in_a_form_that_can_be_sent() -> None:
    session = chat(["Hm."])
    session.send_sync("half \ud83d a character")

    (said, _) = session.conversation.messages
    assert isinstance(said, UserMessage)
    assert said.text == "half ? a character"


@pytest.mark.parametrize("nothing", ["", "  \n"])
async def test_an_empty_message_is_refused_before_anything_happens(nothing: str) -> None:
    session = chat([PAY_5, "Paid."])
    await session.send("Pay 5.")
    with pytest.raises(ConfigError, match=r"text must not be empty.*resume\(\)"):
        await session.send(nothing)
    assert (session.conversation.turn, len(await session.approvals())) == (1, 1)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"provider": "gpt-5"}, "provider must be a Provider, such as OpenAIResponses(…), got str"),
        ({"executor": [pay]}, "executor must be an Executor, got list"),
        ({"context": None}, "context must be a ToolContext(session_id=…), got NoneType"),
        ({"sessions": "talks"}, "sessions must be a SessionStore, such as store.sessions or"),
    ],
)
def test_what_cannot_be_a_part_of_a_session_is_refused_by_its_name(wrong: dict[str, Any], problem: str) -> None:
    parts: dict[str, Any] = {"provider": ScriptedProvider([]), "executor": Executor([pay]), "context": at(Bank())}
    with pytest.raises(ConfigError, match=re.escape(problem)):
        ChatSession(**(parts | wrong))
