"""A gateway on a socket of this machine, MCP clients of it, and a person at its console."""

import json
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any, Self

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from handrail import Executor
from handrail.serve import build_app
from handrail.serve.gateway import Gateway, open_gateway
from handrail.store import SqlStore
from handrail.store.api_keys import Role
from tests.sources.serving import listening

ROOT = Path(__file__).parents[2]


def write_shop(journal: Path, **fields: Any) -> str:
    """The fields of the shop's server in a configuration file: a process that notes every refund in a journal."""
    env = {"PYTHONPATH": str(ROOT), "SHOP_JOURNAL": str(journal)}
    command = [sys.executable, "-m", "tests.sources.shop_server"]
    return json.dumps({"command": command, "cwd": str(ROOT), "env": env, **fields})


class Desk:
    """A gateway that listens: its address, its store, and keys for whoever comes."""

    def __init__(self, url: str, store: SqlStore, gateway: Gateway | None = None) -> None:
        self.url = url
        self.store = store
        self.gateway = gateway

    async def create_key(self, role: Role, who: str = "ann", tenant_id: str | None = None) -> str:
        return (await self.store.keys.create(role=role, who=who, tenant_id=tenant_id))[1]

    @asynccontextmanager
    async def connect_client(self, secret: str = "", *, mode: str = "auto", **options: Any) -> AsyncGenerator[Client]:
        """The official client, with a caller's key."""
        secret = secret or await self.create_key("caller", "client")
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=60)
        transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
        async with http, Client(transport, mode=mode, **options) as client:
            yield client

    @asynccontextmanager
    async def sign_in(
        self, role: Role = "operator", who: str = "ann", tenant_id: str | None = None
    ) -> AsyncGenerator["Browser"]:
        async with Browser(self.url) as browser:
            answer = await browser.sign_in(await self.create_key(role, who, tenant_id))
            assert answer.status_code == 200, answer.text
            yield browser


class Browser:
    """A person at the console, without a screen: follows links, sends forms, keeps cookies."""

    def __init__(self, url: str) -> None:
        self.http = httpx2.AsyncClient(base_url=url, follow_redirects=True, timeout=60)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.aclose()

    async def sign_in(self, secret: str) -> httpx2.Response:
        return await self.http.post("/login", data={"key": secret})

    async def get(self, path: str) -> httpx2.Response:
        return await self.http.get(path)

    async def read(self, path: str) -> str:
        """The text of a page, as a person reads it."""
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return to_text(answer.text)

    async def read_token(self) -> str:
        """The token that a form of this session has to have."""
        found = re.search(r'name="form_token" value="([0-9a-f]+)"', (await self.http.get("/decide")).text)
        assert found is not None
        return found[1]

    async def answer(self, token: str, answer: str, **fields: str) -> httpx2.Response:
        data = {"form_token": await self.read_token(), **fields}
        return await self.http.post(f"/decide/{token}/{answer}", data=data)


def to_text(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", html)))


def text_of(result: Any) -> str:
    assert isinstance(result, types.CallToolResult), result
    return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))


@asynccontextmanager
async def open_desk(executor: Executor, store: SqlStore, **options: Any) -> AsyncGenerator[Desk]:
    """A gateway in front of an executor."""
    async with listening(build_app(executor, store=store, **{"approval_wait": 0, **options})) as url:
        yield Desk(url, store)


@asynccontextmanager
async def open_file_desk(directory: Path, text: str, **files: str) -> AsyncGenerator[Desk]:
    """A gateway of a configuration file."""
    for name, content in files.items():
        (directory / name.replace("_", ".")).write_text(content)
    file = directory / "gateway.yaml"
    file.write_text(text.replace("STORE", f"sqlite:///{directory}/gateway.db"))
    async with open_gateway(file) as gateway, listening(gateway.app) as url:
        yield Desk(url, gateway.store, gateway)
