"""MCP servers over streamable HTTP, on a real socket."""

import asyncio
import json
import socket
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer

from handrail import ConfigError, Executor, Policy, Rule, ToolCall, ToolContext, ToolResult
from handrail.execute import Timeouts
from handrail.sources import McpServer, Sources, connect
from handrail.sources.mcp import client
from tests.sources.serving import listening

ALLOW = Policy([Rule.allow("*")])


class Seen:
    """An app in front of another one: it keeps the headers of the requests, and refuses those without a token."""

    def __init__(self, app: Any, token: str | None = None) -> None:
        self.app = app
        self.token = token
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.headers.append(headers)
            if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self.app(scope, receive, send)

    def of_calls(self, name: str) -> list[str | None]:
        return [header.get(name) for header in self.headers if header.get("mcp-method") == "tools/call"]


def make_server() -> MCPServer:
    server = MCPServer("crm")

    @server.tool()
    def who(ctx: Context) -> str:
        """Say whose request it is."""
        return (ctx.headers or {}).get("x-tenant", "nobody")

    @server.tool()
    async def add_tool(ctx: Context) -> str:
        """Learn something new."""
        server.add_tool(lambda: "new", name="new", description="A new tool.")
        await ctx.notify_tools_changed()
        return "added"

    @server.tool()
    def much(n: int) -> str:
        """Say much."""
        return "x" * n

    return server


async def run(sources: Sources, name: str, arguments: str = "{}", **context: Any) -> ToolResult:
    executor = Executor(sources.tools, policy=ALLOW, timeouts=Timeouts(call=20))
    call = ToolCall(id="c1", name=f"crm__{name}", arguments_json=arguments)
    return await executor.run(call, ToolContext(session_id="s", **context))


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stateless", [False, True])
async def test_a_server_over_http_is_called_and_its_new_tools_arrive(stateless: bool) -> None:
    app = make_server().streamable_http_app(stateless_http=stateless)
    async with listening(app) as url, connect([McpServer("crm", url=f"{url}/mcp")]) as sources:
        changed = asyncio.Event()
        sources.subscribe(changed.set)
        assert [tool.name for tool in sources.tools] == ["crm__who", "crm__add_tool", "crm__much"]
        assert (await run(sources, "who")).output == {"result": "nobody"}
        await run(sources, "add_tool")
        async with asyncio.timeout(60):
            await changed.wait()
        assert (await run(sources, "new")).output == "new"


async def test_every_tenant_has_headers_and_a_connection_of_its_own() -> None:
    seen = Seen(make_server().streamable_http_app())

    def headers(context: ToolContext[Any] | None) -> dict[str, str]:
        return {"X-Tenant": context.tenant_id or ""} if context is not None else {}

    async with listening(seen) as url, connect([McpServer("crm", url=f"{url}/mcp", headers=headers)]) as sources:
        results = await asyncio.gather(*(run(sources, "who", tenant_id=tenant) for tenant in ("a", "b", "a", "c")))
        assert [result.output["result"] for result in results] == ["a", "b", "a", "c"]
        assert sorted(map(str, seen.of_calls("x-tenant"))) == ["a", "a", "b", "c"]


async def test_a_bearer_token_is_a_reference_and_may_be_the_secret_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(make_server().streamable_http_app(), token="t1")
    monkeypatch.setenv("CRM_TOKEN", "t1")
    (tmp_path / "token").write_text("t1\n")
    async with listening(seen) as url:
        for bearer in ("env:CRM_TOKEN", f"file:{tmp_path / 'token'}", lambda: "t1"):
            async with connect([McpServer("crm", url=f"{url}/mcp", bearer=bearer)]) as sources:
                assert (await run(sources, "who")).ok
        server = McpServer("crm", url=f"{url}/mcp", bearer="secret:crm")
        async with connect([server], secrets={"crm": "t1"}) as sources:
            assert (await run(sources, "who", secrets={"crm": "t1"})).ok
            refused = await run(sources, "who", secrets={"crm": "t2"})
            assert refused.error is not None
            assert refused.error.code == "unavailable"
            assert "t2" not in repr(sources.status) + repr(server)
        async with connect([server]) as sources:
            assert sources.status["crm"].state == "reconnecting"
            assert sources.status["crm"].reason == "HTTP status 401"
            assert sources.tools == ()
        monkeypatch.delenv("CRM_TOKEN")
        async with connect([McpServer("crm", url=f"{url}/mcp", bearer="env:CRM_TOKEN")]) as sources:
            assert sources.status["crm"].state == "failed"
            assert "the environment variable CRM_TOKEN, which is not set" in sources.status["crm"].reason


async def test_a_server_that_goes_away_disables_its_tools_until_it_is_back() -> None:
    async with listening(make_server().streamable_http_app()) as url:
        port = int(url.rpartition(":")[2])
        opened = connect([McpServer("crm", url=f"{url}/mcp")])
        sources = await opened.__aenter__()
        assert (await run(sources, "who")).ok
    try:
        away = await run(sources, "who")
        assert away.error is not None
        assert (away.error.code, away.error.retryable) == ("unavailable", True)
        assert sources.status["crm"].state == "reconnecting"
        assert len(sources.tools) == 3
        async with listening(make_server().streamable_http_app(), port):
            await until(lambda: sources.status["crm"].state == "connected")
            assert (await run(sources, "who")).ok
    finally:
        await opened.__aexit__(None, None, None)


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_response_that_is_too_long_is_dropped(as_json: bool) -> None:
    app = make_server().streamable_http_app(json_response=as_json)
    async with (
        listening(app) as url,
        connect([McpServer("crm", url=f"{url}/mcp", max_message_bytes=20_000)]) as sources,
    ):
        result = await run(sources, "much", '{"n": 50000}')
        assert result.error is not None
        assert result.error.code == "outcome_unknown"
        assert (await run(sources, "who")).ok


async def test_headers_that_fail_or_cannot_be_sent_do_nothing_at_the_server() -> None:
    seen = Seen(make_server().streamable_http_app())
    wanted: dict[str, Any] = {"fails": None, "breaks": "a\r\nX-Evil: 1"}

    def headers(context: ToolContext[Any] | None) -> dict[str, str]:
        return {} if context is None else {"X-Tenant": wanted[context.tenant_id or ""].strip()}

    async with listening(seen) as url, connect([McpServer("crm", url=f"{url}/mcp", headers=headers)]) as sources:
        for tenant in wanted:
            result = await run(sources, "who", tenant_id=tenant)
            assert result.error is not None
            assert result.error.code == "unavailable"
        # The listing connection may still open the stream of its notifications; a call's headers name the tenant.
        assert seen.of_calls("x-tenant") == []
        assert [header for header in seen.headers if {"x-tenant", "x-evil"} & header.keys()] == []


async def test_a_secret_that_nobody_needs_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(make_server().streamable_http_app(), token="t1")
    async with (
        listening(seen) as url,
        connect([McpServer("crm", url=f"{url}/mcp", bearer="secret:crm")], secrets={"crm": "t1"}) as sources,
    ):
        executor = Executor(sources.tools, policy=ALLOW, secrets={"crm": lambda: "t1", "other": "env:NOT_SET"})
        result = await executor.run(ToolCall(id="c1", name="crm__who"), ToolContext(session_id="s"))
        assert result.ok


class Dropping:
    """A server of the older revision that takes a call, does it, and drops the stream with the answer."""

    def __init__(self) -> None:
        self.done = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["method"] != "POST":
            return await self.respond(send, 405, b"")
        message = json.loads((await receive())["body"])
        tool = {"name": "pay", "inputSchema": {"type": "object"}}
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "x", "version": "1"},
            },
            "tools/list": {"tools": [tool]},
        }
        if message["method"] == "tools/call":
            self.done += 1
            return await self.respond(send, 200, b"retry: 10\nid: 1\ndata:\n\n", b"text/event-stream")
        if message["method"] not in results:
            return await self.respond(send, 202 if "id" not in message else 400, b"")
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
        await self.respond(send, 200, json.dumps(answer).encode())

    async def respond(self, send: Any, status: int, body: bytes, kind: bytes = b"application/json") -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": body})


async def test_a_call_that_was_taken_is_of_unknown_outcome_whatever_follows_the_lost_stream() -> None:
    app = Dropping()
    async with listening(app) as url, connect([McpServer("crm", url=f"{url}/mcp")]) as sources:
        result = await run(sources, "pay")
        assert result.error is not None
        assert result.error.code == "outcome_unknown"
        assert app.done == 1


class Answers(Dropping):
    """A server of the older revision with an answer for each of its tools; `pay` waits until it may end."""

    def __init__(self) -> None:
        super().__init__()
        self.paying, self.may_pay = asyncio.Event(), asyncio.Event()
        self.sessions = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await super().__call__(scope, receive, send)
        body = await receive()
        message = json.loads(body["body"])
        if message["method"] == "initialize":
            self.sessions += 1
        if message["method"] == "tools/list":
            names = ("pay", "bomb", "stream_bomb", "odd", "broken", "refused")
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            for tool in tools[1:]:
                tool["annotations"] = {"readOnlyHint": True}
            return await self.reply(send, message, result={"tools": tools})
        if message["method"] != "tools/call":

            async def again() -> Any:
                return body

            return await super().__call__(scope, again, send)
        match message["params"]["name"]:
            case "pay":
                self.paying.set()
                await self.may_pay.wait()
                await self.reply(send, message, result={"content": [{"type": "text", "text": "paid"}]})
            case "broken":
                await self.reply(send, message, error={"code": -32000, "message": "The disk is full."})
            case "refused":
                await self.respond(send, 401, b"")
            case "odd":
                await self.respond_encoded(send, b"?", b"application/json", b"br")
            case "bomb":
                await self.respond_encoded(send, BOMB, b"application/json", b"gzip")
            case _:
                await self.respond_encoded(send, STREAM_BOMB, b"text/event-stream", b"gzip")

    async def reply(self, send: Any, message: Any, **answer: Any) -> None:
        await self.respond(send, 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode())

    async def respond_encoded(self, send: Any, body: bytes, kind: bytes, encoding: bytes) -> None:
        headers = [(b"content-type", kind), (b"content-encoding", encoding)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def compress(start: bytes, size: int, end: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(start), *(packer.compress(b"x" * 1_000_000) for _ in range(size)), packer.compress(end)]
    return b"".join([*pieces, packer.flush()])


BOMB = compress(b'{"jsonrpc": "2.0", "id": 2, "result": {"text": "', 100, b'"}}')
STREAM_BOMB = compress(b'data: {"jsonrpc": "2.0", "id": 2, "result": {"text": "', 100, b'"}}\n\n')


@pytest.mark.parametrize("name", ["bomb", "stream_bomb", "odd"])
async def test_what_a_compressed_answer_becomes_is_counted_while_it_is_read(name: str) -> None:
    async with (
        listening(Answers()) as url,
        connect([McpServer("crm", url=f"{url}/mcp", trusted=True, max_message_bytes=1_000_000)]) as sources,
    ):
        tracemalloc.start()
        try:
            result = await run(sources, name)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert result.error is not None
    assert result.error.code in ("unavailable", "tool_execution_failed")
    assert peak < 10_000_000  # 100 MB were sent; the rest is what the SDK and the server of this test need.


async def test_an_error_of_a_server_is_no_lost_connection_whatever_its_code() -> None:
    app = Answers()
    async with listening(app) as url, connect([McpServer("crm", url=f"{url}/mcp", trusted=True)]) as sources:
        result = await run(sources, "broken")
        again = await run(sources, "broken")
        assert sources.status["crm"].state == "connected"

    assert result.error is not None
    assert result.error.message == "The server reported an error: The disk is full."
    assert again.error == result.error
    assert app.sessions == 1


async def test_a_call_that_is_refused_does_not_drop_the_payment_of_another_session() -> None:
    app = Answers()
    async with listening(app) as url, connect([McpServer("crm", url=f"{url}/mcp", trusted=True)]) as sources:
        paying = asyncio.create_task(run(sources, "pay"))
        await app.paying.wait()
        refused = await run(sources, "refused")
        app.may_pay.set()
        paid = await paying

    assert refused.error is not None
    assert refused.error.code == "unavailable"
    assert (paid.ok, paid.output) == (True, "paid")


async def test_new_calls_need_not_wait_for_a_long_one_on_a_connection_that_was_refused() -> None:
    app = Answers()
    async with listening(app) as url, connect([McpServer("crm", url=f"{url}/mcp", trusted=True)]) as sources:
        paying = asyncio.create_task(run(sources, "pay"))
        await app.paying.wait()
        await run(sources, "refused")
        async with asyncio.timeout(60):
            while (other := await run(sources, "broken")).error is not None and other.error.code == "unavailable":
                await asyncio.sleep(0.05)
        was_paying = not paying.done()
        app.may_pay.set()
        paid = await paying

    assert other.error is not None
    assert other.error.message == "The server reported an error: The disk is full."
    assert was_paying
    assert (paid.ok, paid.output) == (True, "paid")
    assert app.sessions == 2


async def test_a_tenant_without_a_token_of_its_own_never_acts_with_the_one_of_the_listing() -> None:
    seen = Seen(make_server().streamable_http_app(), token="t1")
    async with (
        listening(seen) as url,
        connect([McpServer("crm", url=f"{url}/mcp", bearer="secret:crm")], secrets={"crm": "t1"}) as sources,
    ):
        nobody = await run(sources, "who", tenant_id="a")
        own = await run(sources, "who", tenant_id="b", secrets={"crm": "t1"})

    assert nobody.error is not None
    assert (nobody.error.code, own.ok) == ("unavailable", True)
    assert len(seen.of_calls("authorization")) == 1


@pytest.mark.parametrize("credentials", [{"bearer": "env:T"}, {"headers": {"X-Key": "k"}}, {"auth": object()}])
def test_credentials_are_not_sent_over_plain_http_to_a_public_host(credentials: dict[str, Any]) -> None:
    for url in ("http://mcp.example.com/mcp", "http://8.8.8.8/mcp", "http://[2606:4700::1111]/mcp"):
        with pytest.raises(ConfigError, match="url must be https where credentials are sent"):
            McpServer("crm", url=url, **credentials)
    for url in ("https://mcp.example.com/mcp", "http://127.0.0.1/mcp", "http://10.0.0.7/mcp", "http://crm:8080/mcp"):
        McpServer("crm", url=url, **credentials)


async def test_a_connection_with_a_call_under_way_is_not_closed_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_CONNECTIONS", 1)
    app = Answers()

    def headers(context: ToolContext[Any] | None) -> dict[str, str]:
        return {"X-Tenant": context.tenant_id or ""} if context is not None else {}

    async with (
        listening(app) as url,
        connect([McpServer("crm", url=f"{url}/mcp", headers=headers, trusted=True)]) as sources,
    ):
        paying = asyncio.create_task(run(sources, "pay", tenant_id="a"))
        await app.paying.wait()
        for tenant in ("b", "c", "d"):
            await run(sources, "broken", tenant_id=tenant)
        app.may_pay.set()
        paid = await paying

    assert (paid.ok, paid.output) == (True, "paid")
    assert app.sessions == 5  # The listing's, and one for each tenant.


PLAIN: dict[str, Any] = {"type": "object"}
BAD_DEFINITIONS: list[Any] = [
    *(None, "a text", 5, [], {}, {"inputSchema": PLAIN}, {"name": 5, "inputSchema": PLAIN}, {"name": "none"}),
    *({"name": "s", "inputSchema": schema} for schema in ([], True, {}, {"type": "string"}, {"type": ["object"]})),
    *({"name": "p", "inputSchema": {**PLAIN, "properties": value}} for value in (None, [], {"x": True}, {"x": None})),
    *({"name": "r", "inputSchema": {**PLAIN, "required": value}} for value in (None, "x", [1])),
    *({"name": "o", "inputSchema": PLAIN, "outputSchema": value} for value in ([], {**PLAIN, "required": "x"})),
    {"name": "d", "inputSchema": {**PLAIN, "$schema": 5}},
    {"name": "e", "inputSchema": PLAIN, "outputSchema": {**PLAIN, "$schema": 5}},
    *({"name": "a", "inputSchema": PLAIN, "annotations": value} for value in ("x", {"readOnlyHint": "perhaps"})),
    *({"name": "m", "inputSchema": PLAIN, key: 5} for key in ("description", "title", "icons", "_meta")),
]


class Listing(Dropping):
    """A server of one revision of the protocol that lists bad definitions, and good ones."""

    def __init__(self, version: str, tools: list[Any]) -> None:
        super().__init__()
        self.version = version
        self.tools = tools

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await super().__call__(scope, receive, send)
        message = json.loads((await receive())["body"])
        info = {"capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
        modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        results: dict[str, Any] = {"tools/list": {"tools": self.tools, **modern}}
        if self.version.startswith("2026"):
            results["server/discover"] = {"supportedVersions": [self.version], **info, **modern}
        else:
            results["initialize"] = {"protocolVersion": self.version, **info}
        if "id" not in message:
            return await self.respond(send, 202, b"")
        answer = (
            {"result": results[message["method"]]}
            if message["method"] in results
            else {"error": {"code": -32601, "message": "Method not found"}}
        )
        await self.respond(send, 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode())


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"])
async def test_a_bad_definition_is_one_diagnostic_on_every_revision(version: str) -> None:
    good = {"name": "ok", "inputSchema": PLAIN}
    text = {"name": "text", "inputSchema": PLAIN, "outputSchema": {"type": "string"}}
    is_modern = version.startswith("2026")
    async with (
        listening(Listing(version, [*BAD_DEFINITIONS, text, good])) as url,
        connect([McpServer("crm", url=f"{url}/mcp")]) as sources,
    ):
        status = sources.status["crm"]
        assert status.state == "connected", status.reason
        # Only the newest revision has outputs that are no objects.
        assert [tool.name for tool in sources.tools] == (["crm__text", "crm__ok"] if is_modern else ["crm__ok"])
        assert status.skipped


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "localhost", "rebound.example"])
async def test_a_name_that_leads_into_a_private_network_is_not_connected_to(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = socket.getaddrinfo

    def resolve(name: Any, *args: Any, **options: Any) -> Any:
        return asked("127.0.0.1" if name == "rebound.example" else name, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    seen = Seen(make_server().streamable_http_app())
    async with listening(seen) as url:
        port = url.rpartition(":")[2]
        server = McpServer("crm", url=f"http://{host}:{port}/mcp", allow_private=False, connect_timeout=5)
        async with connect([server]) as sources:
            status = sources.status["crm"]
            assert (status.state, status.tools) == ("reconnecting", 0)
            assert "is in a private network" in status.reason
    assert seen.headers == []


async def test_a_name_server_that_does_not_answer_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), threading.Semaphore(0)

    def resolve(name: Any, *args: Any, **options: Any) -> Any:
        asked.release()
        release.wait(60)
        raise socket.gaierror(f"nobody knows {name}")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    urls = [f"https://host-{number}.example/mcp" for number in range(40)]
    every = [McpServer(f"crm-{number}", url=url, allow_private=False) for number, url in enumerate(urls)]

    async def open_all() -> None:
        async with connect(every):
            pass

    opening = asyncio.create_task(open_all())
    try:
        async with asyncio.timeout(30):
            while not asked.acquire(blocking=False):
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(lambda: "done") == "done"
    finally:
        release.set()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)


async def test_a_server_at_an_address_that_was_checked_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def resolve(host: str, port: int, *, allow_private: bool) -> list[str]:
        tried.append(host)
        return ["127.0.0.2", "127.0.0.1"]  # The first one is not there.

    monkeypatch.setattr("handrail.sources.mcp.http.resolve_host", resolve)
    seen = Seen(make_server().streamable_http_app(host="0.0.0.0"))
    async with listening(seen) as url:
        address = f"crm.example:{url.rpartition(':')[2]}"
        async with connect([McpServer("crm", url=f"http://{address}/mcp", allow_private=False)]) as sources:
            assert (await run(sources, "who")).output == {"result": "nobody"}
    assert set(tried) == {"crm.example"}
    assert {header["host"] for header in seen.headers} == {address}
