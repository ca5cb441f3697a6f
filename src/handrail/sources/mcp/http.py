"""The HTTP client of a connection: its headers, a limit on what is read, and what became of each request."""

from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from typing import Final

import httpx2

_UNSENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.LocalProtocolError,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
)
_REFUSED: Final = frozenset({400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 421, 422, 426, 429, 431, 451})
"""Answers after which a request has done nothing: it was refused before anything ran."""


class RequestTrace:
    """What became of the HTTP request of one call."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.problem: str = ""
        self.is_unsent = False

    @property
    def is_refused(self) -> bool:
        """Whether the server certainly did nothing."""
        return self.is_unsent or self.status in _REFUSED

    @property
    def reason(self) -> str:
        """What went wrong, for the operator."""
        return self.problem or (f"HTTP status {self.status}" if self.status is not None else "")


current_trace: ContextVar[RequestTrace | None] = ContextVar("current_trace", default=None)
"""Where the request of the current call is noted; the SDK sends it in a copy of the caller's context."""


def make_client(
    headers: Mapping[str, str], *, auth: httpx2.Auth | None, timeout: float, max_message_bytes: int
) -> httpx2.AsyncClient:
    """A client for one connection."""
    return httpx2.AsyncClient(
        headers=dict(headers),
        auth=auth,
        timeout=httpx2.Timeout(timeout, read=None),  # How long an answer may take is for the caller to say.
        transport=_CarefulTransport(httpx2.AsyncHTTPTransport(), max_message_bytes),
    )


class _CarefulTransport(httpx2.AsyncBaseTransport):
    """Passes requests on. A network that fails is an answer like any other here: an exception would end the SDK's
    whole connection, with every other call in it."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, max_message_bytes: int) -> None:
        self._inner = inner
        self._limit = max_message_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        trace = current_trace.get() or RequestTrace()
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            trace.status, trace.is_unsent = None, isinstance(error, _UNSENT)
            trace.problem = f"{type(error).__name__}: {error}"
            return httpx2.Response(503, request=request)
        trace.status, trace.problem, trace.is_unsent = response.status_code, "", False
        if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            return response  # The SDK limits each event.
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _LimitedStream(response.stream, self._limit)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, limit: int) -> None:
        self._inner = inner
        self._left = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._left -= len(chunk)
            if self._left < 0:
                raise httpx2.StreamError("the answer is too long")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
