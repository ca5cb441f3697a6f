"""A tenant's configuration reaches on the host what the host lists, and nothing else."""

from typing import Any

import pytest

from handrail import ToolContext, tool
from handrail.tenants import TenantTrust
from tests.phone.calls import play
from tests.tenants.samples import acme

URL = "https://crm.example/mcp"
HOST = TenantTrust(
    secrets=["env:{TENANT}_*", "file:/run/secrets/{tenant}/*"],
    commands=["uvx crm-server *", "/opt/orders"],
    environment=["CRM_*"],
    documents=["/srv/apis/*"],
)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"secrets": {"crm": "env:ACME_CORP_KEY"}}, None),
        ({"secrets": {"crm": "env:OPENAI_API_KEY"}}, "secrets.crm"),
        ({"secrets": {"crm": "env:acme_corp_key"}}, "secrets.crm"),
        ({"secrets": {"crm": "file:/run/secrets/acme-corp/crm"}}, None),
        ({"secrets": {"crm": "file:/run/secrets/acme-corp/../other/crm"}}, "secrets.crm"),
        ({"secrets": {"crm": "file:/run/secrets/acme-corp-2/crm"}}, "secrets.crm"),
        ({"secrets": {"crm": "file:/etc/shadow"}}, "secrets.crm"),
        ({"mcp_servers": [{"name": "crm", "url": URL, "bearer": "secret:crm"}]}, None),
        ({"mcp_servers": [{"name": "crm", "url": URL, "bearer": "env:OPENAI_API_KEY"}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "url": URL, "headers": {"X-Key": "env:HOME"}}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "url": "http://169.254.169.254/latest"}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "url": "http://localhost:8080/mcp"}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "url": "http://[::1]/mcp"}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "url": "http://127.1:8080/mcp"}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "url": "http://0x7f.1/mcp"}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "url": "http://169.254.43518/latest"}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "url": "http://127.0.0.1./mcp"}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "command": ["uvx", "crm-server", "--fast"]}]}, None),
        ({"mcp_servers": [{"name": "crm", "command": ["uvx", "evil-server"]}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "command": ["uvx"]}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "command": ["/opt/orders"]}]}, None),
        ({"mcp_servers": [{"name": "crm", "command": ["/opt/orders", "--all"]}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "command": ["/opt/orders"], "env": {"CRM_A": "1"}}]}, None),
        ({"mcp_servers": [{"name": "crm", "command": ["/opt/orders"], "env": {"PATH": "/tmp"}}]}, "mcp_servers.0"),
        ({"mcp_servers": [{"name": "crm", "command": ["/opt/orders"], "env": {"CRM_A": "env:HOME"}}]}, "mcp_servers.0"),
        ({"openapi": [{"name": "shop", "path": "/srv/apis/shop.json", "api_key": "env:ACME_CORP_X"}]}, None),
        ({"openapi": [{"name": "shop", "path": "/srv/apis/shop.json", "api_key": {"a": "env:X"}}]}, "openapi.0"),
        ({"openapi": [{"name": "shop", "path": "/srv/apis/../keys.json"}]}, "openapi.0"),
        (
            {"openapi": [{"name": "shop", "url": "https://shop.example/openapi.json", "allow_private": True}]},
            "openapi.0",
        ),
    ],
)
def test_what_a_tenant_refers_to_is_allowed_or_named(changes: dict[str, Any], place: str | None) -> None:
    assert list(HOST.find_problems(acme(**changes))) == ([] if place is None else [place])


def test_without_a_list_nothing_is_allowed_and_the_message_says_what_is() -> None:
    cfg = acme(secrets={"crm": "env:KEY"}, mcp_servers=[{"name": "crm", "command": ["uvx", "x"]}])

    assert TenantTrust().find_problems(cfg) == {
        "secrets.crm": "must be a reference that the host allows (none), got 'env:KEY'",
        "mcp_servers.0": "command must be one that the host allows (none), got 'uvx'",
    }
    assert TenantTrust().select_secrets(cfg) == {}


def test_a_call_of_a_tenant_that_reaches_too_far_is_taken_without_what_it_must_not_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOST_KEY", "host-secret-value")
    seen: list[object] = []

    @tool(read_only=True)
    async def look(context: ToolContext[Any]) -> str:
        """Look."""
        seen.append(list(context.secrets))
        return "seen"

    cfg = acme(
        greeting="Hello.",
        secrets={"crm": "env:HOST_KEY", "own": "env:ACME_KEY"},
        mcp_servers=[{"name": "shell", "command": ["/bin/sh", "-c", "exit"]}],
    )
    played = play(
        {
            "model": [{"say": "Hello."}, {"calls": [{"id": "c1", "name": "look"}]}, {"say": "Seen."}],
            "caller": [{"say": "Look."}, {"wait": "results"}],
            "expect": [{"result": "c1"}],
        },
        tenants=[cfg],
        tools=[look],
        trust=TenantTrust(secrets=["env:ACME_*"]),
    )

    assert seen == [["own"]]
    assert "tenant_invalid" in played.notes
    [source] = [event for event in played.events if getattr(event, "name", "") == "tool_source_opened"]
    assert source.fields["state"] == "failed"
    assert "host-secret-value" not in str(played.events)
