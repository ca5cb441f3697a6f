"""The webhooks of one gateway: each is claimed once, and every delivery of it is answered as that claim was decided."""

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct, structs

from handrail.core.log import log
from handrail.phone.webhook import (
    WINDOW,
    Deduplicator,
    Headers,
    Verify,
    Webhook,
    WebhookClaims,
    WebhookResponse,
    read_webhook,
)

_CLAIM_TIMEOUT = 5.0
"""Seconds that the store has to say whether a webhook was taken."""
_ANSWER_TIMEOUT = 6.0
"""Seconds after which a request is answered although the store has not even given up."""
_UNDECIDED = WebhookResponse(status=503, body="the store cannot be reached")


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
        except Exception as error:  # noqa: BLE001  # whatever keeps the store from answering, the call was not taken
            self._seen.discard(ids)
            log.error("the webhook of the phone call cannot be claimed: %s", error)
            decided = _refuse(webhook)
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
        return _refuse(webhook) if decided is None or decided.outcome == "refused" else webhook

    async def drain(self) -> None:
        """Wait until every claim under way is decided."""
        tasks = {claim.task for claim in self._undecided.values()}
        if tasks:
            await asyncio.wait(tasks, timeout=_ANSWER_TIMEOUT)


async def _wait(claim: _Claim) -> Webhook | None:
    """What was decided; None if that takes too long."""
    await asyncio.wait({claim.task}, timeout=_ANSWER_TIMEOUT)
    return claim.task.result() if claim.task.done() else None


def _refuse(webhook: Webhook) -> Webhook:
    return structs.replace(webhook, response=_UNDECIDED, outcome="refused", reason=_UNDECIDED.body)
