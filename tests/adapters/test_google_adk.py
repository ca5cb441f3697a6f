"""A Google ADK agent whose tools run under an executor."""

from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool
from google.genai import types

from handrail import Executor, Policy, Rule, ToolContext, ToolFlags
from handrail.adapters.google_adk import HandrailPlugin, record_decision
from tests.adapters.faults import FAULTS, expected, play_fault

ASK = Policy([Rule.ask("pay", by="customer"), Rule.allow("*")])
ALLOW = Policy([Rule.allow("*")])
DECLARED = {"pay": ToolFlags(key="invoice_id")}
PAY = {"invoice_id": "R-7", "amount": 100}
CONFIRM = "adk_request_confirmation"

Step = str | Sequence[tuple[str, str, dict[str, Any]]]


class Model(BaseLlm):
    """Says one step after the other: a text, or calls as `(id, tool, arguments)`; keeps what it was told."""

    steps: list[Any]
    told: dict[str, Any] = {}  # noqa: RUF012  # a field of a Pydantic model

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        for content in llm_request.contents:
            for part in content.parts or ():
                if part.function_response is not None:
                    self.told[str(part.function_response.id)] = part.function_response.response
        step: Step = self.steps.pop(0)
        if isinstance(step, str):
            parts = [types.Part(text=step)]
        else:
            calls = [types.FunctionCall(id=call_id, name=name, args=arguments) for call_id, name, arguments in step]
            parts = [types.Part(function_call=call) for call in calls]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


class Desk:
    """An agent with `pay` under an executor, and what was paid."""

    def __init__(
        self, *steps: Step, policy: Policy = ASK, pay: Callable[..., Any] | None = None, **options: Any
    ) -> None:
        self.paid: list[tuple[str, int]] = []
        self.model = Model(model="scripted", steps=list(steps), told={})
        self.executor = Executor(policy=policy, declared=DECLARED)
        tool = FunctionTool(pay or self.pay, **options)
        agent = LlmAgent(name="desk", model=self.model, tools=[tool])
        context = ToolContext(session_id="s-1", customer_id="c-1", turn=1)
        app = App(name="desk", root_agent=agent, plugins=[HandrailPlugin(self.executor, context=context)])
        self.runner = InMemoryRunner(app=app)
        self.session: Any = None

    async def pay(self, invoice_id: str, amount: int) -> str:
        """Pay."""
        self.paid.append((invoice_id, amount))
        return f"paid {amount}"

    async def run(self, *parts: types.Part) -> list[types.FunctionCall]:
        """Run until the agent ends or asks, and give what it asks."""
        if self.session is None:
            self.session = await self.runner.session_service.create_session(
                app_name=self.runner.app_name, user_id="ann"
            )
        message = types.Content(role="user", parts=list(parts) or [types.Part(text="Go.")])
        asked: list[types.FunctionCall] = []
        async for event in self.runner.run_async(user_id="ann", session_id=self.session.id, new_message=message):
            asked += [call for call in event.get_function_calls() if call.name == CONFIRM]
        return asked

    async def wake(self, asked: types.FunctionCall, *, confirmed: bool = True) -> list[types.FunctionCall]:
        answer = types.FunctionResponse(id=asked.id, name=CONFIRM, response={"confirmed": confirmed})
        return await self.run(types.Part(function_response=answer))

    async def approve(self) -> None:
        (question,) = await self.executor.approvals.pending(session_id="s-1")
        await self.executor.approvals.approve(question.token, by="customer", who="c-1")


async def test_a_question_is_a_confirmation_and_the_approval_in_our_store_lets_it_continue() -> None:
    desk = Desk([("c1", "pay", PAY)], "I asked.", "Done.")

    (asked,) = await desk.run()
    paid_before = list(desk.paid)
    await desk.approve()
    assert await desk.wake(asked) == []

    assert paid_before == []
    assert desk.paid == [("R-7", 100)]
    assert desk.model.told["c1"] == {"result": "paid 100"}


async def test_the_yes_of_adk_only_wakes() -> None:
    desk = Desk([("c1", "pay", PAY)], "I asked.", "I cannot.")

    (asked,) = await desk.run()
    await desk.wake(asked)

    assert desk.paid == []
    assert "agree" in str(desk.model.told["c1"]) or "approv" in str(desk.model.told["c1"])
    assert len(await desk.executor.approvals.pending(session_id="s-1")) == 1


async def test_two_calls_of_one_effect_are_one() -> None:
    desk = Desk([("c1", "pay", PAY), ("c2", "pay", PAY)], "Done.", policy=ALLOW)

    assert await desk.run() == []

    assert desk.paid == [("R-7", 100)]
    assert desk.model.told.keys() == {"c1", "c2"}


async def test_an_exception_is_a_doubt_that_asks_until_it_is_resolved() -> None:
    async def pay(invoice_id: str, amount: int) -> str:
        """Pay."""
        raise ConnectionError("reset")

    desk = Desk([("c1", "pay", PAY)], "I asked.", "Done.", policy=ALLOW, pay=pay)

    (asked,) = await desk.run()
    await desk.executor.resolve(session_id="s-1", call_id="c1", happened=True, who="ann", reason="receipt 12")
    assert await desk.wake(asked) == []

    assert asked.args is not None
    assert asked.args["toolConfirmation"]["payload"]["reason"] == "outcome_unknown"
    assert "receipt 12" in str(desk.model.told["c1"])


async def test_arguments_that_are_missing_did_nothing_and_the_next_call_pays() -> None:
    wrong, right = ("c1", "pay", {"invoice_id": "R-7"}), ("c2", "pay", PAY)
    desk = Desk([wrong], [right], "Done.", policy=ALLOW)

    assert await desk.run() == []

    assert "amount" in str(desk.model.told["c1"])
    assert desk.paid == [("R-7", 100)]


async def test_the_tools_own_question_comes_first_and_a_no_runs_nothing() -> None:
    desk = Desk([("c1", "pay", PAY)], "I asked.", "Denied.", policy=ALLOW, require_confirmation=True)

    (asked,) = await desk.run()
    assert desk.paid == []
    await desk.wake(asked, confirmed=False)

    assert desk.paid == []
    assert await desk.executor.doubts() == []


async def test_a_tool_that_nobody_has_is_answered_by_adk() -> None:
    desk = Desk([("c1", "invented", {})], "Sorry.", policy=ALLOW)

    assert await desk.run() == []
    assert "invented" in str(desk.model.told["c1"])


async def test_a_wanted_repeat_in_the_next_turn_is_asked_about_although_the_first_one_was_woken() -> None:
    steps: list[Step] = [[("c1", "pay", PAY)], "I asked.", "Done.", [("c2", "pay", PAY)], "I asked.", "Done again."]
    desk = Desk(*steps)

    for text in ("Pay R-7.", "Once more."):
        (asked,) = await desk.run(types.Part(text=text))
        answer = await record_decision(desk.executor, asked, session_id="s-1", by="customer", who="c-1", confirmed=True)
        assert await desk.run(answer) == []

    assert desk.paid == [("R-7", 100), ("R-7", 100)]


@pytest.mark.parametrize(
    ("decision", "paid", "told"),
    [
        ({"confirmed": True}, [("R-7", 100)], "paid 100"),
        ({"confirmed": True, "arguments": {"invoice_id": "R-7", "amount": 5}}, [("R-7", 5)], "paid 5"),
        ({"confirmed": False, "reason": "Too much."}, [], "Too much."),
    ],
)
async def test_the_decision_of_a_person_is_recorded_for_its_own_call(
    decision: dict[str, Any], paid: list[Any], told: str
) -> None:
    desk = Desk([("c1", "pay", PAY)], "I asked.", "Done.")
    (asked,) = await desk.run()

    answer = await record_decision(desk.executor, asked, session_id="s-1", by="customer", who="c-1", **decision)
    assert await desk.run(answer) == []

    assert desk.paid == paid
    assert told in str(desk.model.told["c1"])


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("F6", "F12")])
async def test_no_fault_pays_twice_loses_a_payment_or_tells_the_model_what_is_not_so(
    fault: str, tmp_path: Path
) -> None:
    """ADK has no timeout for a tool, and arguments come as values: they are never cut."""
    assert await play_fault("google_adk", fault, tmp_path) == expected(fault)
