"""How many files a reader visits who follows one call: `python -m benchmarks.walks [--path] [NAME ...]`

Traces the calls of Python functions inside `handrail/` while a warm executor does something for the second time.
*Files* are the modules that take part, *switches* how often the next function is in another module than the one before,
*calls* the functions that are called, and *python* those outside of `handrail/`, too; what is resumed is not counted
again. `--path` prints the modules in the order in which they are reached.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from msgspec import structs
from openai import AsyncOpenAI

import handrail
from handrail import Agent, ChatSession, Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.guide import Draft, GuidelineMatch, Plan, PlanRequest, ReplyRequest, ToolVerdict
from handrail.phone import Acceptance, PhoneGateway
from handrail.sources import McpServer, connect, mcp_app
from handrail.tenants import TenantConfig, TenantDirectory, ToolBuilder
from handrail.testing import ScriptedProvider
from handrail.testing.phone import sign_webhook
from handrail.testing.servers import tool_calls

PACKAGE = str(Path(handrail.__file__).parent) + "/"
DOUBLES = f"{PACKAGE}testing/"
"""What stands for a model or a provider is not on the way."""
ALLOWED = Policy([Rule.allow("pay")])


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What is traced, and what has to happen before each time."""

    run: Callable[[], Awaitable[object]]
    before: Callable[[], Awaitable[object]] | None = None


Prepare = Callable[[], AbstractAsyncContextManager[Operation]]


@dataclass(frozen=True, kw_only=True)
class Walk:
    """The modules of one operation, in the order of the calls."""

    name: str
    modules: tuple[str, ...]
    python_calls: int
    """How many functions were called, of whatever package."""

    @property
    def files(self) -> int:
        """How many modules take part."""
        return len(set(self.modules))

    @property
    def stops(self) -> list[str]:
        """The modules in order, without repetitions of neighbours."""
        return [module for module, _ in groupby(self.modules)]

    @property
    def switches(self) -> int:
        """How often the module changes."""
        return max(0, len(self.stops) - 1)


@tool(read_only=True, concurrency_safe=True)
async def balance(account: str) -> str:
    """Look up the balance of an account."""
    return f"{account}: 20"


@tool(key=("to", "amount"))
async def pay(to: str, amount: int, context: ToolContext[Any]) -> str:
    """Pay an amount to somebody."""
    return f"paid {amount} to {to}, {context.idempotency_key}"


def make_call(name: str, number: int) -> ToolCall:
    """A call that the executor has not seen."""
    arguments = {"to": "Ann", "amount": number} if name == "pay" else {"account": f"a-{number}"}
    return ToolCall(id=f"call_{number}", name=name, arguments_json=json.dumps(arguments))


@asynccontextmanager
async def run_calls(name: str) -> AsyncGenerator[Operation]:
    """One call, straight to an executor."""
    executor = Executor([balance, pay], policy=ALLOWED, listeners=[lambda event: None])
    context = ToolContext[None](session_id="s-1", customer_id="c-1")
    numbers = iter(range(1, 1_000))

    async def run() -> object:
        result = await executor.run(make_call(name, next(numbers)), context)
        assert result.ok, result
        return result

    yield Operation(run=run)


@asynccontextmanager
async def chat() -> AsyncGenerator[Operation]:
    """A consequential call that a conversation asks for, the customer approves, and the next request resumes."""
    lines = [
        line for number in range(1, 10) for line in (tool_calls(("pay", {"to": "Ann", "amount": number})), "Paid.")
    ]
    session = ChatSession(
        ScriptedProvider(lines),
        Executor([balance, pay], policy=Policy([Rule.ask("pay", by="customer")])),
        context=ToolContext(session_id="s-1", customer_id="c-1"),
    )

    async def run() -> object:
        asked = await session.send("Pay Ann.")
        assert asked.stop_reason == "approval_required", asked
        await session.approve(asked.approvals[0].token)
        paid = await session.resume()
        assert paid.text == "Paid.", paid
        return paid

    yield Operation(run=run)


class Judge:
    """Wants the balance of another account in every turn."""

    def __init__(self) -> None:
        self.turns = 0

    async def plan(self, request: PlanRequest) -> Plan:
        """Match the only guideline, and infer its call."""
        self.turns += 1
        verdict = ToolVerdict("balance", "needs_to_run", {"account": f"a-{self.turns}"})
        return Plan((GuidelineMatch("g1", True, "it fits"),), (verdict,))

    async def reply(self, request: ReplyRequest) -> Draft:
        """Say it."""
        return Draft("It is 20.", ())


@asynccontextmanager
async def guided() -> AsyncGenerator[Operation]:
    """A guided turn: one guideline matches, its tool reads, a reply is written."""
    agent = Agent(judge=Judge(), tools=[balance])
    await agent.create_guideline("Customer asks about their balance", "Look it up and say it", tools=["balance"])
    session = agent.session(session_id="s-1", customer_id="c-1")

    async def run() -> object:
        result = await session.send("What is my balance?")
        assert (result.text, len(result.results)) == ("It is 20.", 1), result
        return result

    yield Operation(run=run)


class Line:
    """The provider's end of a phone call: events in, and what the gateway sends back."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self._incoming: asyncio.Queue[str] = asyncio.Queue()
        self._has_given = False
        self._sent: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def accept(self, session_id: str, session: Mapping[str, Any]) -> Acceptance:
        """Every call is taken."""
        return Acceptance(outcome="accepted")

    async def hang_up(self, session_id: str) -> bool:
        """It is over."""
        return True

    @asynccontextmanager
    async def connect(self, session_id: str) -> AsyncGenerator[Any]:
        """The socket is this object."""
        self.opened.set()
        yield self

    async def receive(self) -> str:
        """The next event of the provider."""
        if self._has_given:
            self._incoming.task_done()
        self._has_given = True
        return await self._incoming.get()

    async def send(self, event: Mapping[str, Any]) -> None:
        """What the gateway sends."""
        self._sent.put_nowait(event)

    def tell(self, type: str, **fields: Any) -> None:
        """Let an event arrive."""
        self._incoming.put_nowait(json.dumps({"type": type, **fields}))

    async def wait_until_read(self) -> None:
        """Wait until the gateway has dealt with every event."""
        await self._incoming.join()

    async def wait_for(self, type: str) -> None:
        """Wait until the gateway has sent such an event."""
        while (await self._sent.get())["type"] != type:
            pass


@asynccontextmanager
async def phone() -> AsyncGenerator[Operation]:
    """A read-only call in a phone call, from the provider's event to the next `response.create`."""
    secret = "a secret of the benchmark"
    client = AsyncOpenAI(api_key="sk-none", webhook_secret=secret)
    config = TenantConfig.model_validate({"tenant_id": "shop", "numbers": ["+33100000000"], "greeting": ""})
    builder = ToolBuilder()
    builder.register(lambda cfg: balance)
    line: Any = Line()
    numbers = iter(range(1, 1_000))
    responding: list[dict[str, Any]] = []

    async def before() -> None:
        """The response to the last result is over, and another one begins with a call."""
        if responding:
            said = {"id": f"said_{len(responding)}", "status": "in_progress"}
            message = {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "audio", "transcript": "It is 20."}],
            }
            line.tell("response.created", response=said)
            line.tell("output_audio_buffer.started", response_id=said["id"])
            line.tell("response.done", response={**said, "status": "completed", "output": [message]})
            line.tell("output_audio_buffer.stopped", response_id=said["id"])
        number = next(numbers)
        item = {"id": f"item_{number}", "type": "function_call", "call_id": f"call_{number}", "name": "balance"}
        line.tell("response.created", response={"id": f"resp_{number}", "status": "in_progress"})
        line.tell("response.output_item.added", response_id=f"resp_{number}", item={**item, "status": "in_progress"})
        responding.append({**item, "status": "completed", "arguments": json.dumps({"account": f"a-{number}"})})
        await line.wait_until_read()

    async def run() -> None:
        item, response_id = responding[-1], f"resp_{len(responding)}"
        line.tell("response.output_item.done", response_id=response_id, item=item)
        line.tell("response.done", response={"id": response_id, "status": "completed", "output": [item]})
        await line.wait_for("response.create")

    body = json.dumps(
        {
            "object": "event",
            "id": "evt_1",
            "type": "realtime.call.incoming",
            "created_at": int(time.time()),
            "data": {"call_id": "rtc_1", "sip_headers": [{"name": "To", "value": "<sip:+33100000000@example.com>"}]},
        }
    ).encode()
    now = int(time.time())
    headers = {
        "webhook-id": "wh_1",
        "webhook-timestamp": str(now),
        "webhook-signature": sign_webhook(body, secret, webhook_id="wh_1", timestamp=now),
    }
    gateway = PhoneGateway(
        client=client,
        tenants=TenantDirectory([config]),
        tools=builder,
        transport=line,
        listeners=[lambda event: None],
    )
    async with gateway:
        assert (await gateway.handle_webhook(headers, body)).status == 200
        await line.opened.wait()
        yield Operation(run=run, before=before)


SERVER = """
from mcp.server import MCPServer

server = MCPServer("shop")


@server.tool()
def pay(to: str, amount: int) -> str:
    return f"paid {amount} to {to}"


server.run(transport="stdio")
"""


@asynccontextmanager
async def mcp() -> AsyncGenerator[Operation]:
    """A consequential call of a tool that an MCP server has, in a process of its own."""
    shop = McpServer("shop", command=[sys.executable, "-c", SERVER])
    numbers = iter(range(1, 1_000))
    async with connect([shop]) as sources:
        policy = Policy([Rule.allow("shop__pay")])
        executor = Executor(sources.tools, policy=policy, listeners=[lambda event: None])
        context = ToolContext[None](session_id="s-1", customer_id="c-1")

        async def run() -> object:
            call = make_call("pay", next(numbers))
            result = await executor.run(structs.replace(call, name="shop__pay"), context)
            assert result.ok, result
            return result

        yield Operation(run=run)


@asynccontextmanager
async def mcp_served() -> AsyncGenerator[Operation]:
    """A consequential call by an MCP client, over HTTP inside this process."""
    executor = Executor([balance, pay], policy=ALLOWED, listeners=[lambda event: None])
    app = mcp_app(executor)
    numbers = iter(range(1, 1_000))
    address = "http://127.0.0.1:8000"
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=address) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http)) as client,
    ):
        await client.list_tools()

        async def run() -> object:
            result: Any = await client.call_tool("pay", {"to": "Ann", "amount": next(numbers)})
            assert not result.is_error, result
            return result

        yield Operation(run=run)


WALKS: dict[str, Prepare] = {
    "read": lambda: run_calls("balance"),
    "consequential": lambda: run_calls("pay"),
    "chat": chat,
    "guided": guided,
    "phone": phone,
    "mcp": mcp,
    "mcp served": mcp_served,
}
WANTED = {"consequential": (14, 40), "chat": (30, 200), "guided": (28, 160), "phone": (25, 80), "mcp": (24, 60)}
"""Files and switches that the design asks for at most."""


async def trace(name: str) -> Walk:
    """Do it once to warm up, then once more under a trace."""
    modules: list[str] = []
    frames: set[FrameType] = set()  # A coroutine that is resumed has the frame that it had.

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or frame in frames:
            return
        frames.add(frame)
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE) and not path.startswith(DOUBLES):
            modules.append(path.removeprefix(PACKAGE))

    async with asyncio.timeout(60), WALKS[name]() as operation:
        for is_traced in (False, True):
            if operation.before is not None:
                await operation.before()
            sys.setprofile(note if is_traced else None)
            try:
                await operation.run()
            finally:
                sys.setprofile(None)
    return Walk(name=name, modules=tuple(modules), python_calls=len(frames))


def main() -> None:
    """Print a line for each walk."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(WALKS)}; all unless given")
    parser.add_argument("--path", action="store_true", help="the modules in the order in which they are reached")
    options = parser.parse_args()
    print(f"{'':<16}{'files':>6}{'switches':>10}{'calls':>7}{'python':>8}   at most")
    for name in options.names or WALKS:
        walk = asyncio.run(trace(name))
        most = "/".join(str(number) for number in WANTED.get(name, ()))
        print(f"{name:<16}{walk.files:>6}{walk.switches:>10}{len(walk.modules):>7}{walk.python_calls:>8}   {most}")
        if options.path:
            print("\n".join(f"    {module}" for module in walk.stops))


if __name__ == "__main__":
    main()
