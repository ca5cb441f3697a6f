"""Takes real calls with the agent of this folder.

export OPENAI_API_KEY=... OPENAI_WEBHOOK_SECRET=...
uvicorn --factory server:build_app --port 8000       # the webhook of your OpenAI project is https://<your host>/webhook
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from agent import TOOLS
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from handrail.monitor import Log
from handrail.phone import PhoneGateway
from handrail.store import open_store
from handrail.tenants import TenantDirectory

TENANTS = Path(__file__).with_name("tenants")


def build_app(client: AsyncOpenAI | None = None, database: str = "sqlite+aiosqlite:///calls.db") -> Starlette:
    """The web application; the database has the ledger, the approvals and the audit of all calls."""
    client = client or AsyncOpenAI()
    store = open_store(database)
    gateway = PhoneGateway(
        client=client, tenants=TenantDirectory.from_files(TENANTS), tools=TOOLS, store=store, listeners=[Log()]
    )

    async def handle_webhook(request: Request) -> Response:
        answer = await gateway.handle_webhook(request.headers.items(), await request.body())
        return Response(answer.body, status_code=answer.status)

    @asynccontextmanager
    async def live(app: Starlette) -> AsyncGenerator[None]:
        async with client, store, gateway:
            yield
            await gateway.drain()  # The process is asked to end: the calls are brought to their end first.

    return Starlette(routes=[Route("/webhook", handle_webhook, methods=["POST"])], lifespan=live)
