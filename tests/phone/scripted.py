"""A phone call whose events a test writes by hand, one by one."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from handrail import Executor, Policy, ToolCall, ToolContext, ToolResult
from handrail.core import Event
from handrail.phone import Acceptance, CallSession, ConnectionLost, IncomingCall, MachineOptions, Sideband
from handrail.phone.signals import TransferAnswer
from handrail.tenants import TenantConfig, ToolBuilder
from tests.tenants.samples import acme, refer


class BrokenExecutor(Executor):
    """An executor with a bug: it raises, which none should."""

    async def run(self, call: ToolCall, context: ToolContext[Any]) -> ToolResult:
        raise RuntimeError("a bug")


class ScriptedTransport:
    """A provider in memory: the test says what arrives, and reads what was sent."""

    def __init__(self, *, is_cut: bool = False, refers: TransferAnswer = "transferred") -> None:
        self.is_cut = is_cut
        """Whether nothing can be sent."""
        self.refers: TransferAnswer = refers
        self.opened = asyncio.Event()
        self.sent: list[Mapping[str, Any]] = []
        self.requests: list[str] = []
        self.connections = 0
        self.is_over = False
        """Whether the provider does not know the call any more."""
        self._changed = asyncio.Condition()
        self._incoming: asyncio.Queue[str | bytes | ConnectionLost] = asyncio.Queue()

    async def accept(self, session_id: str, session: Mapping[str, Any]) -> Acceptance:
        return Acceptance(outcome="accepted")

    async def reject(self, session_id: str, *, status_code: int) -> None:
        self.requests.append(f"reject {status_code}")

    async def transfer(self, session_id: str, target_uri: str) -> TransferAnswer:
        self.requests.append(f"refer {target_uri}")
        return self.refers

    async def hang_up(self, session_id: str) -> bool:
        self.requests.append("hangup")
        return True

    @asynccontextmanager
    async def connect(self, session_id: str) -> AsyncGenerator[Sideband]:
        self.connections += 1
        if self.is_over:
            raise ConnectionLost(is_over=True)
        self.opened.set()
        yield self

    async def receive(self) -> str | bytes:
        event = await self._incoming.get()
        if isinstance(event, ConnectionLost):
            raise event
        return event

    async def send(self, event: Mapping[str, Any]) -> None:
        async with self._changed:
            self.sent.append(event)
            self._changed.notify_all()
        if self.is_cut:
            raise ConnectionLost(is_over=False)

    # What the test does.

    def tell(self, type: str, /, **fields: Any) -> None:
        self._incoming.put_nowait(json.dumps({"type": type, **fields}))

    def tell_raw(self, data: str | bytes) -> None:
        self._incoming.put_nowait(data)

    def close(self, *, is_over: bool) -> None:
        self.is_over = is_over
        self._incoming.put_nowait(ConnectionLost(is_over=is_over))

    def call(self, call_id: str, name: str, arguments: str = "{}", *, response_id: str = "r1") -> None:
        item = {"id": f"item_{call_id}", "type": "function_call", "call_id": call_id, "name": name}
        self.tell("response.output_item.added", response_id=response_id, item={**item, "status": "in_progress"})
        done = {**item, "arguments": arguments, "status": "completed"}
        self.tell("response.output_item.done", response_id=response_id, item=done)

    @property
    def outputs(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for event in self.sent:
            item = event.get("item", {})
            if item.get("type") == "function_call_output":
                found.setdefault(item["call_id"], []).append(item["output"])
        return found

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(is_so)

    async def wait_for_outputs(self, count: int) -> None:
        await self.wait_until(lambda: len(self.outputs) >= count)


def make_session(
    transport: ScriptedTransport,
    *,
    cfg: TenantConfig | None = None,
    emit: Callable[[Event], None] = lambda event: None,
    executor: type[Executor] = Executor,
    options: MachineOptions | None = None,
    **extra: Any,
) -> CallSession:
    """A session over a scripted provider, with the tools of a tenant."""
    built = ToolBuilder().build_tools(cfg or acme(features={"refer": refer()}))
    return CallSession(
        call=IncomingCall(session_id="rtc_1", sip_call_id="sip-1"),
        built=built,
        executor=(made := executor(built.tools, policy=Policy(built.rules), listeners=[emit])),
        session={"tools": made.registry.to_openai_realtime_tools()},
        transport=transport,
        context=ToolContext(session_id="rtc_1"),
        emit=emit,
        options=options,
        **extra,
    )
