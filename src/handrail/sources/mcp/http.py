"""The HTTP client of a connection: its headers, and a limit on what is read."""

from collections.abc import AsyncIterator, Mapping
from typing import Final

import httpx2

from handrail.sources.mcp.trace import RequestTrace, current_trace

_UNSENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.LocalProtocolError,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
)


def make_client(
    url: str, headers: Mapping[str, str], *, auth: httpx2.Auth | None, timeout: float, max_message_bytes: int
) -> httpx2.AsyncClient:
    """A client for one connection."""
    return httpx2.AsyncClient(
        headers=dict(headers),
        auth=auth,
        timeout=httpx2.Timeout(timeout, read=None),  # How long an answer may take is for the caller to say.
        transport=_CarefulTransport(httpx2.AsyncHTTPTransport(), httpx2.URL(url), max_message_bytes),
    )


class _CarefulTransport(httpx2.AsyncBaseTransport):
    """Passes requests on. A network that fails is an answer like any other here: an exception would end the SDK's
    whole connection, with every other call in it."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, endpoint: httpx2.URL, max_message_bytes: int) -> None:
        self._inner = inner
        self._endpoint = endpoint
        self._limit = max_message_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # Only what carries a message counts: a stream that is resumed (GET), or a request for a token, says nothing of
        # whether the call has run.
        is_message = request.method == "POST" and request.url.path == self._endpoint.path
        trace = (current_trace.get() if is_message else None) or RequestTrace()
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            trace.status, trace.problem = None, f"{type(error).__name__}: {error}"
            if isinstance(error, _UNSENT):
                trace.mark_unsent()
            else:
                trace.mark_sent()
            return httpx2.Response(503, request=request)
        trace.mark_sent()
        trace.mark_status(response.status_code)
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
