"""What a webhook request means, decided without I/O: a signature, a clock and a memory in, a call or a status out."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, cast

from msgspec import Struct
from pydantic_core import from_json

from handrail.phone.incoming_call import IncomingCall, read_incoming

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
Verify = Callable[[bytes, dict[str, str]], object]
"""Raises unless the request is signed and recent."""

MAX_BODY = 1_000_000
WINDOW = 3_600.0
"""Seconds in which a webhook that is delivered again is recognised."""
_SIGNED = ("webhook-id", "webhook-timestamp", "webhook-signature")
_INCOMING = "realtime.call.incoming"


class WebhookResponse(Struct, frozen=True, kw_only=True):
    """What to answer the request with."""

    status: int
    body: str = ""


class Webhook(Struct, frozen=True, kw_only=True):
    """A request that was looked at."""

    response: WebhookResponse
    outcome: Literal["incoming", "duplicate", "ignored", "refused"]
    reason: str = ""
    call: IncomingCall | None = None
    ids: tuple[str, ...] = ()
    """What a second delivery of it, or of its call, has in common with it."""


class WebhookClaims(Protocol):
    """Which webhooks some process has taken; `open_store(…).webhooks` is one."""

    async def claim(self, ids: Sequence[str], *, window: float) -> bool:
        """Claim ids that mean the same webhook for a while; False if one of them was claimed before."""
        ...


class Deduplicator:
    """Remembers ids for a while, so that a request that is delivered again is recognised."""

    def __init__(self, *, window: float = WINDOW, max_ids: int = 100_000) -> None:
        self._window = window
        self._max_ids = max_ids
        self._seen: OrderedDict[str, float] = OrderedDict()

    def add(self, id: str, *, now: float) -> bool:
        """Remember an id; whether it is new."""
        while self._seen and (next(iter(self._seen.values())) <= now - self._window or len(self._seen) > self._max_ids):
            self._seen.popitem(last=False)
        if id in self._seen:
            return False
        self._seen[id] = now
        return True

    def discard(self, ids: Iterable[str]) -> None:
        """Forget ids: what they name was not taken."""
        for id in ids:
            self._seen.pop(id, None)


def read_webhook(
    headers: Headers, body: bytes, *, verify: Verify, seen: Deduplicator, now: float, max_body: int = MAX_BODY
) -> Webhook:
    """Look at one request. What is signed and understood is answered 200, also if there is nothing to do."""
    if len(body) > max_body:
        return _refuse(413, "the body is too large")
    pairs = cast(Iterable[tuple[str, str]], headers.items() if isinstance(headers, Mapping) else headers)  # pyright: ignore[reportUnknownMemberType]
    given: dict[str, str] = {}
    for name, value in pairs:
        key = str(name).lower()
        if key in _SIGNED and key in given:
            return _refuse(400, f"the header {key} is there more than once")
        given[key] = str(value)
    for name in _SIGNED:
        if name not in given:
            return _refuse(400, f"the header {name} is missing")
    try:
        verify(body, given)
    except Exception as error:  # noqa: BLE001  # whatever keeps the signature from being checked, it was not checked
        return _refuse(401, f"the signature was not accepted: {type(error).__name__}")
    try:
        event: Any = from_json(body)
    except ValueError:
        return _refuse(400, "the body is not JSON")
    if not isinstance(event, dict):
        return _refuse(400, "the body is not an object")
    fields = cast(dict[str, Any], event)
    kind, data = fields.get("type"), fields.get("data")
    if kind != _INCOMING:
        return Webhook(response=WebhookResponse(status=200), outcome="ignored", reason=f"type {str(kind)[:100]}")
    call = read_incoming(cast(dict[str, Any], data)) if isinstance(data, dict) else None
    if call is None:
        return Webhook(response=WebhookResponse(status=200), outcome="ignored", reason="it names no call")
    ids = f"id:{given['webhook-id']}", f"call:{call.session_id}"
    are_new = [seen.add(id, now=now) for id in ids]
    if not all(are_new):
        return Webhook(response=WebhookResponse(status=200), outcome="duplicate", call=call, ids=ids)
    return Webhook(response=WebhookResponse(status=200), outcome="incoming", call=call, ids=ids)


def _refuse(status: int, reason: str) -> Webhook:
    return Webhook(response=WebhookResponse(status=status, body=reason), outcome="refused", reason=reason)
