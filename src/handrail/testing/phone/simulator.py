"""The simulator: a local server, the calls that it plays, and the webhooks that announce them."""

import asyncio
import base64
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Self, TypeAlias, cast
from urllib.parse import urlsplit

from .engine import SimulatedCall
from .event_loop_call import LiveCall
from .report import CallReport
from .responses import ScriptedModel
from .script import Script
from .server import PhoneServer
from .webhooks import HeaderPairs, WebhookDelivery, build_deliveries

WebhookHandler: TypeAlias = Callable[[HeaderPairs, bytes], Awaitable[Any] | Any]
WebhookTarget: TypeAlias = str | WebhookHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRecord:
    """A webhook that was delivered, and what it was answered."""

    call_id: str
    type: str
    status: int | None
    """None: there was no answer."""


class PhoneSimulator:
    """A strict local stand-in for OpenAI's Realtime API over SIP, for the official SDK.

    Use it as `async with PhoneSimulator() as simulator:` and give `AsyncOpenAI` its `url` and `webhook_secret`.
    """

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, webhook_secret: str | None = None, api_key: str | None = None
    ) -> None:
        self.webhook_secret = webhook_secret or f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
        self.webhooks: list[WebhookRecord] = []
        self._host = host
        self._port = port
        self._server = PhoneServer(self._find, api_key)
        self._calls: dict[str, LiveCall] = {}
        self._number = 0
        self._is_running = False

    @property
    def url(self) -> str:
        """What the official client takes as its `base_url`."""
        if not self._is_running:
            raise RuntimeError("The simulator is not running: use it as `async with PhoneSimulator() as simulator:`.")
        return f"http://{self._host}:{self._port}/v1"

    async def __aenter__(self) -> Self:
        self._port = await self._server.start(self._host, self._port)
        self._is_running = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_running = False
        for live in self._calls.values():
            live.close()
        await self._server.stop()

    def add_call(
        self, script: Script | Mapping[str, Any] | None = None, *, model: ScriptedModel | None = None
    ) -> SimulatedCall:
        """Let a call ring without announcing it."""
        script = script if isinstance(script, Script) else Script.parse(script or {})
        self._number += 1
        call_id = script.call.id or f"rtc_{self._number}"
        if call_id in self._calls:
            raise ValueError(
                f"There is already a call {call_id!r}; leave `call.id` out of a script that is played more than once."
            )
        live = LiveCall(SimulatedCall(script, call_id=call_id, model=model))
        self._calls[call_id] = live
        return live.call

    async def ring(
        self,
        script: Script | Mapping[str, Any] | None = None,
        webhook: WebhookTarget | None = None,
        *,
        model: ScriptedModel | None = None,
    ) -> SimulatedCall:
        """Let a call ring, and deliver its webhooks to a URL or to a function that takes headers and body."""
        call = self.add_call(script, model=model)
        if webhook is not None:
            await self._announce(call, webhook)
        return call

    async def play(
        self,
        script: Script | Mapping[str, Any] | None = None,
        webhook: WebhookTarget | None = None,
        *,
        model: ScriptedModel | None = None,
        timeout: float = 4000.0,
    ) -> CallReport:
        """Let a call ring, wait until it ended, and report on it."""
        call = await self.ring(script, webhook, model=model)
        return await self.wait(call.id, timeout=timeout)

    async def ring_many(
        self, scripts: Iterable[Script | Mapping[str, Any]], webhook: WebhookTarget, *, seed: int = 0
    ) -> list[SimulatedCall]:
        """Let several calls ring, and deliver their webhooks in an order that the seed decides."""
        calls = [self.add_call(script) for script in scripts]
        deliveries = [(call, delivery) for call in calls for delivery in self._deliveries(call)]
        Random(seed).shuffle(deliveries)
        for call, delivery in deliveries:
            await self._send(call, delivery, webhook)
        return calls

    async def wait(self, call_id: str, *, timeout: float = 4000.0) -> CallReport:
        """Wait until a call ended, and report on it."""
        live = self._calls[call_id]
        async with asyncio.timeout(timeout):
            await live.ended.wait()
        return live.call.report()

    def report(self, call_id: str) -> CallReport:
        """CallReport on a call as it is now."""
        return self._calls[call_id].report()

    def live(self, call_id: str) -> LiveCall:
        """A call that can be talked to without a socket, for a transport in memory."""
        return self._calls[call_id]

    def forget(self, call_id: str) -> None:
        """Drop what is kept about a call, which then answers as an unknown one does."""
        self._calls.pop(call_id).close()
        self.webhooks = [record for record in self.webhooks if record.call_id != call_id]

    def _find(self, call_id: str) -> LiveCall | None:
        return self._calls.get(call_id)

    async def _announce(self, call: SimulatedCall, webhook: WebhookTarget) -> None:
        for index, delivery in enumerate(self._deliveries(call)):
            if index:
                await asyncio.sleep(call.script.webhook.gap)
            await self._send(call, delivery, webhook)

    def _deliveries(self, call: SimulatedCall) -> list[WebhookDelivery]:
        # The signature is checked against the real clock of the machine, whatever time the calls are played in.
        now = int(time.time())
        return build_deliveries(call.script, call_id=call.id, secret=self.webhook_secret, timestamp=now)

    async def _send(self, call: SimulatedCall, delivery: WebhookDelivery, webhook: WebhookTarget) -> None:
        status = await _deliver(delivery, webhook)
        self.webhooks.append(WebhookRecord(call_id=call.id, type=delivery.type, status=status))


async def _deliver(delivery: WebhookDelivery, webhook: WebhookTarget) -> int | None:
    if isinstance(webhook, str):
        try:
            return await _post(webhook, delivery)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            return None
    answer = webhook(delivery.headers, delivery.body)
    if inspect.isawaitable(answer):
        answer = await answer
    status = getattr(cast(object, answer), "status", None)
    return status if isinstance(status, int) else None


async def _post(url: str, delivery: WebhookDelivery) -> int:
    """One HTTP request, on its own connection, with headers that may repeat."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError(f"A webhook goes to an http:// URL, got {url!r}.")
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        try:
            target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
            lines = [f"POST {target} HTTP/1.1", f"host: {parts.netloc}", f"content-length: {len(delivery.body)}"]
            lines += [f"{name}: {value}" for name, value in delivery.headers]
            writer.write(("\r\n".join([*lines, "connection: close", "", ""])).encode("latin-1") + delivery.body)
            await writer.drain()
            status_line = await reader.readuntil(b"\r\n")
            return int(status_line.split()[1])
        finally:
            writer.close()
