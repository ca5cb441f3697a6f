"""The service in this process: its tools, and clients with keys of every role and tenant."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from starlette.applications import Starlette

from handrail import Executor, Policy, Rule, tool
from handrail.providers import ModelRequest, ModelResponse, StreamEvent, TextDelta, UserMessage
from handrail.serve import ChatAgent, build_app
from handrail.store import SqlStore
from handrail.store.api_keys import Role

paid: list[tuple[str, int]] = []
"""The effects of `pay`, by any executor of the running test."""


@tool(read_only=True, concurrency_safe=True)
async def get_balance(account: str) -> dict[str, Any]:
    """Look up the balance of an account."""
    return {"account": account, "balance": 5}


@tool(key="invoice", timeout=5)
async def pay(invoice: str, amount: int) -> str:
    """Pay an invoice."""
    paid.append((invoice, amount))
    return f"paid {amount}"


@tool
async def close_account(account: str) -> str:
    """Close an account for good."""
    raise RuntimeError(f"nobody knows what became of {account}")


class Parrot:
    """A model that says what it is told, and calls no tool."""

    name = "parrot:model"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        last = request.messages[-1]
        text = f"You said: {last.text}" if isinstance(last, UserMessage) else "Done."
        yield TextDelta(text=text)
        yield ModelResponse(text=text, calls=(), finish_reason="stop", id="r")

    async def ask(self, request: ModelRequest) -> ModelResponse:
        *_, response = [event async for event in self.stream(request)]
        assert isinstance(response, ModelResponse)
        return response


PARROT = ChatAgent(provider=Parrot())

POLICY = Policy([Rule.ask("pay", by="operator"), Rule.allow("close_account")], asks="operator")


class Client:
    """Whoever holds a key of one service."""

    def __init__(self, app: Starlette, secret: str | None) -> None:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        transport = httpx2.ASGITransport(app=app)
        self.secret = secret
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://service", headers=headers, timeout=30)

    async def request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return await self.http.request(method, f"/v1{path}", **options)

    async def get(self, path: str, status: int = 200, **params: Any) -> Any:
        answer = await self.request("GET", path, params=params)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
        answer = await self.request("POST", path, json={} if body is None else body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def call(self, tool: str, arguments: Any = None, *, session: str = "s-1", **fields: Any) -> Any:
        body = {"tool": tool, "arguments": {} if arguments is None else arguments, "session_id": session, **fields}
        return await self.post("/calls", body)


class Replica:
    """One process that serves, and the keys that are made for it."""

    def __init__(self, app: Starlette, executor: Executor, store: SqlStore) -> None:
        self.app = app
        self.executor = executor
        self.store = store

    async def connect(self, role: Role, tenant_id: str | None = "acme", who: str = "") -> Client:
        _, secret = await self.store.keys.create(role=role, who=who or f"{role}-of-{tenant_id}", tenant_id=tenant_id)
        return Client(self.app, secret)

    def use(self, client: Client) -> Client:
        """The holder of a key, at this replica."""
        return Client(self.app, client.secret)


@asynccontextmanager
async def open_replica(store: SqlStore, **options: Any) -> AsyncGenerator[Replica]:
    """A replica with the tools above."""
    paid.clear()
    executor = Executor([get_balance, pay, close_account], policy=POLICY, store=store, scope="session")
    app = build_app(executor, store=store, approval_wait=0, **options)
    started, ending = asyncio.Event(), asyncio.Event()

    async def live() -> None:  # In a task of its own, as a server does: a fixture ends in another one than it began.
        async with app.router.lifespan_context(app):
            started.set()
            await ending.wait()

    living = asyncio.create_task(live())
    await started.wait()
    try:
        yield Replica(app, executor, store)
    finally:
        ending.set()
        await living
        await executor.aclose()
