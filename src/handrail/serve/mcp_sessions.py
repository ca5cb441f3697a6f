"""MCP sessions over HTTP: each belongs to the key that opened it, and one tenant cannot have all of them."""

import time
from collections import Counter
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import DEFAULT_SESSION_IDLE_TIMEOUT
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from msgspec import Struct

from handrail.serve.mcp_calls import AsgiReceive, AsgiScope, AsgiSend, read_headers, refuse
from handrail.store.api_keys import ApiKey

MAX_SESSIONS: Final = 1_000
"""That one tenant may have open, or one key without a tenant: the endpoint keeps 10,000 for all of them together."""
_HEADER: Final = "mcp-session-id"
_SessionRef = tuple[str, str]
"""The id of the key, and that of the session."""


class _OpenSession(Struct):
    """A session, as far as its requests show."""

    used_at: float
    active: int = 0
    """Its requests without a whole response, such as a stream that is open."""

    def is_over(self, now: float) -> bool:
        """Whether the endpoint has ended it by now, because it was idle."""
        return not self.active and now - self.used_at > DEFAULT_SESSION_IDLE_TIMEOUT


class McpSessions:
    """An ASGI app in front of the MCP endpoint, behind the gate that finds the key of a request."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._open: dict[str, dict[_SessionRef, _OpenSession]] = {}
        """By the owner."""
        self._opening: Counter[str] = Counter()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        key: ApiKey = scope["state"]["key"]
        # The SDK compares whose a session is; to anybody else it does not exist.
        scope = {**scope, "user": AuthenticatedUser(AccessToken(token="", client_id=key.id, scopes=[]))}
        headers = read_headers(scope)
        session_id = headers.get(_HEADER)
        if headers.get("mcp-protocol-version", "") not in ("", *HANDSHAKE_PROTOCOL_VERSIONS):
            await self._app(scope, receive, send)  # The newer protocol has no sessions, and can end none.
        elif session_id is not None:
            await self._use(key, session_id, scope, receive, send)
        else:
            await self._open_one(key, scope, receive, send)

    async def _use(self, key: ApiKey, session_id: str, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        sessions, ref = self._open.get(_get_owner(key), {}), (key.id, session_id)
        session = sessions.get(ref) or _OpenSession(used_at=0.0)

        async def watch(message: Any) -> None:
            # A DELETE that is refused ends nothing.
            is_over = message["type"] == "http.response.start" and (
                message["status"] == 404 or (scope["method"] == "DELETE" and message["status"] < 400)
            )
            if is_over:
                sessions.pop(ref, None)
            await send(message)

        session.active += 1
        try:
            await self._app(scope, receive, watch)
        finally:
            session.active -= 1
            session.used_at = time.monotonic()

    async def _open_one(self, key: ApiKey, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        owner = _get_owner(key)
        if self._is_full(owner):
            text = (
                f"{MAX_SESSIONS:,} MCP sessions are open. End those that are not needed (DELETE), or try again later."
            )
            await refuse(send, 429, text)
            return

        async def watch(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                session_id = read_headers(message).get(_HEADER)
                if session_id is not None:
                    self._open.setdefault(owner, {})[key.id, session_id] = _OpenSession(used_at=time.monotonic())
            await send(message)

        self._opening[owner] += 1
        try:
            await self._app(scope, receive, watch)
        finally:
            self._opening[owner] -= 1

    def _is_full(self, owner: str) -> bool:
        sessions = self._open.get(owner, {})
        if len(sessions) + self._opening[owner] >= MAX_SESSIONS:
            now = time.monotonic()
            for ref in [ref for ref, one in sessions.items() if one.is_over(now)]:
                del sessions[ref]
        return len(sessions) + self._opening[owner] >= MAX_SESSIONS


def _get_owner(key: ApiKey) -> str:
    return f"key:{key.id}" if key.tenant_id is None else f"tenant:{key.tenant_id}"
