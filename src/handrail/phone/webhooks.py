"""The webhooks of one gateway: which are signed and announce a call, that each is taken once, and how each is answered.

`read_webhook` decides without I/O: a signature, a clock and a memory in, a call or a status out. `WebhookIntake` has a
call claimed by one process, and answers every delivery of it as that claim was decided.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, cast

from msgspec import Struct, structs
from pydantic_core import from_json

from handrail.core.log import log
from handrail.errors import must_propagate
from handrail.phone.call_setup import IncomingCall, read_incoming

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
Verify = Callable[[bytes, dict[str, str]], object]
"""Raises unless the request is signed and recent."""

MAX_BODY = 1_000_000
WINDOW = 3_600.0
"""Seconds in which a webhook that is delivered again is recognised."""
_SIGNED = ("webhook-id", "webhook-timestamp", "webhook-signature")
_INCOMING = "realtime.call.incoming"
_CLAIM_TIMEOUT = 5.0
"""Seconds that the store has to say whether a webhook was taken."""
_ANSWER_TIMEOUT = 6.0
"""Seconds after which a request is answered although the store has not even given up."""


class WebhookResponse(Struct, frozen=True, kw_only=True):
    """What to answer the request with."""

    status: int
    body: str = ""


_UNDECIDED = WebhookResponse(status=503, body="the store cannot be reached")


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


class _Claim(Struct, eq=False):
    """A webhook that the store is being asked about."""

    task: asyncio.Task[Webhook]
    ids: set[str]
    """The ids of all of its deliveries."""


class WebhookIntake:
    """Reads webhooks, and has each taken by one process and once."""

    def __init__(self, *, verify: Verify, claims: WebhookClaims | None, report: Callable[[Webhook], None]) -> None:
        """`report` is called once with each delivery; the one that is `incoming` is the call to take."""
        self._verify = verify
        self._claims = claims
        self._report = report
        self._seen = Deduplicator()
        self._undecided: dict[str, _Claim] = {}
        """The claims under way, by the ids of their deliveries."""

    async def handle(self, headers: Headers, body: bytes) -> WebhookResponse:
        """Answer one request; 503 asks for another delivery, because nobody can tell whether the call was taken."""
        webhook = read_webhook(headers, body, verify=self._verify, seen=self._seen, now=time.monotonic())
        if webhook.outcome == "incoming" and self._claims is not None:
            # In a task of its own: a request that is cancelled takes no decision away from the other deliveries.
            ids = set(webhook.ids)
            claim = _Claim(asyncio.create_task(self._decide(webhook, ids, self._claims)), ids)
            self._undecided |= dict.fromkeys(ids, claim)
            decided = await _wait(claim)
            return decided.response if decided is not None else _UNDECIDED
        if webhook.outcome == "duplicate":
            webhook = await self._follow(webhook)
        self._report(webhook)
        return webhook.response

    async def _decide(self, webhook: Webhook, ids: set[str], claims: WebhookClaims) -> Webhook:
        """Ask the store whether another process has taken it. If nobody can tell, it has to be delivered again."""
        try:
            async with asyncio.timeout(_CLAIM_TIMEOUT):
                is_new = await claims.claim(webhook.ids, window=WINDOW)
        except (Exception, asyncio.CancelledError) as error:  # whatever keeps the store from answering
            self._seen.discard(ids)  # The call was not taken.
            if must_propagate(error):
                raise
            log.error("the webhook of the phone call cannot be claimed: %s", error)
            decided = _postpone(webhook)
        else:
            decided = webhook if is_new else structs.replace(webhook, outcome="duplicate")
        finally:
            for id in ids:
                self._undecided.pop(id, None)
        self._report(decided)
        return decided

    async def _follow(self, webhook: Webhook) -> Webhook:
        """A second delivery: while the claim of the first is under way, it is answered as that one is."""
        claim = next((self._undecided[id] for id in webhook.ids if id in self._undecided), None)
        if claim is None:
            return webhook
        for id in webhook.ids:
            if self._undecided.setdefault(id, claim) is claim:
                claim.ids.add(id)  # If the claim fails, this delivery was not taken either.
        decided = await _wait(claim)
        return _postpone(webhook) if decided is None or decided.outcome == "refused" else webhook

    async def drain(self) -> None:
        """Wait until every claim under way is decided."""
        tasks = {claim.task for claim in self._undecided.values()}
        if tasks:
            await asyncio.wait(tasks, timeout=_ANSWER_TIMEOUT)


async def _wait(claim: _Claim) -> Webhook | None:
    """What was decided; None if that takes too long."""
    await asyncio.wait({claim.task}, timeout=_ANSWER_TIMEOUT)
    return claim.task.result() if claim.task.done() else None


def _postpone(webhook: Webhook) -> Webhook:
    return structs.replace(webhook, response=_UNDECIDED, outcome="refused", reason=_UNDECIDED.body)
