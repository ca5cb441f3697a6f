"""What an MCP server asks a person in the middle of a call: the host answers, and everything else is a refusal."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel, Field

from handrail import ConfigError, Executor, Policy, Rule, ToolCall, ToolContext, ToolResult
from handrail.authorize import MemoryApprovals
from handrail.core import Approval, ApprovalUsed
from handrail.sources import Elicitation, McpServer, ask_for_approval, connect
from tests.execute.helpers import Heard
from tests.sources.serving import listening

BOTH = pytest.mark.parametrize("protocol", ["legacy", "auto"])


class Booking(BaseModel):
    """The form that the server wants to have filled in."""

    guests: Annotated[int, Field(ge=1, le=10)]
    breakfast: bool = False


def make_server() -> MCPServer:
    server = MCPServer("hotel")

    async def ask(hotel: str) -> Elicit[Booking]:
        return Elicit(f"How many guests come to {hotel}?", Booking)

    @server.tool()
    async def book(hotel: str, booking: Annotated[ElicitationResult[Booking], Resolve(ask)]) -> str:
        """Book a room."""
        if isinstance(booking, AcceptedElicitation):
            return f"booked for {booking.data.guests}"
        return f"not booked: {booking.action}"

    @server.tool()
    async def pay(ctx: Context, url: str) -> str:
        """Pay on another page."""
        return (await ctx.elicit_url("Pay there.", url, "e-1")).action

    return server


async def run(
    on_elicitation: Callable[[Elicitation], Any] | None,
    *,
    protocol: str = "auto",
    name: str = "book",
    arguments: str = '{"hotel": "Adlon"}',
    times: int = 1,
    **options: Any,
) -> list[ToolResult]:
    server = make_server()
    async with listening(server.streamable_http_app()) as url:
        hotel = McpServer("hotel", url=f"{url}/mcp", protocol=protocol, on_elicitation=on_elicitation, **options)
        async with connect([hotel]) as sources:
            executor = Executor(sources.tools, policy=Policy([Rule.allow("*")]))
            calls = [ToolCall(id=f"c-{n}", name=f"hotel__{name}", arguments_json=arguments) for n in range(times)]
            contexts = [ToolContext(session_id=f"s-{n}", customer_id=f"customer-{n}") for n in range(times)]
            return list(await asyncio.gather(*map(executor.run, calls, contexts)))


@BOTH
async def test_the_host_answers_a_question_and_knows_whose_call_it_belongs_to(protocol: str) -> None:
    asked: list[Elicitation] = []

    async def answer(question: Elicitation) -> dict[str, Any]:
        asked.append(question)
        return {"guests": 2}

    (result,) = await run(answer, protocol=protocol)
    (question,) = asked
    assert result.output == {"result": "booked for 2"}
    assert (question.server, question.message) == ("hotel", "How many guests come to Adlon?")
    assert question.schema is not None
    assert set(question.schema["properties"]) == {"guests", "breakfast"}
    assert question.context is not None
    assert question.context.customer_id == "customer-0"


@BOTH
@pytest.mark.parametrize(
    ("answer", "action"),
    [
        (None, "decline"),
        (False, "decline"),
        ({"guests": 11}, "cancel"),  # It does not fit what was asked.
        ({"guests": "two"}, "cancel"),
        (True, "cancel"),  # There are fields to be filled in.
        ("yes", "cancel"),
        (RuntimeError("canary"), "cancel"),
    ],
)
async def test_anything_but_a_fitting_response_is_a_refusal(protocol: str, answer: Any, action: str) -> None:
    def reply(question: Elicitation) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    (result,) = await run(reply, protocol=protocol)
    assert f"not booked: {action}" in result.for_model()


async def test_a_response_that_never_comes_does_not_hold_the_connection() -> None:
    started = asyncio.Event()

    async def hang(question: Elicitation) -> bool:
        started.set()
        await asyncio.Event().wait()
        return True

    (result,) = await run(hang, timeout=0.3)
    assert started.is_set()
    assert result.error is not None
    assert result.error.code == "outcome_unknown"


async def test_several_calls_at_once_are_told_apart_by_the_newer_protocol() -> None:
    def answer(question: Elicitation) -> dict[str, Any]:
        assert question.context is not None
        return {"guests": int(question.context.session_id[2:]) + 1}

    results = await run(answer, times=3)
    said = [result.for_model() for result in results]
    assert all(f"booked for {n}" in text for n, text in enumerate(said, start=1))


@pytest.mark.parametrize(("url", "action"), [("https://pay.example/1", "accept"), ("http://pay.example/1", "decline")])
async def test_a_person_is_sent_to_pages_with_https_only(url: str, action: str) -> None:
    asked: list[str | None] = []

    def answer(question: Elicitation) -> bool:
        asked.append(question.url)
        return True

    (result,) = await run(answer, protocol="legacy", name="pay", arguments=f'{{"url": "{url}"}}')
    assert action in result.for_model()
    assert asked == ([url] if action == "accept" else [])


@BOTH
async def test_without_anybody_to_ask_nothing_is_booked(protocol: str) -> None:
    (result,) = await run(None, protocol=protocol)
    assert result.error is not None
    assert result.error.code == "tool_execution_failed"  # And not of unknown outcome.


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_elicitation must be a function, got bool"):
        McpServer("hotel", url="https://hotel.example/mcp", on_elicitation=True)  # pyright: ignore[reportArgumentType]


async def decide(approvals: MemoryApprovals, **decision: Any) -> Approval:
    """Wait for the question, and decide it as an operator."""
    async with asyncio.timeout(30):
        while not (pending := await approvals.pending()):
            await asyncio.sleep(0.01)
    (question,) = pending
    if decision.pop("deny", False):
        return await approvals.deny(question.token, by="operator", who="bo")
    return await approvals.approve(question.token, by="operator", who="bo", **decision)


@BOTH
@pytest.mark.parametrize(
    ("decision", "output"),
    [
        ({"arguments": {"guests": 3}}, "booked for 3"),
        ({"arguments": {"guests": 99}}, "not booked: cancel"),
        ({"deny": True}, "not booked: decline"),
    ],
)
async def test_a_question_can_be_an_approval_that_an_operator_decides(
    protocol: str, decision: dict[str, Any], output: str
) -> None:
    approvals, heard = MemoryApprovals(), Heard()
    approvals.events.set_audit(heard)
    deciding = asyncio.create_task(decide(approvals, **decision))

    (result,) = await run(ask_for_approval(approvals), protocol=protocol)
    question = await deciding

    assert result.output == {"result": output}
    assert (question.session_id, question.call_id, question.tool) == ("s-0", "c-0", "hotel__elicitation")
    assert question.question == "The MCP server hotel asks: How many guests come to Adlon?"
    assert [used.call_id for used in heard.of(ApprovalUsed)] == ([] if decision.get("deny") else ["c-0"])
    assert await approvals.pending() == []


async def test_an_approval_that_nobody_decides_is_withdrawn_and_books_nothing() -> None:
    approvals = MemoryApprovals()

    (result,) = await run(ask_for_approval(approvals, timeout=0.05))

    assert result.output == {"result": "not booked: cancel"}
    assert await approvals.pending() == []
