"""The simulator: a local server, the calls that it plays, and the webhooks that announce them, signed or wrong."""

import asyncio
import base64
import hashlib
import hmac
import inspect
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Self, TypeAlias, cast
from urllib.parse import urlsplit

from .api_refusals import Refused
from .call_control import ControlResponse
from .engine import SimulatedCall
from .report import CallReport
from .responses import ScriptedModel
from .script import Script, Verb
from .server import PhoneServer
from .state import Frame


class LiveCall:
    """A call on the clock of the event loop: what the server does for a socket, without one."""

    def __init__(self, call: SimulatedCall) -> None:
        self.call = call
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._handle: asyncio.TimerHandle | None = None
        self._senders: dict[int, Callable[[Frame], None]] = {}
        self._schedule()

    def request(self, verb: Verb, body: object = None) -> ControlResponse:
        """Do what a request of call control does; its delay is for the caller to wait."""
        self._catch_up()
        response = self.call.request(verb, body)
        self._schedule()
        return response

    def connect(self, send: Callable[[Frame], None]) -> int:
        """Open a sideband whose frames go to `send`; `LookupError` if the call is not open."""
        self._catch_up()
        try:
            number = self.call.connect()
        except Refused as refused:
            raise LookupError(refused.message) from refused
        self._senders[number] = send
        self._schedule()
        return number

    def feed(self, message: str | bytes) -> None:
        """Take a message of the client."""
        self._catch_up()
        self.call.feed(message)
        self._schedule()

    def disconnect(self, sideband: int) -> None:
        """The client closes a sideband."""
        self._senders.pop(sideband, None)
        self.call.disconnect(sideband)

    def report(self) -> CallReport:
        """CallReport on the call as it is now."""
        if not self.call.is_ended:
            self._tick()
        return self.call.report()

    def close(self) -> None:
        """Stop the clock of the call."""
        if self._handle is not None:
            self._handle.cancel()
        self.ended.set()

    def _catch_up(self) -> None:
        # A little more than the difference, which may be rounded to less than what was due.
        self.call.run_until(self._loop.time() - self._started + 1e-9)

    def _tick(self) -> None:
        self._catch_up()
        self._schedule()

    def _schedule(self) -> None:
        """Send what is to go out, and come back when the next thing is due."""
        for frame in self.call.take():
            if (send := self._senders.get(frame.sideband)) is not None:
                send(frame)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self.call.is_ended:
            self.ended.set()
        elif (due := self.call.next_due()) is not None:
            self._handle = self._loop.call_at(self._started + due, self._tick)


HeaderPairs: TypeAlias = Sequence[tuple[str, str]]
WebhookHandler: TypeAlias = Callable[[HeaderPairs, bytes], Awaitable[Any] | Any]
WebhookTarget: TypeAlias = str | WebhookHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery:
    """One webhook request."""

    headers: HeaderPairs
    body: bytes
    type: str


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


def sign_webhook(body: bytes, secret: str, *, webhook_id: str, timestamp: int) -> str:
    """The value of the header `webhook-signature` for a body."""
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def build_deliveries(script: Script, *, call_id: str, secret: str, timestamp: int) -> list[WebhookDelivery]:
    """The webhook requests of a call, in the order in which they are sent."""
    plan = script.webhook
    incoming = _build_delivery(script, secret, timestamp, call_id, "realtime.call.incoming", {"call_id": call_id})
    deliveries = [incoming] * plan.copies
    if plan.live is not None:
        session = {"type": "sip", "session_id": call_id.replace("rtc_", "live_", 1)}
        live = _build_delivery(script, secret, timestamp, f"{call_id}_live", "live.transport.incoming", session)
        deliveries = [live, *deliveries] if plan.live == "before" else [*deliveries, live]
    return deliveries


def _build_delivery(
    script: Script, secret: str, now: int, name: str, kind: str, data: dict[str, Any]
) -> WebhookDelivery:
    plan, call = script.webhook, script.call
    sip = [
        ("From", f"<sip:{call.from_}@carrier.example>"),
        ("To", f"<sip:{call.to}@sip.api.openai.com>"),
        ("Call-ID", f"sip-{name.removesuffix('_live')}@carrier.example"),
        *call.headers,
    ]
    data = {**data, "sip_headers": [{"name": header, "value": value} for header, value in sip]}
    if call.media_security is not None:
        data["sip_media_security"] = call.media_security
    event: dict[str, Any] = {"object": "event", "id": f"evt_{name}", "type": kind, "created_at": now, "data": data}
    if plan.padding:
        event["padding"] = "x" * plan.padding
    body = json.dumps(event, ensure_ascii=False).encode()
    webhook_id, timestamp = f"wh_{name}", now - int(plan.age)
    valid = sign_webhook(body, secret, webhook_id=webhook_id, timestamp=timestamp)
    wrong = sign_webhook(body, "another secret", webhook_id=webhook_id, timestamp=timestamp)
    signature = {"valid": valid, "wrong": wrong, "missing": None, "rotated": f"{wrong} {valid}"}[plan.signature]
    headers = [("content-type", "application/json"), ("webhook-id", webhook_id), ("webhook-timestamp", str(timestamp))]
    if signature is not None:
        headers.append(("webhook-signature", signature))
    if plan.repeat_headers:
        repeated = [(header, "repeated") for header, _ in headers if header.startswith("webhook-")]
        headers = [*repeated, *headers]
    return WebhookDelivery(headers=headers, body=body, type=kind)
