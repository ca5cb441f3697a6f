"""How a phone call is reached: call control over HTTP, and one socket for its events."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

from handrail.core.log import log, quiet_library
from handrail.errors import MissingExtraError
from handrail.phone.signals import TransferAnswer

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.resources.realtime.realtime import AsyncRealtimeConnection


class Acceptance(Struct, frozen=True, kw_only=True):
    """What became of the attempt to take a call."""

    outcome: Literal["accepted", "gone", "failed"]
    """`gone`: the caller has hung up."""
    reason: str = ""


class ConnectionLost(Exception):
    """The socket is closed."""

    def __init__(self, *, is_over: bool) -> None:
        super().__init__("the call is over" if is_over else "the connection was lost")
        self.is_over = is_over
        """Whether the call itself is over, so that there is nothing to reconnect to."""


class Sideband(Protocol):
    """One open socket."""

    async def receive(self) -> str | bytes:
        """The next event as text, or `ConnectionLost`."""
        ...

    async def send(self, event: Mapping[str, Any]) -> None:
        """Send one event, or raise `ConnectionLost`."""
        ...


class Transport(Protocol):
    """Call control of one provider. None of these raises for an answer that the provider gave."""

    async def accept(self, session_id: str, session: Mapping[str, Any]) -> Acceptance:
        """Take the call, with this configuration of the session."""
        ...

    async def reject(self, session_id: str, *, status_code: int) -> None:
        """Turn the call away."""
        ...

    async def transfer(self, session_id: str, target_uri: str) -> TransferAnswer:
        """Transfer the call, with one request and no retry."""
        ...

    async def hang_up(self, session_id: str) -> bool:
        """End the call; whether it is over."""
        ...

    def connect(self, session_id: str) -> AbstractAsyncContextManager[Sideband]:
        """Open the socket of the call, or raise `ConnectionLost`."""
        ...


class RealtimeTransport:
    """OpenAI's Realtime API through its official client."""

    def __init__(self, client: "AsyncOpenAI", *, timeout: float = 10.0, accept_attempts: int = 3) -> None:
        quiet_library("openai", "websockets")  # At DEBUG they log every request and every frame.
        # No retries by the client: a transfer must be requested once.
        self._client = client.with_options(max_retries=0, timeout=timeout)
        self._timeout = timeout
        self._attempts = accept_attempts

    async def accept(self, session_id: str, session: Mapping[str, Any]) -> Acceptance:
        """Take the call. An attempt whose outcome is not known is repeated."""
        from openai import APIConnectionError, APIStatusError  # noqa: PLC0415  # optional

        is_unknown, reason = False, ""
        for _ in range(self._attempts):
            try:
                await self._client.realtime.calls.accept(session_id, type="realtime", **session)
            except APIConnectionError as error:
                is_unknown, reason = True, f"the provider did not answer: {type(error).__name__}"
            except APIStatusError as error:
                if error.status_code < 500:
                    # After an attempt that got no answer, "accepted already" means that it was taken.
                    if is_unknown and error.status_code != 404:
                        return Acceptance(outcome="accepted")
                    reason = f"the provider answered {error.status_code} {error.code or ''}".strip()
                    log.error("the phone call %s was not accepted: %s: %s", session_id, reason, error.message)
                    return Acceptance(outcome="gone" if error.status_code == 404 else "failed", reason=reason)
                is_unknown, reason = True, f"the provider answered {error.status_code}"
            else:
                return Acceptance(outcome="accepted")
        return Acceptance(outcome="failed", reason=reason)

    async def reject(self, session_id: str, *, status_code: int) -> None:
        """Turn the call away; a caller who has hung up meanwhile is turned away already."""
        from openai import OpenAIError  # noqa: PLC0415  # optional

        try:
            await self._client.realtime.calls.reject(session_id, status_code=status_code)
        except OpenAIError as error:
            log.warning("the phone call %s could not be rejected", session_id, exc_info=error)

    async def transfer(self, session_id: str, target_uri: str) -> TransferAnswer:
        """Transfer the call with REFER: what a server error, or no answer, means is not known."""
        from openai import APIStatusError, OpenAIError  # noqa: PLC0415  # optional

        try:
            await self._client.realtime.calls.refer(session_id, target_uri=target_uri)
        except APIStatusError as error:
            log.error("the transfer of the phone call %s was answered %s", session_id, error.status_code)
            # 6xx is an answer of whoever was called: they declined.
            return "unknown" if 500 <= error.status_code < 600 else "failed"
        except OpenAIError as error:
            log.error("the transfer of the phone call %s got no answer", session_id, exc_info=error)
            return "unknown"
        return "transferred"

    async def hang_up(self, session_id: str) -> bool:
        """End the call; one that is unknown is over."""
        from openai import APIStatusError, OpenAIError  # noqa: PLC0415  # optional

        try:
            await self._client.realtime.calls.hangup(session_id)
        except APIStatusError as error:
            return error.status_code == 404
        except OpenAIError as error:
            log.error("the phone call %s could not be ended", session_id, exc_info=error)
            return False
        return True

    @asynccontextmanager
    async def connect(self, session_id: str) -> AsyncGenerator[Sideband]:
        """Open the sideband. Reconnecting is the session's business: it has to find out what it missed."""
        try:
            from websockets.exceptions import InvalidStatus, WebSocketException  # noqa: PLC0415  # optional
        except ImportError as error:
            raise MissingExtraError("websockets", extra="openai") from error

        manager = self._client.realtime.connect(call_id=session_id)
        try:
            async with asyncio.timeout(self._timeout):
                connection = await manager.enter()
        except InvalidStatus as error:
            raise ConnectionLost(is_over=error.response.status_code == 404) from error
        except (WebSocketException, OSError, TimeoutError) as error:
            raise ConnectionLost(is_over=False) from error
        try:
            yield _RealtimeSideband(connection)
        finally:
            await connection.close()


class _RealtimeSideband:
    """One socket of the official client."""

    def __init__(self, connection: "AsyncRealtimeConnection") -> None:
        self._connection = connection

    async def receive(self) -> bytes:
        from websockets.exceptions import ConnectionClosed  # noqa: PLC0415  # optional

        try:
            return await self._connection.recv_bytes()
        except ConnectionClosed as error:
            raise ConnectionLost(is_over=error.rcvd is not None and error.rcvd.code == 1000) from error

    async def send(self, event: Mapping[str, Any]) -> None:
        from websockets.exceptions import ConnectionClosed  # noqa: PLC0415  # optional

        try:
            await self._connection.send_raw(json.dumps(event))
        except ConnectionClosed as error:
            raise ConnectionLost(is_over=error.rcvd is not None and error.rcvd.code == 1000) from error
