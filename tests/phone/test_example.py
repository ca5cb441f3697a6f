"""The example's server: webhooks come over HTTP, and a call is booked in its database."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from handrail.cli.agent_file import find_example
from handrail.phone import WebhookResponse
from handrail.testing.phone import CallReport, PhoneSimulator, load_script, run_warped


async def post(app: Any, headers: list[tuple[str, str]], body: bytes) -> WebhookResponse:
    """Send a request to a web application as its server would."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/webhook",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return WebhookResponse(status=sent[0]["status"], body=sent[1].get("body", b"").decode())


def test_the_server_of_the_example_takes_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = find_example("phone_agent")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "agent", raising=False)
    build_app = runpy.run_path(str(folder / "server.py"))["build_app"]
    monkeypatch.delitem(sys.modules, "agent", raising=False)

    async def main() -> CallReport:
        async with PhoneSimulator() as simulator:
            client = AsyncOpenAI(base_url=simulator.url, api_key="sk-test", webhook_secret=simulator.webhook_secret)
            app = build_app(client, f"sqlite+aiosqlite:///{tmp_path}/calls.db")
            async with app.router.lifespan_context(app):
                script = load_script(folder / "calls/book.yaml")
                return await simulator.play(script, lambda headers, body: post(app, headers, body))

    run_warped(main()).check()
