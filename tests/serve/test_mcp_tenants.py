"""Tenants over MCP: each client has the tools and the rules of its key's tenant, and of no other."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import MCPError
from mcp.server.connection import Connection

from handrail import Executor, Policy, Rule, ToolContext, tool
from handrail.sources import mcp_app
from handrail.store import SqlStore
from handrail.tenants import Section, TenantConfig, TenantTrust, ToolBuilder
from tests.serve.desk import Desk, open_desk, text_of
from tests.serve.service import POLICY, close_account, get_balance, paid, pay
from tests.sources.serving import listening


class Loyalty(Section):
    level: int = 1


def build_loyalty(cfg: TenantConfig) -> Any:
    @tool(read_only=True)
    def get_points(context: ToolContext[Any]) -> str:
        """The points of the customer."""
        return (
            f"{cfg.features.loyalty.level * 10} points of {context.tenant_id}, {context.secrets.get('crm', 'no key')}"
        )

    return get_points


async def list_names(desk: Desk, tenant: str | None) -> set[str]:
    secret = await desk.create_key("caller", "bot", tenant)
    async with desk.connect_client(secret) as client:
        return {item.name for item in (await client.list_tools()).tools}


async def list_in_vain(desk: Desk, tenant: str) -> str:
    async with desk.connect_client(await desk.create_key("caller", "bot", tenant)) as client:
        with pytest.raises(MCPError) as refused:
            await client.list_tools()
        with pytest.raises(MCPError):
            await client.call_tool("get_balance", {"account": "a"})
        return str(refused.value)


@pytest.mark.proves("SV-09", "SV-01")
async def test_a_client_has_the_tools_and_the_rules_of_its_tenant(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_CRM", "crm-of-acme")
    builder = ToolBuilder()
    builder.register(build_loyalty, feature=("loyalty", Loyalty))
    denied = {"deny": "pay", "where": {"amount": {"above": 10}}, "reason": "too much for acme"}
    acme: dict[str, Any] = {"tenant_id": "acme", "features": {"loyalty": {"level": 2}}, "policy": [denied]}
    acme |= {"secrets": {"crm": "env:ACME_CRM"}}
    await store.tenants.put(TenantConfig(**acme))
    await store.tenants.put(TenantConfig(tenant_id="globex", policy=[{"deny": "close_account"}]))
    await store.tenants.put(TenantConfig(tenant_id="closed", enabled=False))
    executor = Executor([get_balance, pay, close_account], policy=POLICY, store=store)
    options: dict[str, Any] = {
        "tenants": store.tenants,
        "tools": builder,
        "trust": TenantTrust(secrets=["env:{TENANT}_*"]),
    }
    async with open_desk(executor, store, **options) as desk:
        every = {"get_balance", "pay", "close_account"}
        assert await list_names(desk, "acme") == every | {"get_points"}
        assert await list_names(desk, "globex") == {"get_balance", "pay", "get_points"}
        assert await list_names(desk, "unknown") == await list_names(desk, None) == every
        paid.clear()
        async with desk.connect_client(await desk.create_key("caller", "bot", "acme")) as client:
            assert "20 points of acme, crm-of-acme" in text_of(await client.call_tool("get_points", {}))
            refused = text_of(await client.call_tool("pay", {"invoice": "i", "amount": 11}))
            assert "too much for acme" in refused
        async with desk.connect_client(await desk.create_key("caller", "bot", "globex")) as client:
            assert "10 points of globex, no key" in text_of(await client.call_tool("get_points", {}))
            assert "operator" in text_of(await client.call_tool("pay", {"invoice": "i", "amount": 11}))
            await store.tenants.put(TenantConfig(tenant_id="globex", policy=[{"deny": "get_balance"}]))

            async def is_denied() -> bool:
                return "denied" in text_of(await client.call_tool("get_balance", {"account": "a"}))

            async with asyncio.timeout(20):
                while not await is_denied():  # A new revision is known within a second.
                    await asyncio.sleep(0.05)
        async with desk.connect_client(await desk.create_key("caller", "bot", "unknown")) as client:
            with pytest.raises(MCPError, match="get_points"):
                await client.call_tool("get_points", {})
        assert "not enabled" in await list_in_vain(desk, "closed")
        await store.tenants.remove("closed")
        assert "not enabled" in await list_in_vain(desk, "closed")
        assert paid == []


class Told:
    """What a client is told of changed tools."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Condition()

    async def note(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            async with self._changed:
                self.count += 1
                self._changed.notify_all()

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: self.count >= count)


@asynccontextmanager
async def listening_client(desk: Desk, tenant: str, mode: str) -> AsyncGenerator[Told]:
    """A client that has listed its tools, and is told when they change: in the newer revision, if it asks for that."""
    told = Told()
    secret = await desk.create_key("caller", "bot", tenant)
    async with desk.connect_client(secret, mode=mode, message_handler=told.note) as client, AsyncExitStack() as asking:
        await client.list_tools()
        capabilities = client.server_capabilities
        assert capabilities is not None
        assert capabilities.tools is not None
        assert capabilities.tools.list_changed
        if mode == "auto":
            await asking.enter_async_context(client.listen(tools_list_changed=True))
        yield told


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_clients_of_a_tenant_are_told_that_its_tools_have_changed_and_no_others(
    store: SqlStore, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handrail.serve.tenant_pools._WATCH_SECONDS", 0.05)
    for name in ("acme", "globex"):
        await store.tenants.put(TenantConfig(tenant_id=name))
    executor = Executor([get_balance, pay], store=store)
    async with (
        open_desk(executor, store, tenants=store.tenants) as desk,
        listening_client(desk, "acme", mode) as acme,
        listening_client(desk, "globex", mode) as globex,
    ):
        for number in range(3):
            await store.tenants.put(TenantConfig(tenant_id="acme", policy=[{"deny": "pay", "reason": f"{number}"}]))
            await acme.wait(number + 1)
        assert (acme.count, globex.count) == (3, 0)

        await store.tenants.put(TenantConfig(tenant_id="globex", policy=[{"deny": "pay"}]))
        await globex.wait(1)
        executor.replace_tools([get_balance, pay, close_account])  # Those of all: everybody is told.
        await acme.wait(4)
        await globex.wait(2)


@pytest.mark.proves("SV-09")
async def test_a_tenant_whose_only_revision_cannot_be_built_runs_nothing(store: SqlStore) -> None:
    await store.tenants.put(TenantConfig(tenant_id="acme", policy=[{"deny": "no_such_tool"}]))
    executor = Executor([get_balance], store=store)
    async with open_desk(executor, store, tenants=store.tenants) as desk:
        assert "cannot be used now" in await list_in_vain(desk, "acme")
        assert await list_names(desk, "globex") == {"get_balance"}


@pytest.mark.parametrize("is_moved", [False, True])
async def test_a_new_revision_cuts_off_no_call_that_runs_at_a_server_of_the_tenant(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    monkeypatch.setattr("handrail.serve.tenant_pools._CACHED_SECONDS", 0.0)
    started, release = asyncio.Event(), asyncio.Event()

    @tool
    async def transfer(to: str) -> str:
        """Transfer money."""
        started.set()
        await release.wait()
        return f"transferred to {to}"

    bank = Executor([transfer], policy=Policy([Rule.allow("transfer")]))
    async with listening(mcp_app(bank)) as url, listening(mcp_app(bank)) as other_url:
        config: dict[str, Any] = {"tenant_id": "acme", "policy": [{"allow": "bank__*"}]}
        config["mcp_servers"] = [{"name": "bank", "url": f"{url}/mcp"}]
        await store.tenants.put(TenantConfig(**config))
        executor = Executor([get_balance], store=store)
        options: dict[str, Any] = {"tenants": store.tenants, "trust": TenantTrust(private_networks=True)}
        async with open_desk(executor, store, **options) as desk:
            secret = await desk.create_key("caller", "bot", "acme")
            async with desk.connect_client(secret) as client, asyncio.timeout(60):
                paying = asyncio.create_task(client.call_tool("bank__transfer", {"to": "ann"}))
                await started.wait()
                if is_moved:
                    config["mcp_servers"] = [{"name": "bank", "url": f"{other_url}/mcp"}]
                await store.tenants.put(TenantConfig(**config, instructions="Be kind."))
                while "bank__transfer" not in {item.name for item in (await client.list_tools()).tools}:
                    await asyncio.sleep(0.01)
                release.set()
                assert text_of(await paying) == "transferred to ann"
                assert text_of(await client.call_tool("bank__transfer", {"to": "bob"})) == "transferred to bob"
        await executor.aclose()
    await bank.aclose()


OPENING: Any = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}
LISTING: Any = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


class RawClient:
    """Sends single requests of the older protocol with one key."""

    def __init__(self, http: httpx2.AsyncClient, secret: str) -> None:
        self._http = http
        self._headers = {"Authorization": f"Bearer {secret}", "Accept": "application/json, text/event-stream"}

    async def send(
        self, body: Any, session_id: str = "", *, method: str = "POST", version: str = ""
    ) -> httpx2.Response:
        headers = self._headers | ({"Mcp-Session-Id": session_id} if session_id else {})
        headers |= {"Mcp-Protocol-Version": version} if version else {}
        return await self._http.request(method, "/mcp", json=body, headers=headers)

    async def open(self) -> str:
        answer = await self.send(OPENING)
        assert answer.status_code == 200, answer.text
        return answer.headers["mcp-session-id"]


@pytest.mark.proves("SV-01")
async def test_the_session_of_one_key_does_not_exist_for_another(store: SqlStore) -> None:
    executor = Executor([get_balance], store=store)
    async with open_desk(executor, store) as desk, httpx2.AsyncClient(base_url=desk.url) as http:
        ours = RawClient(http, await desk.create_key("caller", "bot", "acme"))
        session = await ours.open()
        for tenant in ("acme", "globex", None):
            other = RawClient(http, await desk.create_key("caller", "eve", tenant))
            for answer in (await other.send(LISTING, session), await other.send(None, session, method="DELETE")):
                assert (answer.status_code, "Session not found" in answer.text) == (404, True)
        assert "get_balance" in (await ours.send(LISTING, session)).text
    await executor.aclose()


async def test_one_tenant_cannot_have_all_sessions(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handrail.serve.mcp_sessions.MAX_SESSIONS", 3)
    executor = Executor([get_balance], store=store)
    async with open_desk(executor, store) as desk, httpx2.AsyncClient(base_url=desk.url) as http:
        first, second = [RawClient(http, await desk.create_key("caller", who, "acme")) for who in ("a", "b")]
        answers = await asyncio.gather(*(client.send(OPENING) for client in (first, second) * 3))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 429, 429, 429]
        for other in ("globex", None):
            await RawClient(http, await desk.create_key("caller", "c", other)).open()

        opened = [(at % 2, one.headers["mcp-session-id"]) for at, one in enumerate(answers) if one.status_code == 200]
        whose, session = opened[0]
        stranger, owner = (second, first) if whose == 0 else (first, second)
        assert (await stranger.send(None, session, method="DELETE")).status_code == 404
        assert (await first.send(OPENING)).status_code == 429
        for version in ("2099-01-01", "2026-07-28"):  # Of a protocol without sessions: nothing is ended.
            refused = await owner.send(None, session, method="DELETE", version=version)
            assert (refused.status_code, (await first.send(OPENING)).status_code) == (405, 429)
        assert (await owner.send(None, session, method="DELETE")).status_code == 200
        await first.open()
        assert (await first.send(OPENING)).status_code == 429

        monkeypatch.setattr("handrail.serve.mcp_sessions.DEFAULT_SESSION_IDLE_TIMEOUT", -1.0)
        await first.open()  # By now the endpoint has ended those that were idle.
    await executor.aclose()


async def test_nothing_is_kept_of_sessions_that_have_ended(store: SqlStore) -> None:
    executor = Executor([get_balance], store=store)
    async with open_desk(executor, store) as desk, httpx2.AsyncClient(base_url=desk.url) as http:
        client = RawClient(http, await desk.create_key("caller", "bot", "acme"))
        for _ in range(5):
            session = await client.open()
            assert "get_balance" in (await client.send(LISTING, session)).text
            assert (await client.send(None, session, method="DELETE")).status_code == 200
        kept, left = 5, 100
        while kept and left:  # Their tasks end soon.
            await asyncio.sleep(0.01)
            gc.collect()
            kept, left = sum(isinstance(item, Connection) for item in gc.get_objects()), left - 1
        assert kept == 0
    await executor.aclose()
