"""What the official conformance suite starts as a client: our sources and an executor, and for OAuth the SDK's own."""

import asyncio
import json
import os
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult
from handrail.sources import Elicitation, McpServer, Sources, connect

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
GIVEN: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
IS_MODERN = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "2026-07-28") >= "2026"
BACK = AnyUrl("http://localhost:3000/callback")


def answer_question(question: Elicitation) -> dict[str, Any]:
    """Whoever answers the server's questions: with the defaults, and yes."""
    asked = (question.schema or {}).get("properties", {})
    return {name: one["default"] for name, one in asked.items() if "default" in one} or {"confirmed": True}


class Tokens:
    """Where the OAuth provider keeps what it has."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def make_auth(url: str) -> httpx2.Auth:
    storage = Tokens()
    if client_id := GIVEN.get("client_id"):
        secret = GIVEN.get("client_secret")
        storage.client = OAuthClientInformationFull(
            client_id=client_id,
            client_secret=secret,
            redirect_uris=[BACK],
            token_endpoint_auth_method="client_secret_basic" if secret else "none",
        )
    answers: list[AuthorizationCodeResult] = []

    async def visit(address: str) -> None:
        async with httpx2.AsyncClient() as browser:
            response = await browser.get(address, follow_redirects=False)
        query = {key: values[0] for key, values in parse_qs(urlsplit(response.headers["location"]).query).items()}
        answers.append(AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss")))

    async def answer() -> AuthorizationCodeResult:
        return answers.pop()

    return OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(
            client_name="handrail",
            redirect_uris=[BACK],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        ),
        storage=storage,
        redirect_handler=visit,
        callback_handler=answer,
        client_metadata_url="https://conformance-test.local/client-metadata.json",
    )


async def call(sources: Sources, name: str, arguments: dict[str, Any]) -> ToolResult:
    executor = Executor(sources.tools, policy=Policy([Rule.allow("*")]))
    call = ToolCall(id=name, name=f"suite__{name}", arguments_json=json.dumps(arguments))
    return await executor.run(call, ToolContext(session_id="conformance"))


def own_names(sources: Sources) -> list[str]:
    return [tool.name.removeprefix("suite__") for tool in sources.tools]


def stub(schema: Any) -> dict[str, Any]:
    values = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}
    return {name: values.get(schema["properties"][name].get("type"), "x") for name in schema.get("required", ())}


async def play(sources: Sources) -> None:
    if SCENARIO in ("tools_call", "request-metadata", "http-standard-headers"):
        await call(sources, "add_numbers", {"a": 5, "b": 3})
    elif SCENARIO == "sse-retry":
        await call(sources, "test_reconnection", {})
    elif SCENARIO == "elicitation-sep1034-client-defaults":
        await call(sources, "test_client_elicitation_defaults", {})
    elif SCENARIO == "json-schema-2020-12-preservation":
        focal = next(tool for tool in sources.tools if tool.name == "suite__json_schema_2020_12_tool")
        await call(sources, "json_schema_echo", {"schema": focal.input_schema})
    elif SCENARIO == "http-custom-headers":
        for item in GIVEN.get("toolCalls", []):
            if item["name"] in own_names(sources):
                # A value of null is none that the tool's schema takes: whoever has none leaves it out.
                given = (item.get("arguments") or {}).items()
                await call(sources, item["name"], {name: value for name, value in given if value is not None})
    elif SCENARIO == "http-invalid-tool-headers":
        for tool in sources.tools:
            await call(sources, tool.name.removeprefix("suite__"), stub(tool.input_schema))
    elif SCENARIO == "sep-2322-client-request-state":
        for name in ("echo_state", "unrelated", "no_state", "no_result_type"):
            await call(sources, f"test_mrtr_{name}", {})
    elif SCENARIO.startswith("auth/") and sources.tools:
        await call(sources, own_names(sources)[0], {})


async def main(url: str) -> int:
    is_legacy = not IS_MODERN or SCENARIO == "json-schema-ref-no-deref"  # Its server speaks only the older revision.
    server = McpServer(
        "suite",
        url=url,
        auth=make_auth(url) if SCENARIO.startswith("auth/") else None,
        on_elicitation=answer_question,
        protocol="legacy" if is_legacy else "auto",
        connect_timeout=60,
    )
    async with connect([server]) as sources:
        print(sources.status, file=sys.stderr)
        await play(sources)
        return 0 if sources.status["suite"].state == "connected" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
