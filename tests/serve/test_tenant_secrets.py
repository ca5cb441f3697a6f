"""Secrets of the host and of tenants: neither gets the other's."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from handrail import Executor, Policy, Rule, ToolContext, tool
from handrail.serve import build_app
from handrail.store import SqlStore
from handrail.tenants import TenantConfig, TenantTrust
from tests.serve.service import Replica
from tests.sources.serving import listening

SECURITY = {"key": {"type": "http", "scheme": "bearer"}}


@tool(read_only=True)
def charge(context: ToolContext[Any]) -> str:
    """Use the host's account, and what the tenant has beside it."""
    return f"{context.secrets['psp']} {context.secrets.get('crm', 'none')}"


@pytest.mark.proves("SV-07")
async def test_a_tenants_api_gets_the_tenants_secret_and_never_the_hosts(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOST_PSP": "host-secret", "ACME_PSP": "acme-secret", "ACME_CRM": "acme-crm"}.items():
        monkeypatch.setenv(name, value)
    seen: list[str] = []

    async def answer(request: Request) -> JSONResponse:
        seen.append(request.headers.get("authorization", ""))
        return JSONResponse({"ok": True})

    api = Starlette(routes=[Route("/orders", answer)])
    async with listening(api) as url:
        operation = {
            "operationId": "list_orders",
            "summary": "List orders.",
            "responses": {"200": {"description": "ok"}},
        }
        document = {
            "openapi": "3.1.0",
            "info": {"title": "Orders", "version": "1"},
            "servers": [{"url": url}],
            "components": {"securitySchemes": SECURITY},
            "security": [{"key": []}],
            "paths": {"/orders": {"get": operation}},
        }
        (tmp_path / "orders.json").write_text(json.dumps(document))
        source = {"name": "shop", "path": f"{tmp_path}/orders.json", "base_url": url, "allow_private": True}
        source |= {"bearer": "secret:psp"}
        own = {"psp": "env:ACME_PSP", "crm": "env:ACME_CRM"}
        await store.tenants.put(TenantConfig(tenant_id="acme", openapi=[source], secrets=own))  # type: ignore[arg-type]
        await store.tenants.put(TenantConfig(tenant_id="globex", openapi=[source]))  # type: ignore[arg-type]
        trust = TenantTrust(secrets=["env:{TENANT}_*"], documents=[f"{tmp_path}/*"], private_networks=True)
        policy = Policy([Rule.allow("charge")])
        executor = Executor([charge], policy=policy, store=store, secrets={"psp": "env:HOST_PSP"})
        app = build_app(executor, store=store, tenants=store.tenants, trust=trust)
        async with app.router.lifespan_context(app):
            replica = Replica(app, executor, store)
            acme, globex = await replica.connect("caller"), await replica.connect("caller", "globex")
            names = [item["name"] for item in (await acme.get("/tools"))["items"]]
            (listing,) = [name for name in names if "list_orders" in name]

            assert (await acme.call(listing))["ok"]
            failed = await globex.call(listing)
            assert not failed["ok"]
            assert "host-secret" not in json.dumps(failed)
            assert seen == ["Bearer acme-secret"]
            assert (await acme.call("charge"))["output"] == "host-secret acme-crm"
            assert (await globex.call("charge"))["output"] == "host-secret none"
