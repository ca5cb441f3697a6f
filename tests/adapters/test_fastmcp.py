"""A FastMCP server whose tools run under an executor."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.error_handling import RetryMiddleware

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolFlags
from handrail.adapters.fastmcp import HandrailMiddleware
from tests.adapters.faults import FAULTS, expected, play_fault

ASK = Policy([Rule.ask("pay", by="customer"), Rule.allow("*")])
ALLOW = Policy([Rule.allow("*")])
DECLARED = {"pay": ToolFlags(key="invoice_id"), "look": ToolFlags(read_only=True, concurrency_safe=True)}
PAY = {"invoice_id": "R-7", "amount": 100}


class Desk:
    """A server with `pay` under an executor, and what was paid."""

    def __init__(self, *, policy: Policy = ASK, pay: Callable[..., Any] | None = None, **options: Any) -> None:
        self.paid: list[tuple[str, int]] = []
        self.executor = Executor(policy=policy, declared=DECLARED)
        self.server = FastMCP("desk")
        self.server.tool(pay or self._pay, name="pay")
        self.server.tool(self._look, name="look")
        context = ToolContext(session_id="s-1", customer_id="c-1", turn=1)
        self.server.add_middleware(HandrailMiddleware(self.executor, context=context, **options))

    async def _pay(self, invoice_id: str, amount: int) -> str:
        self.paid.append((invoice_id, amount))
        return f"paid {amount}"

    async def _look(self, what: str) -> str:
        return f"saw {what}"

    @asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[Any]:
        async with Client(self.server, **options) as client:
            yield client

    async def approve(self, **options: Any) -> None:
        """Approve the oldest question."""
        question = (await self.executor.approvals.pending(session_id="s-1"))[0]
        await self.executor.approvals.approve(question.token, by="customer", who="c-1", **options)


@pytest.mark.parametrize("fault", [item for item in FAULTS if item != "F12"])  # A client sends whole JSON.
async def test_no_fault_pays_twice_loses_a_payment_or_tells_the_model_what_is_not_so(
    fault: str, tmp_path: Path
) -> None:
    assert await play_fault("fastmcp", fault, tmp_path) == expected(fault)


async def call(client: Any, arguments: dict[str, Any] = PAY, *, state: str | None = None, name: str = "pay") -> Any:
    """One leg of a call, as the client sends it: a result, or what the server needs first."""
    return await client.session.call_tool(
        name=name, arguments=arguments, request_state=state, allow_input_required=True
    )


async def test_a_question_is_an_input_required_result_and_the_approval_in_our_store_lets_it_continue() -> None:
    desk = Desk()
    async with desk.connect() as client:
        asked = await call(client)
        again = await call(client, state=asked.request_state)
        paid_before = list(desk.paid)
        await desk.approve()
        done = await call(client, state=again.request_state)

    assert isinstance(asked, mcp_types.InputRequiredResult)
    assert isinstance(again, mcp_types.InputRequiredResult)
    assert paid_before == []
    assert desk.paid == [("R-7", 100)]
    assert done.structured_content == {"result": "paid 100"}


async def test_the_state_of_another_call_runs_nothing() -> None:
    desk = Desk()
    async with desk.connect() as client:
        asked = await call(client)
        await desk.approve()
        with pytest.raises(Exception, match="requestState"):
            await call(client, {"invoice_id": "R-8", "amount": 9_000}, state=asked.request_state)
        other = await call(client, {"invoice_id": "R-8", "amount": 9_000})

    assert isinstance(other, mcp_types.InputRequiredResult)
    assert desk.paid == []


async def test_a_client_that_can_ask_its_user_gets_the_question_and_the_answer_only_wakes() -> None:
    desk = Desk()
    seen: list[str] = []

    async def elicit(message: str, *_: Any) -> Any:
        seen.append(message)
        if len(seen) == 2:
            await desk.approve()
        return ElicitResult(action="accept", content={})

    async with desk.connect(elicitation_handler=elicit) as client:
        result = await client.call_tool("pay", PAY)

    assert len(seen) == 2
    assert "needs the approval of the customer" in seen[0]
    assert result.data == "paid 100"


async def test_a_user_who_declines_to_wait_leaves_the_model_with_the_truth() -> None:
    desk = Desk()

    async def elicit(*_: Any) -> Any:
        return ElicitResult(action="decline")

    async with desk.connect(elicitation_handler=elicit) as client:
        result = await client.call_tool("pay", PAY, raise_on_error=False)

    assert result.is_error
    assert "approval_required" in result.content[0].text
    assert desk.paid == []


async def test_an_older_client_gets_a_failed_result_and_calls_again() -> None:
    desk = Desk(policy=Policy([Rule.ask("pay", by="operator")]))
    async with desk.connect(mode="legacy") as client:
        asked = await client.call_tool("pay", PAY, raise_on_error=False)
        question = (await desk.executor.approvals.pending(session_id="s-1"))[0]
        await desk.executor.approvals.approve(question.token, by="operator", who="ann")
        done = await client.call_tool("pay", PAY)

    assert asked.is_error
    assert "approval_required" in asked.content[0].text
    assert done.data == "paid 100"


async def test_the_same_payment_again_gets_what_was_recorded_in_the_form_that_its_schema_promises() -> None:
    desk = Desk(policy=ALLOW)
    async with desk.connect() as client:
        await client.call_tool("pay", PAY)
        again = await client.call_tool("pay", PAY)

    assert again.data == "paid 100"
    assert again.content[0].text.startswith("[Already done at")
    assert desk.paid == [("R-7", 100)]


async def test_arguments_that_an_approver_changed_reach_the_tool() -> None:
    desk = Desk()
    async with desk.connect() as client:
        asked = await call(client)
        await desk.approve(arguments={"invoice_id": "R-7", "amount": 60})
        await call(client, state=asked.request_state)

    assert desk.paid == [("R-7", 60)]


async def test_a_tool_error_means_that_nothing_happened_and_any_other_exception_is_a_doubt() -> None:
    attempts: list[Exception] = [ToolError("closed today"), ConnectionError("reset")]

    async def pay(invoice_id: str, amount: int) -> str:
        raise attempts.pop(0)

    desk = Desk(policy=ALLOW, pay=pay)
    async with desk.connect() as client:
        closed = await client.call_tool("pay", PAY, raise_on_error=False)
        doubts_before = await desk.executor.doubts()
        paused = await call(client)
        (doubt,) = await desk.executor.doubts()
        await desk.executor.resolve(session_id="s-1", call_id=doubt.call_id, happened=True, who="ann", reason="seen")
        told = await call(client, state=paused.request_state)

    assert closed.content[0].text == "closed today"
    assert doubts_before == []
    assert isinstance(paused, mcp_types.InputRequiredResult)
    assert "took effect" in told.content[0].text
    assert attempts == []


async def test_an_exception_of_a_reading_tool_is_reported_as_fastmcp_tells_it() -> None:
    desk = Desk(policy=ALLOW)

    async def look(what: str) -> str:
        raise ValueError("broken")

    desk.server.local_provider.remove_tool("look")
    desk.server.tool(look, name="look")
    async with desk.connect() as client:
        failed = await client.call_tool("look", {"what": "x"}, raise_on_error=False)

    assert failed.is_error
    assert "Error calling tool 'look'" in failed.content[0].text


async def test_a_tool_that_asks_the_client_by_itself_still_can() -> None:
    async def pay(invoice_id: str, amount: int, ctx: Context) -> Any:
        if ctx.request_state is None:
            return mcp_types.InputRequiredResult(request_state="mine")
        return f"paid with {ctx.request_state}"

    desk = Desk(policy=ALLOW, pay=pay)
    async with desk.connect() as client:
        asked = await call(client)
        done = await call(client, state=asked.request_state)

    assert isinstance(asked, mcp_types.InputRequiredResult)
    assert done.content[0].text == "paid with mine"


async def test_parallel_calls_run_together_where_they_may() -> None:
    desk = Desk(policy=ALLOW)
    together = asyncio.Barrier(4)

    async def look(what: str) -> str:
        await together.wait()
        return f"saw {what}"

    desk.server.local_provider.remove_tool("look")
    desk.server.tool(look, name="look")
    async with desk.connect() as client:
        results = await asyncio.gather(*(client.call_tool("look", {"what": str(n)}) for n in range(4)))

    assert [result.data for result in results] == [f"saw {n}" for n in range(4)]


@pytest.mark.parametrize("trust_annotations", [True, False])
async def test_annotations_say_what_a_tool_is_only_where_they_are_trusted_and_nothing_is_declared(
    trust_annotations: bool,
) -> None:
    desk = Desk(policy=Policy(), trust_annotations=trust_annotations)

    async def find(what: str) -> str:
        return f"found {what}"

    reads = mcp_types.ToolAnnotations(read_only_hint=True)
    desk.server.tool(find, name="find", annotations=reads)
    desk.server.local_provider.remove_tool("pay")
    desk.server.tool(desk._pay, name="pay", annotations=reads)
    async with desk.connect() as client:
        found = await call(client, {"what": "x"}, name="find")
        asked = await call(client)

    assert isinstance(found, mcp_types.CallToolResult if trust_annotations else mcp_types.InputRequiredResult)
    assert isinstance(asked, mcp_types.InputRequiredResult)
    assert desk.paid == []


async def test_an_unknown_tool_is_reported_as_fastmcp_tells_it_and_asks_nobody() -> None:
    desk = Desk()
    async with desk.connect() as client:
        result = await client.call_tool("payy", PAY, raise_on_error=False)

    assert "Unknown tool" in result.content[0].text
    assert await desk.executor.approvals.pending(session_id="s-1") == []


async def test_arguments_that_the_tool_does_not_accept_are_refused_before_anybody_is_asked() -> None:
    desk = Desk()
    async with desk.connect() as client:
        result = await client.call_tool("pay", {"invoice_id": "R-7", "amount": "many"}, raise_on_error=False)

    assert result.is_error
    assert await desk.executor.approvals.pending(session_id="s-1") == []


class Alias(Middleware):
    """Sends a call on to another tool."""

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        name = "pay" if context.message.name == "settle" else context.message.name
        return await call_next(context.copy(message=context.message.model_copy(update={"name": name})))


async def test_an_alias_that_a_middleware_inside_resolves_is_guarded_by_its_own_name() -> None:
    desk = Desk(policy=Policy([Rule.ask("settle", by="customer"), Rule.allow("pay")]))
    desk.server.add_middleware(Alias())
    async with desk.connect() as client:
        asked = await call(client, name="settle")
        paid_before = list(desk.paid)
        await desk.approve()
        await call(client, name="settle", state=asked.request_state)

    assert isinstance(asked, mcp_types.InputRequiredResult)
    assert (paid_before, desk.paid) == ([], [("R-7", 100)])


async def test_a_tool_that_nobody_has_is_answered_by_fastmcp_and_is_no_doubt() -> None:
    desk = Desk(policy=ALLOW)
    desk.server.add_middleware(Alias())
    async with desk.connect() as client:
        with pytest.raises(Exception, match="invented"):
            await client.call_tool("invented", {})

    assert await desk.executor.doubts() == []


async def test_a_retry_between_us_and_the_tools_is_refused_with_the_right_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entered: list[str] = []

    async def pay(invoice_id: str, amount: int) -> str:
        entered.append(invoice_id)
        raise ConnectionError("reset")

    desk = Desk(policy=ALLOW, pay=pay)
    desk.server.add_middleware(RetryMiddleware(max_retries=2, base_delay=0.0))
    async with desk.connect() as client:
        with pytest.raises(Exception, match="Internal server error"):
            await client.call_tool("pay", PAY)
    assert entered == []
    assert "Add HandrailMiddleware last, so that it is innermost" in caplog.text

    desk.server.middleware.reverse()
    async with desk.connect() as client:
        assert isinstance(await call(client), mcp_types.InputRequiredResult)
    assert entered == ["R-7"]


async def test_a_doubt_is_asked_about_once_and_then_told() -> None:
    async def pay(invoice_id: str, amount: int) -> str:
        raise ConnectionError("reset")

    asked: list[str] = []

    async def elicit(message: str, *_: Any) -> Any:
        asked.append(message)
        return ElicitResult(action="accept", content={})

    desk = Desk(policy=ALLOW, pay=pay)
    async with desk.connect(elicitation_handler=elicit) as client:
        with pytest.raises(ToolError, match="outcome_unknown"):
            await client.call_tool("pay", PAY)

    assert len(asked) == 1
    assert len(await desk.executor.doubts()) == 1


async def test_with_customer_answers_the_yes_of_the_client_is_the_customers_and_a_no_denies() -> None:
    asked: list[str] = []
    answers = ["accept", "decline"]

    async def elicit(message: str, *_: Any) -> Any:
        asked.append(message)
        return ElicitResult(action=answers.pop(0), content={})  # pyright: ignore[reportArgumentType]

    desk = Desk(customer_answers=True)
    async with desk.connect(elicitation_handler=elicit) as client:
        await client.call_tool("pay", PAY)
        refused = await client.call_tool("pay", {**PAY, "invoice_id": "R-8"}, raise_on_error=False)

    assert desk.paid == [("R-7", 100)]
    assert "permission_denied" in refused.content[0].text
    assert asked[0] == '`pay` with {"invoice_id": "R-7", "amount": 100}: do you agree?'


async def test_a_question_shows_what_no_screen_would() -> None:
    asked: list[str] = []

    async def elicit(message: str, *_: Any) -> Any:
        asked.append(message)
        return ElicitResult(action="decline", content={})

    async with Desk(customer_answers=True).connect(elicitation_handler=elicit) as client:
        await client.call_tool("pay", {**PAY, "invoice_id": "\u202eR-7"}, raise_on_error=False)

    assert '"\\u202eR-7"' in asked[0]


async def test_the_answer_of_a_client_never_stands_for_the_operator() -> None:
    async def elicit(message: str, *_: Any) -> Any:
        return ElicitResult(action="accept", content={})

    desk = Desk(policy=Policy([Rule.ask("pay", by="operator")]), customer_answers=True)
    async with desk.connect(elicitation_handler=elicit) as client:
        with pytest.raises(Exception, match=r"input_required|rounds|round"):
            await client.call_tool("pay", PAY)

    assert desk.paid == []


async def test_a_repeated_result_says_so_in_its_structured_part() -> None:
    async def look_up(what: str) -> dict[str, str]:
        return {"found": what}

    desk = Desk(policy=ALLOW)
    desk.server.tool(look_up, name="note")
    async with desk.connect() as client:
        first, second = [await client.call_tool("pay", PAY) for _ in range(2)]
        third, fourth = [await client.call_tool("note", {"what": "x"}) for _ in range(2)]

    assert desk.paid == [("R-7", 100)]
    assert first.structured_content == {"result": "paid 100"}
    assert second.data == "paid 100"
    assert "Already done" in second.structured_content["notice"]
    assert third.structured_content == {"found": "x"}
    assert fourth.structured_content["found"] == "x"
    assert "Already done" in fourth.structured_content["notice"]


class Again(Middleware):
    """Runs what failed a second time, in its own way."""

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        try:
            return await call_next(context)
        except Exception:
            return await call_next(context)


async def test_a_middleware_that_enters_a_tool_a_second_time_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    entered: list[str] = []

    async def pay(invoice_id: str, amount: int) -> str:
        entered.append(invoice_id)
        raise ConnectionError("reset")

    desk = Desk(policy=ALLOW, pay=pay)
    desk.server.add_middleware(Again())
    async with desk.connect() as client:
        assert isinstance(await call(client), mcp_types.InputRequiredResult)  # A doubt.

    assert entered == ["R-7"]
    assert "was entered a second time under one claim" in caplog.text
    assert len(await desk.executor.doubts()) == 1


async def test_a_retry_of_a_mounted_server_is_refused() -> None:
    desk = Desk(policy=ALLOW)
    inner = FastMCP("inner")
    inner.add_middleware(RetryMiddleware(max_retries=2, base_delay=0.0))
    desk.server.mount(inner, namespace="inner")
    async with desk.connect() as client:
        with pytest.raises(Exception, match="Internal server error"):
            await client.call_tool("pay", PAY)

    assert desk.paid == []


async def test_the_answer_of_a_client_is_about_no_call_of_another_tenant() -> None:
    desk = Desk(customer_answers=True)
    call_ids: list[str | None] = []

    async def elicit(message: str, *_: Any) -> Any:
        if call_ids:
            return ElicitResult(action="decline", content={})
        (own,) = await desk.executor.approvals.pending(session_id="s-1")
        call_ids.append(own.call_id)
        await desk.executor.approvals.withdraw(own.token)
        other = ToolContext(session_id="s-1", tenant_id="acme", customer_id="c-1", turn=1)
        sent = ToolCall(id=own.call_id or "", name="pay", arguments_json=json.dumps({**PAY, "amount": 9_000}))
        await desk.executor.guard(sent, other, lambda _: None)
        return ElicitResult(action="accept", content={})

    async with desk.connect(elicitation_handler=elicit) as client:
        await client.call_tool("pay", PAY, raise_on_error=False)

    (waiting,) = await desk.executor.approvals.pending(tenant_id="acme")
    assert [waiting.call_id] == call_ids
