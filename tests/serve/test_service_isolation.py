"""Tenants share a process and a database, and never see each other: no row, no id, no count."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from handrail.store import SqlStore, open_store
from handrail.store.api_keys import Role
from handrail.tenants import TenantTrust
from tests.serve.service import PARROT, Client, Replica, open_replica

ROLES: tuple[Role, ...] = ("caller", "viewer", "operator", "admin")
OTHER = "globex"
CANARY = "canary"
"""In every text of the other tenant that a request of ours does not name."""


class World(Struct):
    """Two tenants with a little of everything, and the ids of the other one's."""

    replica: Replica
    clients: dict[tuple[str, Role], Client]
    ids: dict[str, dict[str, str]]
    """For each tenant: its ids by kind."""

    async def act(self, tenant: str, number: int) -> None:
        """A tenant does a little of everything once more."""
        caller, operator, admin = (self.clients[tenant, role] for role in ("caller", "operator", "admin"))
        ids = self.ids[tenant]
        mark = f"{CANARY}-{tenant}-{number}"
        session = f"{tenant}-s"
        for answer in ("approve", "deny", None):
            asked = await caller.call(
                "pay", {"invoice": f"{mark}-{answer}", "amount": 1}, session=session, call_id=f"{mark}-{answer}"
            )
            token = asked["approval"]["token"]
            if answer is not None:
                await operator.post(f"/approvals/{token}/{answer}", {"reason": mark})
            ids["token"] = token
        await caller.call(
            "pay", {"invoice": f"{mark}-approve", "amount": 1}, session=session, call_id=f"{mark}-approve"
        )
        await caller.call("close_account", {"account": mark}, session=session, call_id=f"{mark}-doubt")
        await caller.request("POST", f"/sessions/{session}/turns", json={"message": mark, "customer_id": mark})
        created = await admin.post("/keys", {"role": "viewer", "who": mark}, status=201)
        config = {"tenant_id": tenant, "instructions": mark}
        assert (await admin.request("PUT", f"/tenants/{tenant}", json={"config": config})).status_code == 200
        ids |= {
            "tenant": tenant,
            "session": f"api:{tenant}/{session}",
            "short_session": session,
            "call": f"{mark}-approve",
            "doubt": f"{mark}-doubt",
            "customer": f"caller-of-{tenant}",
            "key": created["key"]["id"],
        }
        await self.replica.store.audit.flush(timeout=20)


@asynccontextmanager
async def open_world(store: SqlStore) -> AsyncGenerator[World]:
    async with open_replica(store, tenants=store.tenants, agent=PARROT) as replica:
        clients = {
            (tenant, role): await replica.connect(role, tenant, who=f"{role}-of-{tenant}")
            for tenant in ("acme", OTHER)
            for role in ROLES
        }
        world = World(replica, clients, {"acme": {}, OTHER: {}})
        for tenant in ("acme", OTHER):
            await world.act(tenant, 0)
        yield world


def list_requests(ids: dict[str, str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Every route with the ids of a tenant, in every place where an id can be."""
    session, call, doubt, token = ids["session"], ids["call"], ids["doubt"], ids["token"]
    both = [{"session_id": name, "call_id": call} for name in (session, ids["short_session"])]
    filters = [
        {"tenant_id": ids["tenant"]},
        {"session_id": session},
        {"customer_id": ids["customer"]},
        {"call_id": call},
    ]
    call_body = {"tool": "pay", "arguments": {"invoice": "ours", "amount": 1}}
    return [
        *[("GET", "/calls/result", {"params": item}) for item in both],
        *[("GET", "/calls/why", {"params": item}) for item in both],
        *[("POST", "/calls/cancel", {"json": item}) for item in both],
        *[
            ("POST", path, {"json": {**call_body, **item}})
            for item in both
            for path in ("/calls", "/calls/submit", "/explain")
        ],
        ("GET", "/tools", {}),
        ("GET", "/tools/pay", {}),
        ("GET", "/tools/definitions/mcp", {}),
        ("GET", "/approvals", {"params": {"session_id": session}}),
        ("GET", "/approvals", {"params": {"session_id": ids["short_session"]}}),
        ("GET", "/approvals", {"params": {"session_id": session, "after": token}}),
        *[("GET", "/approvals", {"params": item}) for item in filters[:1]],
        *[("GET", "/approvals/history", {"params": item}) for item in (*filters[:3], {"before": token}, {})],
        ("GET", f"/approvals/{token}", {}),
        ("POST", f"/approvals/{token}/approve", {"json": {"reason": "ours"}}),
        ("POST", f"/approvals/{token}/approve", {"json": {"arguments": {"invoice": "x", "amount": 2}}}),
        ("POST", f"/approvals/{token}/deny", {"json": {"reason": "ours"}}),
        *[("GET", "/doubts", {"params": item}) for item in (*filters[:2], {})],
        ("POST", "/doubts/resolve", {"json": {"session_id": session, "call_id": doubt, "happened": True}}),
        *[("GET", "/audit", {"params": item}) for item in (*filters, {"limit": 1}, {})],
        *[("GET", "/audit/export", {"params": item}) for item in (filters[0], {})],
        ("POST", "/erase", {"json": {"customer_id": ids["customer"]}}),
        ("POST", "/erase", {"json": {"customer_id": ids["customer"], "tenant_id": ids["tenant"]}}),
        ("GET", "/tenants", {}),
        ("POST", "/tenants/validate", {"json": {"config": {"tenant_id": ids["tenant"]}}}),
        *[("GET", f"/tenants/{ids['tenant']}{end}", {}) for end in ("", "/history", "?revision=1")],
        ("PUT", f"/tenants/{ids['tenant']}", {"json": {"config": {"tenant_id": ids["tenant"]}}}),
        ("POST", f"/tenants/{ids['tenant']}/rollback", {"json": {"revision": 1}}),
        ("DELETE", f"/tenants/{ids['tenant']}", {}),
        ("GET", "/keys", {}),
        ("POST", "/keys", {"json": {"role": "admin", "who": "us", "tenant_id": ids["tenant"]}}),
        ("DELETE", f"/keys/{ids['key']}", {}),
        *[
            ("POST", f"/sessions/{quote(name, safe='')}/{end}", {"json": {"message": "ours"}})
            for name in (session, ids["short_session"])
            for end in ("turns", "resume", "interrupt")
        ],
        *[("GET", f"/sessions/{quote(name, safe='')}", {}) for name in (session, ids["short_session"])],
        ("GET", f"/sessions/{ids['short_session']}", {"params": {"tenant_id": ids["tenant"]}}),
        *[("GET", "/sessions", {"params": item}) for item in ({}, {"tenant_id": ids["tenant"]})],
        ("GET", "/sessions", {"params": {"before": f"9e9:{session}"}}),
        ("GET", "/metrics", {}),
        ("GET", "/health", {}),
        ("GET", "/ready", {}),
    ]


def hide_sent(text: str, *options: dict[str, Any]) -> str:
    """An answer without the texts that requests had themselves, which an answer may repeat."""
    sent: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            for part in value.values():
                collect(part)
        elif isinstance(value, str):
            sent.append(value)

    for option in options:
        collect(option)
    for message in sorted(sent, key=len, reverse=True):
        text = text.replace(message, "")
    return text


@pytest.mark.proves("SV-01")
@pytest.mark.parametrize("role", ROLES)
async def test_no_route_shows_or_changes_anything_of_another_tenant(store: SqlStore, role: Role) -> None:
    async with open_world(store) as world:
        before = await snapshot(world, OTHER)
        requests = list_requests(world.ids[OTHER])
        for request in requests:
            method, path, options = request
            answer = await world.clients["acme", role].request(method, path, **options)
            assert answer.status_code < 500, (request, answer.text)
            assert OTHER not in hide_sent(answer.text, *(sent for _, _, sent in requests)), (request, answer.text)
        await world.replica.store.audit.flush(timeout=20)
        assert await snapshot(world, OTHER) == before


async def snapshot(world: World, tenant: str) -> dict[str, Any]:
    """Everything that a tenant sees of itself."""
    viewer, admin = world.clients[tenant, "viewer"], world.clients[tenant, "admin"]
    return {
        "approvals": await viewer.get("/approvals"),
        "history": await viewer.get("/approvals/history", limit=500),
        "doubts": await viewer.get("/doubts"),
        "audit": await viewer.get("/audit", limit=500),
        "tenant": await admin.get(f"/tenants/{tenant}"),
        "revisions": await admin.get(f"/tenants/{tenant}/history"),
        "keys": await admin.get("/keys"),
        "session": await world.clients[tenant, "operator"].get(f"/sessions/{tenant}-s"),
        "sessions": await world.clients[tenant, "operator"].get("/sessions"),
    }


def hide_time(text: str) -> Any:
    """An answer without what differs between two equal requests."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, dict):
        for name in ("request_id", "duration_ms", "token", "expires_at", "call_id", "text"):
            value.pop(name, None)
        if isinstance(value.get("error"), dict):
            value["error"].pop("request_id", None)
    return value


READS = (
    "GET /approvals",
    "GET /doubts",
    "GET /audit",
    "GET /tools",
    "GET /keys",
    "GET /tenants",
    "GET /calls",
    "GET /sessions",
    "GET /re",
)


@pytest.mark.proves("SV-01")
@settings(max_examples=settings().max_examples // 20 or 1, deadline=None)
@given(data=st.data())
def test_what_a_tenant_reads_does_not_depend_on_what_another_does(data: st.DataObject) -> None:
    """Random routes, keys and ids: an answer is the same before and after another tenant did anything."""

    async def play() -> None:
        with TemporaryDirectory() as folder:
            url = f"sqlite:///{Path(folder)}/world.db"
            async with open_store(url, audit_interval=0.01) as store, open_world(store) as world:
                await compare(world)

    async def compare(world: World) -> None:
        every = [*list_requests(world.ids["acme"]), *list_requests(world.ids[OTHER])]
        reads = [item for item in every if f"{item[0]} {item[1]}".startswith(READS)]
        chosen = data.draw(
            st.lists(st.tuples(st.sampled_from(reads), st.sampled_from(ROLES)), min_size=10, max_size=20)
        )

        async def ask() -> list[tuple[int, Any]]:
            answers: list[tuple[int, Any]] = []
            for (method, path, options), role in chosen:
                answer = await world.clients["acme", role].request(method, path, **options)
                assert OTHER not in hide_sent(answer.text, options), (path, options)
                answers.append((answer.status_code, hide_time(answer.text)))
            return answers

        before = await ask()
        for number in range(1, data.draw(st.integers(2, 3))):
            await world.act(OTHER, number)
        assert await ask() == before

    asyncio.run(play())


async def test_a_caller_without_a_tenant_sees_rows_without_a_tenant_only(store: SqlStore) -> None:
    async with open_world(store) as world:
        nobody = await world.replica.connect("caller", None)
        for tenant in ("acme", OTHER):
            ids = world.ids[tenant]
            for session in (ids["session"], ids["short_session"]):
                await nobody.get("/calls/result", 404, session_id=session, call_id=ids["call"])
            await nobody.get(f"/approvals/{ids['token']}", 404)


@pytest.mark.proves("SV-01")
async def test_two_tenants_that_use_the_same_ids_mean_two_calls(store: SqlStore) -> None:
    async with open_world(store) as world:
        for tenant in ("acme", OTHER):
            caller = world.clients[tenant, "caller"]
            result = await caller.call("get_balance", {"account": tenant}, session="same", call_id="same")
            assert result["output"]["account"] == tenant
            doubt = await caller.call("close_account", {"account": tenant}, session="same", call_id="closing")
            assert doubt["error"]["code"] == "outcome_unknown"


async def test_the_name_of_a_tenant_cannot_be_made_to_mean_another_session(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        strange = await replica.connect("caller", "acme/s")
        plain = await replica.connect("caller", "acme")
        first = await strange.call("get_balance", {"account": "a"}, session="x")
        second = await plain.call("get_balance", {"account": "a"}, session="s/x")
        assert first["session_id"] != second["session_id"]


async def test_an_admin_of_a_tenant_does_not_learn_whose_number_it_is(store: SqlStore) -> None:
    async with open_world(store) as world:
        theirs = {"config": {"tenant_id": OTHER, "numbers": ["+33100000000"]}}
        assert (await world.clients[OTHER, "admin"].request("PUT", f"/tenants/{OTHER}", json=theirs)).status_code == 200

        ours = {"config": {"tenant_id": "acme", "numbers": ["+33100000000"]}}
        answer = await world.clients["acme", "admin"].request("PUT", "/tenants/acme", json=ours)

        assert (answer.status_code, OTHER in answer.text) == (422, False)


@pytest.mark.proves("SV-01")
async def test_an_admin_of_a_tenant_does_not_learn_what_another_may_refer_to(store: SqlStore) -> None:
    trust = TenantTrust(secrets=["env:{TENANT}_*"])
    async with open_replica(store, tenants=store.tenants, trust=trust) as replica:
        admin = await replica.connect("admin", "acme")
        for place in ("env:GLOBEX_KEY", "env:ELSEWHERE"):
            body = {"config": {"tenant_id": OTHER, "secrets": {"crm": place}}}
            answer = await admin.request("POST", "/tenants/validate", json=body)
            assert answer.status_code == 403
            saved = await admin.request("PUT", "/tenants/acme", json=body)
            assert (saved.status_code, "refer" in saved.text) == (422, False)
        own = await admin.post("/tenants/validate", {"config": {"tenant_id": "acme", "secrets": {"crm": "env:HOME"}}})
        assert not own["valid"]
