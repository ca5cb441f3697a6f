"""What every request passes before a route sees it: its id, its key, its rate, the length of its body, its time."""

import asyncio
import math
import re
import secrets
import time
from typing import Any, Final

from msgspec import Struct

from handrail.core.log import log
from handrail.errors import ConfigError, StoreError
from handrail.serve.access import Access
from handrail.serve.api.error_responses import ApiError, render_problem, to_api_error
from handrail.serve.mcp_calls import AsgiReceive, AsgiScope, AsgiSend, read_headers

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
_NO_KEY: Final = ("/health", "/ready", "/openapi.json", "/phone/webhook")
"""Routes without a key: they say nothing about anybody, or check a signature themselves."""
_STREAMED: Final = re.compile(r"/audit/export\Z|/sessions/[^/]+/(turns|resume)\Z")
"""Routes that may take longer than other requests; they check the key again as they go."""
_MAX_KEYS: Final = 10_000


class ApiLimits(Struct, frozen=True, kw_only=True):
    """How much the API takes: `build_app(…, api_limits=ApiLimits(requests_per_second=20))`."""

    max_body_bytes: int = 4_000_000
    """Of one request: the arguments of a call, with every character escaped."""
    body_timeout: float = 15.0
    """Seconds in which the body of a request has to arrive."""
    request_timeout: float = 120.0
    """Seconds after which a request is answered as `unavailable`. A call that it began goes on, and is looked up."""
    requests_per_second: float = 50.0
    """For each key, in each replica; more are `rate_limited`."""
    burst: int = 200
    """Requests that a key may send at once, after it was quiet."""
    turn_timeout: float = 600.0
    """Seconds after which the turn of a conversation is interrupted."""
    max_turns: int = 200
    """Turns of conversations that run at once, in each replica."""
    max_turns_per_tenant: int = 100
    """How many of them may be one tenant's."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(f"{name} must be more than 0, got {value!r}.")
        for name in ("burst", "max_turns", "max_turns_per_tenant"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)!r}.")


class KeyRates:
    """Counts the requests of each key: a bucket that fills at a rate, and holds a burst."""

    def __init__(self, limits: ApiLimits) -> None:
        self._limits = limits
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key_id: str) -> float:
        """Take one request; 0, or the seconds until there is room for it."""
        rate, burst, now = self._limits.requests_per_second, float(self._limits.burst), time.monotonic()
        left, at = self._buckets.get(key_id, (burst, now))
        left = min(burst, left + (now - at) * rate)
        if left < 1:
            self._buckets[key_id] = left, now
            return (1 - left) / rate
        if len(self._buckets) >= _MAX_KEYS:
            self._buckets = {id: bucket for id, bucket in self._buckets.items() if now - bucket[1] < burst / rate}
        self._buckets[key_id] = left - 1, now
        return 0.0


class ApiGate:
    """An ASGI app in front of the API."""

    def __init__(self, app: Any, access: Access, limits: ApiLimits) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._rates = KeyRates(limits)

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        headers = read_headers(scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else f"req-{secrets.token_hex(8)}"
        has_started = has_ended = False
        body: bytes | None = None

        async def add_id(message: Any) -> None:
            nonlocal has_started, has_ended
            has_ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            if message["type"] == "http.response.start":
                has_started = True
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", request_id.encode())]}
            await send(message)

        path = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            state = {**scope.get("state", {}), "request_id": request_id}
            if path not in _NO_KEY:
                state["key"] = await self._find_key(headers)
            async with asyncio.timeout(self._limits.body_timeout) as deadline:
                body = await self._read_body(headers, receive)
                begun = asyncio.get_running_loop().time()
                deadline.reschedule(begun + self._get_time(path))
                await self._app({**scope, "state": state}, _Replay(body, receive), add_id)
        except ApiError as error:
            await _answer(error, request_id, add_id)
        except _ClientLeft:
            pass
        except Exception as error:
            if isinstance(error, TimeoutError) and body is None:
                text = f"The body did not arrive within {self._limits.body_timeout:g} seconds."
                answer = ApiError(408, "invalid_arguments", text, retryable=True)
            elif isinstance(error, TimeoutError):
                text = f"No answer within {self._limits.request_timeout:g} seconds. Look up what became of the call."
                answer = ApiError(503, "unavailable", text, retryable=True)
            else:
                log.exception("the request %s failed", request_id)
                answer = to_api_error(error)
            if has_started and not has_ended:  # The client sees a response that breaks off.
                raise
            if not has_started:
                await _answer(answer, request_id, add_id)

    def _get_time(self, path: str) -> float:
        """Seconds for a request. A stream has the time of a turn, too: then it is cut off, whoever does not read it."""
        limits = self._limits
        return limits.request_timeout + (limits.turn_timeout if _STREAMED.match(path) else 0)

    async def _find_key(self, headers: dict[str, str]) -> Any:
        try:
            key = await self._access.find_bearer(headers)
        except StoreError as error:
            log.exception("the key of a request cannot be looked up")
            raise to_api_error(error) from error
        if key is None:
            text = "A valid key is needed: send `Authorization: Bearer hrk_…`."
            raise ApiError(401, "permission_denied", text, headers={"www-authenticate": "Bearer"})
        if wait := self._rates.take(key.id):
            text = "Too many requests with this key. Wait, and send it again."
            after = {"retry-after": str(math.ceil(wait))}
            raise ApiError(429, "rate_limited", text, retryable=True, headers=after)
        return key

    async def _read_body(self, headers: dict[str, str], receive: AsgiReceive) -> bytes:
        most = self._limits.max_body_bytes
        too_long = ApiError(413, "invalid_arguments", f"The body must have at most {most:,} bytes.")
        length = headers.get("content-length", "")
        if length.isdecimal() and len(length) < 20 and int(length) > most:
            raise too_long
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            body += message.get("body", b"")
            if len(body) > most:
                raise too_long
            if not message.get("more_body", False):
                return bytes(body)


class _ClientLeft(Exception):
    """The client left before it had sent its request."""


class _Replay:
    """Gives a body that was read already to the app, and after it what the client sends: that it has left."""

    def __init__(self, body: bytes, receive: AsgiReceive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Any:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _answer(error: ApiError, request_id: str, send: AsgiSend) -> None:
    body, headers = render_problem(error, request_id)
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
