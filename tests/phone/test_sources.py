"""Tools that tenants have elsewhere, for real: an MCP server in a process, and an API described by OpenAPI."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import ValidationError

from handrail import ToolFlags
from handrail.core import CallFinished, Event, LogEvent, ToolsBuilt
from handrail.phone import PhoneGateway
from handrail.tenants import TenantConfig, TenantDirectory, TenantTrust
from handrail.tenants.tool_sources import open_sources
from handrail.testing.phone import CallReport, PhoneSimulator
from tests.phone.test_store import FAST
from tests.sources.api_server import Request, serving
from tests.sources.serving import listening
from tests.sources.test_mcp_http import Seen, make_server
from tests.tenants.samples import acme

SERVER = str(Path(__file__).with_name("crm_server.py"))
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Orders", "version": "1"},
    "servers": [{"url": "https://orders.example"}],
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    "security": [{"token": []}],
    "paths": {
        "/orders/{id}": {
            "get": {
                "operationId": "getOrder",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                "responses": {"200": {"description": "ok"}},
            }
        }
    },
}


def tenant(name: str, number: str, folder: Path, api: str, *arguments: str) -> TenantConfig:
    return TenantConfig.model_validate(
        {
            "tenant_id": name,
            "numbers": [number],
            "greeting": "Hello.",
            "secrets": {"crm": f"file:{folder / name}.crm", "orders": f"file:{folder / name}.orders"},
            "mcp_servers": [
                {
                    "name": "crm",
                    "command": [sys.executable, SERVER, *arguments],
                    "env": {"CRM_OWNER": name, "CRM_KEY": "secret:crm"},
                    "trusted": True,
                    "connect_timeout": 30,
                }
            ],
            "openapi": [
                {
                    "name": "orders",
                    "path": str(folder / "orders.json"),
                    "base_url": api,
                    "bearer": "secret:orders",
                    "allow_private": True,
                }
            ],
        }
    )


def script(call_id: str, number: str) -> dict[str, Any]:
    calls = [
        {"id": f"{call_id}_crm", "name": "crm__find_customer", "args": {"number": "+331"}},
        {"id": f"{call_id}_order", "name": "getOrder", "args": {"id": "A-1"}},
    ]
    return {
        "call": {"id": call_id, "to": number},
        "timing": FAST,
        "model": [{"say": "Hello."}, {"calls": calls}],
        "otherwise": {"say": "There it is."},
        "caller": [{"say": "My order, please."}, {"wait": "results", "patience": 20}],
    }


def outputs(report: CallReport) -> dict[str, str]:
    sent = report.client_events("conversation.item.create", item__type="function_call_output")
    return {message["item"]["call_id"].partition("_")[2]: message["item"]["output"] for message in sent}


async def test_each_tenant_has_its_own_servers_and_secrets_and_one_that_is_broken_costs_nobody_else(
    tmp_path: Path,
) -> None:
    (tmp_path / "orders.json").write_text(json.dumps(DOCUMENT))
    for name in ("north", "south"):
        for kind in ("crm", "orders"):
            (tmp_path / f"{name}.{kind}").write_text(f"{name}-{kind}-key-{name[0]}")
    heard: list[Event] = []
    trust = TenantTrust(
        secrets=[f"file:{tmp_path}/{{tenant}}.*"],
        commands=[f"{sys.executable} {SERVER} *"],
        environment=["CRM_*"],
        documents=[f"{tmp_path}/*"],
        private_networks=True,
    )

    def answer(request: Request) -> Any:
        return {
            "path": request.path,
            "owner": request.headers["authorization"].removeprefix("Bearer ").partition("-")[0],
        }

    with serving(answer) as api:
        tenants = TenantDirectory(
            [
                tenant("north", "+33100000001", tmp_path, api.url),
                tenant("south", "+33100000002", tmp_path, api.url, "broken"),
            ]
        )
        async with PhoneSimulator() as simulator:
            client = AsyncOpenAI(base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret)
            async with (
                client,
                PhoneGateway(client=client, tenants=tenants, trust=trust, listeners=[heard.append]) as gateway,
            ):
                north, south = await asyncio.gather(
                    simulator.play(script("n", "+33100000001"), gateway.handle_webhook),
                    simulator.play(script("s", "+33100000002"), gateway.handle_webhook),
                )
                await gateway.drain(grace=5)

    for report in (north, south):
        report.check()
    assert json.loads(outputs(north)["crm"]) == {"result": "+331 is known to north, key n"}
    assert json.loads(outputs(north)["order"]) == {"path": "/orders/A-1", "owner": "north"}
    assert json.loads(outputs(south)["crm"])["error"] == "tool_not_found"
    assert json.loads(outputs(south)["order"]) == {"path": "/orders/A-1", "owner": "south"}
    states = {
        (event.tenant_id, event.fields["source"]): event.fields["state"]
        for event in heard
        if isinstance(event, LogEvent) and event.name == "tool_source_opened"
    }
    assert states.pop(("south", "crm")) != "connected"
    assert set(states.values()) == {"connected"}
    assert [item.headers["authorization"] for item in api.requests].count("Bearer north-orders-key-n") == 1
    assert "key-n" not in str([event for event in heard if not isinstance(event, CallFinished)])


async def test_headers_of_a_server_carry_the_secrets_of_the_tenant(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("token-1")
    app = Seen(make_server().streamable_http_app())
    async with listening(app) as url:
        server = {"name": "crm", "url": f"{url}/mcp", "headers": {"X-Tenant": "acme", "X-Key": "secret:crm"}}
        cfg = acme(secrets={"crm": f"file:{tmp_path}/key"}, mcp_servers=[server])
        sources = await open_sources(cfg, TenantTrust(secrets=["file:*"], private_networks=True))
        assert sources is not None
        await sources.aclose()

    assert {(header["x-tenant"], header["x-key"]) for header in app.headers} == {("acme", "token-1")}


async def test_tools_that_a_server_gets_later_are_those_of_a_later_call() -> None:
    server = {"name": "crm", "include": ["add_tool", "new"]}
    script: dict[str, Any] = {
        "timing": FAST,
        "model": [{"say": "Hello."}, {"calls": [{"id": "c1", "name": "crm__add_tool"}]}],
        "otherwise": {"say": "Done."},
        "caller": [{"say": "Learn something."}, {"wait": "results", "patience": 20}],
    }
    offered: list[list[str]] = []
    async with listening(make_server().streamable_http_app()) as url, PhoneSimulator() as simulator:
        servers = [{**server, "url": f"{url}/mcp"}]
        cfg = acme(greeting="Hello.", features={}, mcp_servers=servers, policy=[{"allow": "crm__add_tool"}])
        client = AsyncOpenAI(base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret)
        trust = TenantTrust(private_networks=True)
        async with client, PhoneGateway(client=client, tenants=TenantDirectory([cfg]), trust=trust) as gateway:
            while len(offered) < 20 and "crm__new" not in (offered or [[]])[-1]:  # The news may take a moment.
                report = await simulator.play({**script, "call": {"id": f"rtc_{len(offered)}"}}, gateway.handle_webhook)
                session = next(entry.data["body"] for entry in report.timeline if entry.type == "accept")
                offered.append([tool["name"] for tool in session["tools"]])
                script = {"timing": FAST, "model": [{"say": "Hello."}]}

    assert offered[0] == ["crm__add_tool"]
    assert offered[-1] == ["crm__add_tool", "crm__new"]


class Counted:
    """An app in front of another one, which counts the requests that are under way."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.open = self.seen = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_http = scope["type"] == "http"
        self.open += is_http
        self.seen += is_http
        try:
            await self.app(scope, receive, send)
        finally:
            self.open -= is_http


async def test_what_cannot_be_built_leaves_no_connection_open() -> None:
    app = Counted(make_server().streamable_http_app())
    declared = {"crm__who": ToolFlags(read_only=True)}  # It belongs to another framework: no tool may have its name.
    async with listening(app) as url, PhoneSimulator() as simulator:
        client = AsyncOpenAI(base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret)
        directory, trust = TenantDirectory([]), TenantTrust(private_networks=True)
        options = {"declared": declared}
        async with (
            client,
            PhoneGateway(client=client, tenants=directory, trust=trust, executor_options=options) as gateway,
        ):
            for number in range(3):
                servers = [{"name": "crm", "url": f"{url}/mcp"}]
                directory.put(acme(greeting=f"Hello {number}.", features={}, mcp_servers=servers))
                script = {"call": {"id": f"rtc_{number}"}, "timing": FAST, "model": [{"say": "Hello."}]}
                report = await simulator.play(script, gateway.handle_webhook)
                assert report.ended == "rejected"
            async with asyncio.timeout(5):
                while app.open:
                    await asyncio.sleep(0.01)
            assert app.seen > 3


async def test_tools_of_a_source_that_cannot_be_used_leave_those_before() -> None:
    server = {"name": "crm", "include": ["add_tool", "new"]}
    learn: dict[str, Any] = {
        "timing": FAST,
        "model": [{"say": "Hello."}, {"calls": [{"id": "c1", "name": "crm__add_tool"}]}],
        "otherwise": {"say": "Done."},
        "caller": [{"say": "Learn something."}, {"wait": "results", "patience": 20}],
    }
    heard: list[Event] = []
    async with listening(make_server().streamable_http_app()) as url, PhoneSimulator() as simulator:
        servers = [{**server, "url": f"{url}/mcp"}]
        cfg = acme(greeting="Hello.", features={}, mcp_servers=servers, policy=[{"allow": "crm__add_tool"}])
        client = AsyncOpenAI(base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret)
        gateway = PhoneGateway(
            client=client,
            tenants=TenantDirectory([cfg]),
            trust=TenantTrust(private_networks=True),
            listeners=[heard.append],
            executor_options={"declared": {"crm__new": ToolFlags(read_only=True)}},
        )
        async with client, gateway:
            for number in range(4):
                report = await simulator.play({**learn, "call": {"id": f"rtc_{number}"}}, gateway.handle_webhook)
                session = next(entry.data["body"] for entry in report.timeline if entry.type == "accept")
                assert [tool["name"] for tool in session["tools"]] == ["crm__add_tool"]
                learn = {"timing": FAST, "model": [{"say": "Hello."}]}

    assert any(isinstance(event, ToolsBuilt) and "crm__new" in event.tool_names for event in heard)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mcp_servers": [{"name": "a__b", "url": "https://x.example"}]}, "name must be 1 to 32"),
        ({"mcp_servers": [{"name": "crm", "url": "ftp://x.example"}]}, "must be an http or https URL"),
        ({"mcp_servers": [{"name": "crm", "url": "http://x.example\0/mcp"}]}, "must not have spaces or control"),
        ({"mcp_servers": [{"name": f"m{n}", "url": "https://x.example"} for n in range(51)]}, "at most 50 items"),
        ({"openapi": [{"name": f"o{n}", "url": "https://x.example"} for n in range(51)]}, "at most 50 items"),
        ({"mcp_servers": [{"name": "crm", "url": "https://x.example", "bearer": "hunter2"}]}, "must be a reference"),
        ({"mcp_servers": [{"name": "crm", "command": ["x"], "headers": {"a": "b"}}]}, "are for a server with url"),
        ({"openapi": [{"name": "api", "path": "x.json", "bearer": "hunter2"}]}, "bearer must be a reference"),
        ({"openapi": [{"name": "api", "path": "x.json", "base_url": "ftp://x"}]}, "base_url"),
        ({"openapi": [{"name": "api", "url": "/etc/passwd"}]}, "url must be an http or https URL"),
        ({"openapi": [{"name": "api", "url": "file:///etc/passwd"}]}, "url must be an http or https URL"),
    ],
)
def test_a_source_that_cannot_be_is_refused_when_the_configuration_is_read(changes: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        acme(**changes)

    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
