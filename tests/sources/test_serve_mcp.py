"""An executor that any MCP client can use: the official SDK's client, over stdio and HTTP, in both eras."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel.server import Server

from handrail import Executor, MediaPart, Policy, Rule, ToolCall, ToolContext, ToolError, ToolResult, tool
from handrail.core import CallFinished, Event
from handrail.sources import McpRequest, McpServer, connect, mcp_app
from tests.sources.bank_server import balance, make_executor, pay, work
from tests.sources.serving import listening

BANK = StdioServerParameters(
    command=sys.executable, args=["-m", "tests.sources.bank_server"], cwd=Path(__file__).parents[2]
)


class Person:
    """Whoever sits at the client: answers every question alike, and keeps them."""

    def __init__(self, action: str = "accept") -> None:
        self.action: Any = action
        self.questions: list[str] = []

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.questions.append(params.message)
        return types.ElicitResult(action=self.action, content={} if self.action == "accept" else None)


@asynccontextmanager
async def http_client(
    executor: Executor, *, mode: str, person: Person | None = None, **app: Any
) -> AsyncGenerator[Client]:
    async with (
        listening(mcp_app(executor, **app)) as url,
        Client(f"{url}/mcp", mode=mode, elicitation_callback=person) as client,
    ):
        yield client


def text(result: types.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))


async def test_a_process_serves_its_executor_over_stdio() -> None:
    person, steps = Person(), []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total, message))

    async with Client(BANK, mode="legacy", elicitation_callback=person) as client:
        tools = {item.name: item for item in (await client.list_tools()).tools}
        assert list(tools) == ["balance", "pay", "close_account", "work"]
        assert tools["balance"].annotations is not None
        assert tools["balance"].annotations.read_only_hint is True
        assert (await client.call_tool("balance", {"account": "a"})).structured_content == {
            "account": "a",
            "balance": 120,
        }
        assert text(await client.call_tool("work", {"steps": 2}, progress_callback=progress)) == "worked"
        assert steps == [(0.5, 1.0, "step 1"), (1.0, 1.0, "step 2")]
        wrong = await client.call_tool("pay", {"to": "Ann", "amount": "much"})
        assert wrong.is_error
        assert "invalid_arguments" in text(wrong)
        with pytest.raises(MCPError, match="no tool named `pey`"):
            await client.call_tool("pey", {})
        assert person.questions == []
        assert text(await client.call_tool("pay", {"to": "Ann", "amount": 5})) == "paid 5 to Ann (1 in all)"
        assert (
            person.questions == ['Allow pay to run with {"to":"Ann","amount":5}? (no rule speaks of it)']
            or len(person.questions) == 1
        )


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_that_can_is_asked_and_a_payment_is_made_once(mode: str) -> None:
    heard: list[Event] = []
    executor = Executor([balance, pay, work], listeners=[heard.append])
    person = Person()
    async with http_client(executor, mode=mode, person=person) as client:
        paid = await client.call_tool("pay", {"to": "Bob", "amount": 7})
        assert not paid.is_error
        assert "paid 7 to Bob" in text(paid)
        assert len(person.questions) == 1
        assert '{"to":"Bob","amount":7}' in person.questions[0]
        person.action = "decline"  # The same once more is a question of its own.
        again = await client.call_tool("pay", {"to": "Bob", "amount": 7})
        assert again.is_error
        assert "permission_denied" in text(again)
        assert len(person.questions) == 2
        assert "already done" in person.questions[1]
    finished = [
        event.result.error.code if event.result.error else "ok" for event in heard if isinstance(event, CallFinished)
    ]
    assert finished == ["approval_required", "ok", "approval_required", "permission_denied"]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_nobody_is_asked_to_agree_to_arguments_that_a_question_does_not_show(mode: str) -> None:
    person = Person()
    async with http_client(Executor([pay]), mode=mode, person=person) as client:
        long = await client.call_tool("pay", {"to": "Bob" + " " * 2_000 + "and Eve", "amount": 7})
        assert "approval_required" in text(long)
        assert "decide about the approval apr_" in text(long)
        assert person.questions == []
        await client.call_tool("pay", {"to": "Bob\N{RIGHT-TO-LEFT OVERRIDE}", "amount": 7})
        assert '"to":"Bob\\u202e"' in person.questions[0]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_that_cannot_be_asked_gets_instructions_to_approve(mode: str) -> None:
    executor = make_executor()
    async with http_client(executor, mode=mode, approval_hint="See https://ops.example/{token}.") as client:
        first = await client.call_tool("pay", {"to": "Cy", "amount": 1})
        assert first.is_error
        (approval,) = await executor.approvals.pending()
        assert f"See https://ops.example/{approval.token}." in text(first)
        await executor.approvals.approve(approval.token, by="customer", who="Cy")
        second = await client.call_tool("pay", {"to": "Cy", "amount": 1})
        assert not second.is_error


async def test_what_an_operator_has_to_decide_is_not_asked_at_the_client() -> None:
    executor, person = make_executor(), Person()
    async with http_client(executor, mode="legacy", person=person) as client:
        result = await client.call_tool("close_account", {"account": "a"})
        assert result.is_error
        assert person.questions == []
        (approval,) = await executor.approvals.pending()
        assert approval.by == "operator"
        assert approval.token in text(result)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_session_is_the_clients_and_the_context_is_made_from_it(mode: str) -> None:
    asked: list[McpRequest] = []
    seen: list[ToolContext[Any]] = []

    @tool(read_only=True)
    def look(context: ToolContext) -> str:
        """Look who asks."""
        seen.append(context)
        return "seen"

    def make(request: McpRequest) -> ToolContext[str]:
        asked.append(request)
        return ToolContext(session_id=request.session_id, tenant_id="t", deps="bank")

    async with http_client(Executor([look], policy=Policy()), mode=mode, context=make) as client:
        await client.call_tool("look", {})
        await client.call_tool("look", {})
    assert len({context.session_id for context in seen}) == 1
    assert seen[0].turn < seen[1].turn
    assert (seen[0].tenant_id, seen[0].deps) == ("t", "bank")
    assert {request.client for request in asked} == {"mcp"}
    assert all("user-agent" in request.headers for request in asked)


async def test_one_client_cannot_answer_a_question_of_another() -> None:
    executor = make_executor()

    def make(request: McpRequest) -> ToolContext[None]:
        return ToolContext(session_id=request.headers["authorization"])

    async with listening(mcp_app(executor, context=make)) as url:
        for who in ("ann", "bob"):
            http = httpx2.AsyncClient(headers={"Authorization": who})
            async with (
                http,
                Client(streamable_http_client(f"{url}/mcp", http_client=http), mode="2026-07-28") as client,
            ):
                if who == "ann":
                    await client.call_tool("pay", {"to": "Dan", "amount": 9})
                    (approval,) = await executor.approvals.pending()
                else:
                    yes = {"approval": types.ElicitResult(action="accept", content={})}
                    await client.call_tool(
                        "pay", {"to": "Dan", "amount": 9}, input_responses=yes, request_state=approval.token
                    )
    assert [item.state for item in await executor.approvals.pending(session_id="ann")] == ["pending"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_clients_are_notified_that_the_tools_have_changed(mode: str) -> None:
    executor = Executor([balance])
    async with (
        listening(mcp_app(executor)) as url,
        connect([McpServer("bank", url=f"{url}/mcp", protocol=mode)]) as sources,
    ):
        assert [tool.name for tool in sources.tools] == ["bank__balance"]
        changed = asyncio.Event()
        sources.subscribe(changed.set)
        await asyncio.to_thread(executor.replace_tools, [balance, pay])
        async with asyncio.timeout(60):
            await changed.wait()
        assert [tool.name for tool in sources.tools] == ["bank__balance", "bank__pay"]


async def test_a_client_that_the_context_refuses_gets_nothing() -> None:
    def refuse(request: McpRequest) -> ToolContext[None]:
        raise PermissionError("who are you")

    async with http_client(make_executor(), mode="legacy", context=refuse) as client:
        with pytest.raises(MCPError, match="may not use these tools"):
            await client.list_tools()
        with pytest.raises(MCPError, match="may not use these tools"):
            await client.call_tool("balance", {"account": "a"})


MEDIA = (
    MediaPart(mime_type="image/png", data=b"\x89PNG"),
    MediaPart(mime_type="audio/wav", data=b"RIFF"),
    MediaPart(mime_type="application/pdf", data=b"%PDF", uri="file:///report.pdf"),
)


async def test_media_go_out_as_what_they_are_and_come_back_the_same() -> None:
    @tool(read_only=True)
    async def draw() -> ToolResult:
        """Draw."""
        link = {"type": "resource_link", "uri": "https://a.example/b", "name": "b"}
        return ToolResult(output=["Drawn.", link], media=MEDIA)

    @tool(read_only=True)
    async def look() -> MediaPart:
        """Look."""
        return MEDIA[0]

    async with listening(mcp_app(Executor([draw, look]))) as url:
        async with Client(f"{url}/mcp") as client:
            shown = (await client.call_tool("draw", {})).content
            (only,) = (await client.call_tool("look", {})).content
        async with connect([McpServer("art", url=f"{url}/mcp", trusted=True)]) as sources:
            executor = Executor(sources.tools)
            again = await executor.run(ToolCall(id="c-1", name="art__draw"), ToolContext(session_id="s"))
    assert [block.type for block in shown] == ["text", "resource_link", "image", "audio", "resource"]
    assert isinstance(only, types.ImageContent)
    assert (only.mime_type, only.data) == ("image/png", MEDIA[0].base64)
    assert (again.output, again.media) == (
        ["Drawn.", {"type": "resource_link", "uri": "https://a.example/b", "name": "b"}],
        MEDIA,
    )


KEY = "handrail/idempotencyKey"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_an_effect_with_an_idempotency_key_happens_once(mode: str) -> None:
    paid: list[int] = []
    failing = ["The bank is closed.", "Still closed."]

    @tool
    def transfer(amount: int) -> str:
        """Transfer money."""
        if failing:
            raise ToolError(failing.pop(0))
        paid.append(amount)
        return f"transferred {amount}"

    async with http_client(Executor([transfer], policy=Policy([Rule.allow("*")])), mode=mode) as client:

        async def send(key: Any, amount: int) -> str:
            return text(await client.call_tool("transfer", {"amount": amount}, meta={KEY: key}))

        assert "The bank is closed." in await send("k-1", 5)
        assert "Still closed." in await send("k-1", 5)  # Nothing had happened: the same key is tried again.
        assert [await send("k-1", 5) for _ in range(3)] == ["transferred 5"] * 3
        assert "duplicate_call" in await send("k-1", 6)
        assert await send("k-2", 7) == "transferred 7"
        for wrong in ("", "a\nb", "x" * 201, 7):
            with pytest.raises(MCPError, match="must be 1 to 200 printable characters"):
                await send(wrong, 8)
    assert paid == [5, 7]


async def test_no_key_of_a_client_is_the_second_attempt_of_another_key() -> None:
    paid: list[int] = []

    @tool
    def transfer(amount: int) -> str:
        """Transfer money."""
        if amount == 5 and not paid:
            raise ToolError("The bank is closed.")
        paid.append(amount)
        return f"transferred {amount}"

    async with http_client(Executor([transfer], policy=Policy([Rule.allow("*")])), mode="legacy") as client:
        for key, amount in (("k", 5), ("k#1", 7), ("#1:k", 8), ("k", 5), ("##1:k", 9)):
            await client.call_tool("transfer", {"amount": amount}, meta={KEY: key})
    assert paid == [7, 8, 5, 9]


async def test_handrail_sends_the_key_of_a_consequential_call_and_none_of_a_read() -> None:
    sent: list[Any] = []

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        hints = types.ToolAnnotations(read_only_hint=True)
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        look = types.Tool(name="look", input_schema=schema, annotations=hints)
        return types.ListToolsResult(tools=[look, types.Tool(name="act", input_schema=schema)])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        sent.append((params.name, (params.meta or {}).get(KEY)))
        return types.CallToolResult(content=[types.TextContent(text="No.")], is_error=True)

    server: Server[Any] = Server("plain", on_list_tools=list_tools, on_call_tool=call_tool)
    async with (
        listening(server.streamable_http_app()) as url,
        connect([McpServer("plain", url=f"{url}/mcp", trusted=True)]) as sources,
    ):
        executor = Executor(sources.tools, policy=Policy([Rule.allow("*")]))
        for id, name, n in [("1", "look", 1), ("2", "act", 1), ("3", "act", 1), ("4", "act", 2)]:
            call = ToolCall(id=id, name=f"plain__{name}", arguments_json=f'{{"n": {n}}}')
            await executor.run(call, ToolContext(session_id="s"))
    (_, none), (_, first), (_, again), (_, other) = sent
    assert none is None
    assert first
    assert first == again  # The first attempt failed, and this is another one of the same effect.
    assert other != first
