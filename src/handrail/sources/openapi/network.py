"""HTTP to servers that a document names: bounded, without redirects of its own, and never into a private network."""

import asyncio
import ssl
import zlib
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit
from weakref import WeakKeyDictionary

from msgspec import Struct

from handrail.errors import MissingExtraError
from handrail.sources.addresses import AddressRefusedError, RequestNotSentError, resolve_host

if TYPE_CHECKING:
    import httpcore2

CONNECT_TIMEOUT: Final = 10.0


class ConnectionLostError(Exception):
    """The request was sent, at least in part, and there is no answer."""


class HttpRequest(Struct, frozen=True, kw_only=True):
    """A request, ready to be sent."""

    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes = b""


class HttpResponse(Struct, frozen=True, kw_only=True):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    content: bytes
    is_cut: bool = False
    """Whether there was more than may be read."""


class HttpClient:
    """Sends requests. Its connections are opened when they are needed, one pool for each event loop."""

    def __init__(self, *, allow_private: bool, max_bytes: int) -> None:
        self._allow_private = allow_private
        self._max_bytes = max_bytes
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()

    async def send(self, request: HttpRequest, *, timeout: float) -> HttpResponse:
        """Send a request and read the answer; `RequestNotSentError` or `ConnectionLostError` where there is none."""
        core = _import_httpcore()
        parts = check_url(request.url)
        pool = self._pool(core)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = parts.hostname or ""
        port = parts.port
        headers = {"Host": parts.netloc, "Accept-Encoding": "gzip", "User-Agent": "handrail", **request.headers}
        if request.content or request.method in ("POST", "PUT", "PATCH"):
            headers["Content-Length"] = str(len(request.content))
        sent = core.Request(
            request.method,
            core.URL(scheme=parts.scheme, host=host, port=port, target=target),
            headers=[(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()],
            content=request.content,
            extensions={
                "timeout": {
                    "connect": min(CONNECT_TIMEOUT, timeout),
                    "pool": timeout,
                    "read": timeout,
                    "write": timeout,
                }
            },
        )
        async with pool:
            try:
                response = await pool.connections.handle_async_request(sent)
            except (core.ConnectError, core.ConnectTimeout, core.PoolTimeout, core.UnsupportedProtocol) as error:
                raise RequestNotSentError(f"{host} cannot be reached ({type(error).__name__})") from error
            except core.LocalProtocolError as error:
                raise RequestNotSentError(f"the request is not valid HTTP ({error})") from error
            except (core.NetworkError, core.TimeoutException, core.ProtocolError, core.ProxyError) as error:
                raise ConnectionLostError(f"{host} did not answer ({type(error).__name__})") from error
            try:
                return await self._read(core, response, request.method)
            finally:
                await response.aclose()

    async def _read(self, core: Any, response: "httpcore2.Response", method: str) -> HttpResponse:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        encoding = headers.get("content-encoding", "identity").lower()
        inflate = zlib.decompressobj(47) if encoding in ("gzip", "x-gzip", "deflate") else None
        pieces: list[bytes] = []  # Joined once, so that never more than twice the limit is in memory.
        size, is_cut = 0, False
        try:
            if method != "HEAD":
                async for chunk in response.aiter_stream():
                    room = self._max_bytes - size
                    piece = chunk[: room + 1] if inflate is None else inflate.decompress(chunk, room + 1)
                    is_cut = len(piece) > room
                    pieces.append(piece[:room])
                    size += len(pieces[-1])
                    if is_cut:
                        break
        except (core.NetworkError, core.TimeoutException, core.ProtocolError) as error:
            raise ConnectionLostError(f"the answer broke off after {size} bytes ({type(error).__name__})") from error
        except zlib.error as error:
            raise ConnectionLostError(f"the answer is not {encoding}") from error
        return HttpResponse(status=response.status, headers=headers, content=b"".join(pieces), is_cut=is_cut)

    def _pool(self, core: Any) -> "_Pool":
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            backend = _build_backend(core)(allow_private=self._allow_private)
            pool = self._pools[loop] = _Pool(
                core.AsyncConnectionPool(
                    ssl_context=ssl.create_default_context(), max_connections=100, network_backend=backend
                )
            )
        return pool

    async def aclose(self) -> None:
        """Close the connections of this event loop; a request that is under way still ends, and a new one opens
        them again.
        """
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()


class _Pool:
    """Connections, closed when nobody uses them any more."""

    def __init__(self, connections: "httpcore2.AsyncConnectionPool") -> None:
        self.connections = connections
        self._users = 0
        self._is_closing = False

    async def __aenter__(self) -> None:
        self._users += 1

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if self._is_closing and not self._users:
            await self.connections.aclose()

    async def close(self) -> None:
        self._is_closing = True
        if not self._users:
            await self.connections.aclose()


def check_url(url: str) -> SplitResult:
    """The parts of a URL that may be asked; `AddressRefusedError` for every other."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise AddressRefusedError(f"its URL is not valid: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressRefusedError("only http and https URLs are asked")
    if parts.username is not None or not url.isascii():
        raise AddressRefusedError("a URL with credentials or with characters outside ASCII is not asked")
    return parts


def _import_httpcore() -> Any:
    try:
        import httpcore2  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("httpx2", extra="openapi") from error
    return httpcore2


def _build_backend(core: Any) -> Any:
    """The network backend that connects to the very address that was checked, so that DNS cannot change its mind."""

    class Guarded(core.AsyncNetworkBackend):
        def __init__(self, *, allow_private: bool) -> None:
            self._inner = core.AnyIOBackend()
            self._allow_private = allow_private

        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> Any:
            ends = monotonic() + (timeout or CONNECT_TIMEOUT)
            try:
                async with asyncio.timeout(timeout or CONNECT_TIMEOUT):
                    addresses = await resolve_host(host, port, allow_private=self._allow_private)
            except TimeoutError as error:
                raise core.ConnectTimeout("no address in time") from error
            for address in addresses[:-1]:
                left = max(0.1, (ends - monotonic()) / 2)  # Half of what is left, so that the next one has a chance.
                try:
                    return await self._inner.connect_tcp(address, port, left, local_address, socket_options)
                except (core.ConnectError, core.ConnectTimeout):
                    continue
            left = max(0.1, ends - monotonic())
            return await self._inner.connect_tcp(addresses[-1], port, left, local_address, socket_options)

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    return Guarded
