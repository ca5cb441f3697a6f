"""What the calls of a tenant use: how it is built, while others are served."""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, Tool, ToolCall, ToolContext, tool
from handrail.serve.tenant_pools import TenantPools
from handrail.store import SqlStore
from handrail.tenants import TenantConfig, TenantDirectory, TenantTrust, ToolBuilder
from tests.serve.service import open_replica

MANY = 60


def build_tool(number: int) -> Tool[..., Any]:
    @tool(name=f"tool_{number}")
    def act(text: str) -> str:
        """Act."""
        return text

    return act


async def count_passes(counted: list[int]) -> None:
    """Count how often the event loop comes round."""
    while True:
        await asyncio.sleep(0)
        counted[0] += 1


class UnresponsiveServer:
    """Takes connections, and says nothing until it is told to."""

    def __init__(self) -> None:
        self.connections = 0
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.is_asked.set()
        await self.may_answer.wait()
        writer.close()


async def test_the_event_loop_goes_on_while_many_rules_of_a_tenant_are_worked_out() -> None:
    executor = Executor(build_tool(number) for number in range(MANY))
    rules = [{"deny": "tool_*", "where": {"text": {"matches": f"x{number}.*y"}}} for number in range(MANY)]
    directory = TenantDirectory([TenantConfig.model_validate({"tenant_id": "acme", "policy": rules})])
    pools = TenantPools(executor, directory, builder=ToolBuilder(), trust=TenantTrust())
    counted = [0]
    counting = asyncio.create_task(count_passes(counted))
    try:
        before = (await pools.get("acme")).executor
        passes_of_building = counted[0]
        directory.put(TenantConfig.model_validate({"tenant_id": "acme", "policy": [*rules[1:], {"deny": "tool_1"}]}))
        executor.replace_policy(Policy([Rule.deny("tool_2")]))  # So that it is looked at again at once.
        await pools.get("acme")
        passes_of_replacing, counted[0] = counted[0] - passes_of_building, 0
        await pools.check(TenantConfig.model_validate({"tenant_id": "globex", "policy": rules}))
        assert min(passes_of_building, passes_of_replacing, counted[0]) > 100
    finally:
        counting.cancel()

    # A turn that began before is under the rules of now.
    call = ToolCall(id="c", name="tool_1", arguments_json='{"text": "a"}')
    assert before.explain(call, ToolContext(session_id="s", tenant_id="acme")).decision.action == "deny"
    await pools.aclose()


async def test_the_event_loop_goes_on_while_the_patterns_of_a_tenant_are_compiled(store: SqlStore) -> None:
    rules = [{"deny": "pay", "where": {"invoice": {"matches": "(a|b){1,50}" * 20 + str(at)}}} for at in range(20)]
    config = {"tenant_id": "acme", "policy": rules}
    counted = [0]
    async with open_replica(store, tenants=store.tenants) as replica:
        admin = await replica.connect("admin", "acme")
        counting = asyncio.create_task(count_passes(counted))
        answer = await admin.request("PUT", "/tenants/acme", json={"config": config})
        passes_of_saving, counted[0] = counted[0], 0
        caller = await replica.connect("caller", "acme")
        await caller.get("/tools")
        counting.cancel()
        assert (answer.status_code, min(passes_of_saving, counted[0]) > 100) == (200, True)
        assert await store.tenants.get("acme") is await store.tenants.get("acme")  # Decoded once.
        await asyncio.gather(admin.http.aclose(), caller.http.aclose())


async def test_a_source_that_answers_late_is_not_asked_again_by_each_caller_that_gave_up() -> None:
    server = UnresponsiveServer()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        slow = {"name": "slow", "url": f"http://127.0.0.1:{port}/mcp", "connect_timeout": 30}
        directory = TenantDirectory([TenantConfig.model_validate({"tenant_id": "acme", "mcp_servers": [slow]})])
        trust = TenantTrust(private_networks=True)
        pools = TenantPools(Executor([build_tool(1)]), directory, builder=ToolBuilder(), trust=trust)
        asking = asyncio.create_task(pools.get("acme"))
        await server.is_asked.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        server.is_asked.clear()
        asking, asked = asyncio.create_task(pools.get("acme")), asyncio.create_task(server.is_asked.wait())
        await asyncio.wait({asking, asked}, timeout=0.3)
        assert (server.connections, asking.done(), asked.done()) == (1, False, False)

        server.may_answer.set()
        assert [item.name for item in (await asking).executor.registry] == ["tool_1"]
        asked.cancel()
        await pools.aclose()


async def test_a_tenant_whose_source_answers_late_keeps_no_change_of_another_tenant_waiting(
    store: SqlStore, monkeypatch: Any
) -> None:
    monkeypatch.setattr("handrail.serve.tenant_pools._WATCH_SECONDS", 0.01)
    server = UnresponsiveServer()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        directory = TenantDirectory([TenantConfig(tenant_id="acme"), TenantConfig(tenant_id="globex")])
        trust = TenantTrust(private_networks=True)
        pools = TenantPools(Executor([build_tool(1)]), directory, builder=ToolBuilder(), trust=trust)
        for name in ("acme", "globex"):
            await pools.get(name)
        changed = asyncio.Queue[str]()
        pools.on_change = changed.put_nowait
        watching = asyncio.create_task(pools.watch(lambda: ["acme", "globex"]))

        slow = {"name": "slow", "url": f"http://127.0.0.1:{port}/mcp", "connect_timeout": 30}
        directory.put(TenantConfig.model_validate({"tenant_id": "acme", "mcp_servers": [slow]}))
        await server.is_asked.wait()
        directory.put(TenantConfig.model_validate({"tenant_id": "globex", "policy": [{"deny": "tool_1"}]}))
        assert await changed.get() == "globex"
        assert not server.may_answer.is_set()

        server.may_answer.set()
        assert await changed.get() == "acme"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await pools.aclose()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
async def test_a_tenant_whose_documents_take_long_to_be_read_keeps_no_other_tenant_waiting(tmp_path: Path) -> None:
    paths = {"/pets": {"get": {"operationId": "list_pets"}}}
    api = {"openapi": "3.1.0", "info": {"title": "Pets", "version": "1"}, "paths": paths}
    (tmp_path / "pets.json").write_text(json.dumps(api))
    pipes = [tmp_path / f"pipe-{number}.json" for number in range(40)]
    for pipe in pipes:
        os.mkfifo(pipe)  # Whoever reads it waits until somebody writes.

    def name_documents(tenant_id: str, files: list[Path]) -> TenantConfig:
        base = "https://pets.example"
        documents = [{"name": file.stem, "path": str(file), "base_url": base} for file in files]
        return TenantConfig.model_validate({"tenant_id": tenant_id, "openapi": documents})

    configs = [name_documents("acme", pipes), name_documents("globex", [tmp_path / "pets.json"])]
    trust = TenantTrust(documents=[f"{tmp_path}/*"])
    pools = TenantPools(Executor([build_tool(1)]), TenantDirectory(configs), builder=ToolBuilder(), trust=trust)
    slow, writers = asyncio.create_task(pools.get("acme")), list[int]()
    try:
        async with asyncio.timeout(10):
            while not writers:
                await asyncio.sleep(0)
                writers = open_pipes(pipes)
            pool = await pools.get("globex")
        assert "list_pets" in pool.executor.registry
        assert not slow.done()
    finally:
        writers += open_pipes(pipes)
        for pipe in pipes:
            pipe.unlink()
        for writer in writers:
            os.close(writer)
        await slow
        await pools.aclose()


def open_pipes(pipes: list[Path]) -> list[int]:
    """Open those that are read, for writing."""
    opened: list[int] = []
    for pipe in pipes:
        with suppress(OSError):  # Nobody reads it.
            opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    return opened


async def test_a_request_that_was_given_up_leaves_nothing_open(store: SqlStore) -> None:
    server = UnresponsiveServer()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        slow = {"name": "slow", "url": f"http://127.0.0.1:{port}/mcp", "connect_timeout": 30}
        await store.tenants.put(TenantConfig.model_validate({"tenant_id": "acme", "mcp_servers": [slow]}))
        trust = TenantTrust(private_networks=True)
        async with open_replica(store, tenants=store.tenants, trust=trust) as replica:
            client = await replica.connect("caller", "acme")
            asking = asyncio.create_task(client.request("GET", "/tools"))
            await server.is_asked.wait()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await client.http.aclose()
        # The replica has ended, and did not wait for the server.
        assert not server.may_answer.is_set()
        server.may_answer.set()
