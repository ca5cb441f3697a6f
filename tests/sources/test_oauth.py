"""OAuth: the SDK's own provider as `auth=`, against an SDK server that is its own authorization server."""

import secrets
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyHttpUrl, AnyUrl

from handrail import Executor, Policy, Rule, ToolCall, ToolContext
from handrail.sources import McpServer, connect
from tests.sources.serving import bind, listening


class Authorization:
    """An authorization server in memory, where everybody is logged in and agrees."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id or ""] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(24),
            client_id=client.client_id or "",
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        token = secrets.token_urlsafe(24)
        self.tokens[token] = AccessToken(
            token=token,
            client_id=client.client_id or "",
            scopes=authorization_code.scopes,
            resource=authorization_code.resource,
        )
        return OAuthToken(access_token=token, token_type="Bearer", expires_in=3600)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        return None

    async def exchange_refresh_token(self, client: Any, refresh_token: Any, scopes: list[str]) -> OAuthToken:
        raise NotImplementedError

    async def revoke_token(self, token: Any) -> None:
        raise NotImplementedError


class Storage:
    """What the client keeps: the tokens, and what it was registered as."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def make_auth(url: str, storage: Storage, visited: list[str]) -> OAuthClientProvider:
    async def visit(address: str) -> None:
        async with httpx2.AsyncClient() as browser:
            visited.append((await browser.get(address, follow_redirects=False)).headers["location"])

    async def wait_for_code() -> AuthorizationCodeResult:
        query = {key: values[0] for key, values in parse_qs(urlsplit(visited[-1]).query).items()}
        return AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss"))

    return OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(
            client_name="handrail", redirect_uris=[AnyUrl("http://localhost:3000/callback")], scope="shop"
        ),
        storage=storage,
        redirect_handler=visit,
        callback_handler=wait_for_code,
    )


async def test_a_server_behind_oauth_is_used_with_the_sdks_provider_and_one_login() -> None:
    listener = bind()
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    authorization, storage, visited = Authorization(), Storage(), list[str]()
    server = MCPServer(
        "shop",
        auth_server_provider=authorization,
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(base),
            resource_server_url=AnyHttpUrl(f"{base}/mcp"),
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=["shop"], default_scopes=["shop"]
            ),
            required_scopes=["shop"],
            validate_token_resource=True,
        ),
    )

    @server.tool()
    def order(name: str) -> str:
        """Order something."""
        return f"ordered {name}"

    async with listening(server.streamable_http_app(), listener=listener):
        for _ in range(2):  # The second one finds the tokens where the first one has put them.
            auth = make_auth(f"{base}/mcp", storage, visited)
            shop = McpServer("shop", url=f"{base}/mcp", auth=auth)
            async with connect([shop]) as sources:
                assert sources.status["shop"].state == "connected", sources.status["shop"].reason
                executor = Executor(sources.tools, policy=Policy([Rule.allow("*")]))
                call = ToolCall(id="1", name="shop__order", arguments_json='{"name": "tea"}')
                assert "ordered tea" in (await executor.run(call, ToolContext(session_id="s"))).for_model()
        async with connect([McpServer("shop", url=f"{base}/mcp")]) as sources:
            assert sources.status["shop"].state == "reconnecting"
            assert "401" in sources.status["shop"].reason
    assert len(visited) == 1
    assert len(authorization.tokens) == 1
    assert storage.tokens is not None
    assert storage.tokens.access_token not in repr(shop)
