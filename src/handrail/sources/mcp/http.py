"""The HTTP client of a connection: its headers, and a limit on what is read."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import httpx2

from handrail.sources.addresses import RequestNotSentError, resolve_host
from handrail.sources.mcp.request_outcome import RequestTrace, current_trace

_ENCODINGS: Final = ("identity", "gzip", "x-gzip", "deflate")
_ENCODING_HEADERS: Final = ("content-encoding", "content-length")
_PORTS: Final = {"http": 80, "https": 443}
_PIECE: Final = 65_536
"""How many bytes are decompressed at once."""
_UNSENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.LocalProtocolError,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
)


def make_client(
    url: str,
    headers: Mapping[str, str],
    *,
    auth: httpx2.Auth | None,
    timeout: float,
    max_message_bytes: int,
    allow_private: bool = True,
) -> httpx2.AsyncClient:
    """A client for one connection."""
    inner: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport()
    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "gzip, deflate", **headers},
        auth=auth,
        timeout=httpx2.Timeout(timeout, read=None),  # How long an answer may take is for the caller to say.
        transport=_CarefulTransport(
            inner if allow_private else _PublicTransport(inner, timeout), httpx2.URL(url), max_message_bytes
        ),
    )


class _PublicTransport(httpx2.AsyncBaseTransport):
    """Connects to the very address that was checked, so that a name cannot lead into a private network."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, timeout: float) -> None:
        self._inner = inner
        self._timeout = timeout

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        try:
            async with asyncio.timeout(self._timeout):
                found = await resolve_host(url.host, url.port or _PORTS.get(url.scheme, 0), allow_private=False)
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("no address in time", request=request) from error
        except RequestNotSentError as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        for address in found[:-1]:
            try:
                return await self._send(request, address)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue
        return await self._send(request, found[-1])

    async def _send(self, request: httpx2.Request, address: str) -> httpx2.Response:
        # The certificate is that of the name, and so are the headers.
        extensions = {**request.extensions, "sni_hostname": request.url.host}
        url = request.url.copy_with(host=address)
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        sent = httpx2.Request(
            request.method, url, headers=request.headers, stream=request.stream, extensions=extensions
        )
        return await self._inner.handle_async_request(sent)

    async def aclose(self) -> None:
        await self._inner.aclose()


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
                trace.was_held = True
            else:
                trace.was_sent = True
            return httpx2.Response(503, request=request)
        trace.was_sent = True
        trace.status, trace.problem = response.status_code, ""
        trace.was_accepted = trace.was_accepted or response.status_code < 300
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        # Decoded here and not by the client, which would make 2 GB of 400 kB before anybody can count them.
        headers = [pair for pair in response.headers.multi_items() if pair[0].lower() not in _ENCODING_HEADERS]
        limit = None if is_stream else self._limit  # Of a stream, the SDK limits each event.
        stream = _LimitedStream(response.stream, encoding, limit)
        return httpx2.Response(
            response.status_code, headers=headers, stream=stream, extensions=response.extensions, request=request
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _LimitedStream(httpx2.AsyncByteStream):
    """What a server sends, decompressed piece by piece, up to a number of bytes."""

    def __init__(self, inner: httpx2.AsyncByteStream, encoding: str, limit: int | None) -> None:
        self._inner = inner
        self._encoding = encoding
        self._left = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._encoding not in _ENCODINGS:
            raise httpx2.DecodingError(f"the answer is encoded as {self._encoding!r}, which was not asked for")
        inflate = None if self._encoding == "identity" else zlib.decompressobj(47)
        async for chunk in self._inner:
            rest = chunk
            while rest:
                piece, rest = _decompress(inflate, rest)
                if self._left is not None:
                    self._left -= len(piece)
                    if self._left < 0:
                        raise httpx2.StreamError("the answer is too long")
                yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def _decompress(inflate: Any, chunk: bytes) -> tuple[bytes, bytes]:
    """The next piece of a chunk, and the rest of the chunk."""
    if inflate is None:
        return chunk, b""
    try:
        piece = inflate.decompress(chunk, _PIECE)
    except zlib.error as error:
        raise httpx2.DecodingError("the answer is not compressed as it says") from error
    return piece, inflate.unconsumed_tail
