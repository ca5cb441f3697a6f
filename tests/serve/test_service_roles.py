"""Every route and every role: who may use what, and that no route was forgotten."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from handrail.store import SqlStore
from handrail.store.api_keys import ROLES
from tests.serve.service import PARROT, Replica, open_replica

PATHS: dict[str, str] = {
    "token": "apr_none",
    "tenant_id": "acme",
    "id": "none",
    "format": "mcp",
    "name": "pay",
    "session_id": "s",
}
CALL = {"tool": "get_balance", "arguments": {"account": "a"}, "session_id": "s"}
BODIES: dict[str, Any] = {
    "POST /calls": CALL,
    "POST /explain": CALL,
    "POST /calls/cancel": {"session_id": "s", "call_id": "c"},
    "POST /doubts/resolve": {"session_id": "s", "call_id": "c", "happened": True},
    "POST /erase": {"customer_id": "nobody"},
    "POST /keys": {"role": "viewer", "who": "eve"},
    "POST /tenants/validate": {"config": {"tenant_id": "acme"}},
    "PUT /tenants/{tenant_id}": {"config": {"tenant_id": "acme"}},
    "POST /tenants/{tenant_id}/rollback": {"revision": 1},
    "POST /sessions/{session_id}/turns": {"message": "hello"},
}
QUERIES = {
    "GET /calls/result": {"session_id": "s", "call_id": "c"},
    "GET /calls/why": {"session_id": "s", "call_id": "c"},
    "GET /approvals": {"session_id": "s"},
}
ALLOWED = {
    "POST /calls": "caller",
    "POST /calls/submit": "caller",
    "POST /calls/cancel": "caller",
    "GET /calls/result": "caller viewer operator admin",
    "GET /calls/why": "viewer operator admin",
    "POST /explain": "caller viewer operator admin",
    "GET /tools": "caller viewer operator admin",
    "GET /tools/{name}": "caller viewer operator admin",
    "GET /tools/definitions/{format}": "caller viewer operator admin",
    "POST /sessions/{session_id}/turns": "caller",
    "POST /sessions/{session_id}/resume": "caller",
    "POST /sessions/{session_id}/interrupt": "caller",
    "GET /sessions": "caller operator",
    "GET /sessions/{session_id}": "caller operator",
    "GET /approvals": "caller viewer operator admin",
    "GET /approvals/history": "viewer operator admin",
    "GET /approvals/{token}": "caller viewer operator admin",
    "POST /approvals/{token}/approve": "caller operator",
    "POST /approvals/{token}/deny": "caller operator",
    "GET /doubts": "viewer operator admin",
    "POST /doubts/resolve": "operator",
    "GET /audit": "viewer operator admin",
    "GET /audit/export": "viewer operator admin",
    "POST /erase": "admin",
    "GET /tenants": "admin",
    "POST /tenants/validate": "admin",
    "GET /tenants/{tenant_id}": "admin",
    "PUT /tenants/{tenant_id}": "admin",
    "DELETE /tenants/{tenant_id}": "admin",
    "GET /tenants/{tenant_id}/history": "admin",
    "POST /tenants/{tenant_id}/rollback": "admin",
    "GET /keys": "admin",
    "POST /keys": "admin",
    "DELETE /keys/{id}": "admin",
    "GET /metrics": "viewer operator admin",
}
"""Which roles may use which route, as the documentation says it."""
PUBLIC = {"GET /health", "GET /ready"}


async def list_routes(replica: Replica) -> list[str]:
    document = await (await replica.connect("viewer")).get("/openapi.json")
    return [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]


async def ask(replica: Replica, route: str, role: Any, tenant_id: str | None = "acme") -> int:
    method, path = route.split()
    client = await replica.connect(role, tenant_id)
    body = BODIES.get(route, {}) if method in ("POST", "PUT") else None
    answer = await client.request(method, path.format(**PATHS), json=body, params=QUERIES.get(route))
    return answer.status_code


@pytest.mark.proves("SV-03")
async def test_each_route_takes_the_roles_that_are_documented_and_no_other(store: SqlStore) -> None:
    async with open_replica(store, tenants=store.tenants, registry=CollectorRegistry(), agent=PARROT) as replica:
        found = await list_routes(replica)
        assert set(found) == {*ALLOWED, *PUBLIC}, "a route has no line in the table of roles"
        for route in sorted(ALLOWED):
            tenant = None if route == "GET /metrics" else "acme"
            taken = {role for role in ROLES if await ask(replica, route, role, tenant) != 403}
            assert taken == set(ALLOWED[route].split()), route


@pytest.mark.proves("SV-03")
async def test_no_route_but_health_answers_without_a_key(store: SqlStore) -> None:
    async with open_replica(store, tenants=store.tenants, registry=CollectorRegistry(), agent=PARROT) as replica:
        for route in ALLOWED:
            method, path = route.split()
            for headers in ({}, {"Authorization": "Bearer hrk_wrong"}, {"Authorization": "Basic YTpi"}):
                client = await replica.connect("caller")
                client.http.headers.pop("authorization")
                answer = await client.request(method, path.format(**PATHS), headers=headers)
                assert answer.status_code == 401, route
                assert answer.json()["error"]["code"] == "permission_denied"
                assert answer.headers["www-authenticate"] == "Bearer"


def test_the_documentation_has_the_same_table() -> None:
    page = (Path(__file__).parents[2] / "docs/service.md").read_text(encoding="utf-8")
    lines = {line.strip() for line in page.splitlines() if line.startswith("| `")}
    for route, roles in ALLOWED.items():
        wanted = [line for line in lines if line.startswith(f"| `{route}` |")]
        assert wanted, f"docs/service.md has no line about {route}"
        assert wanted[0].split("|")[2].split() == [f"{role}," for role in roles.split()[:-1]] + [roles.split()[-1]], (
            route
        )


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_the_metrics_of_all_are_not_for_a_tenant(store: SqlStore, role: Any) -> None:
    async with open_replica(store, registry=CollectorRegistry()) as replica:
        assert await ask(replica, "GET /metrics", role, "acme") == 403
        assert await ask(replica, "GET /metrics", role, None) == 200
