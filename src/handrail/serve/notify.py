"""Notifications: a signed JSON POST to whoever has to decide, which never delays a call."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from typing import Any, Final, Self

import httpx2

from handrail.core.events import ApprovalRequested, CallFinished, Event, LogEvent
from handrail.core.log import log
from handrail.core.secrets import resolve_reference
from handrail.core.text import compact_json
from handrail.execute.executor import Executor
from handrail.serve.config import Notification

_MAX_WAITING: Final = 1_000
"""Notifications that wait; when there are more, the newest are dropped, and an event says so."""
_MAX_DOUBTS: Final = 10_000
_TIMEOUT: Final = 10.0
_PAUSES: Final = (1.0, 5.0, 30.0)
"""Seconds between the attempts to send one."""
_MAX_ARGUMENT_CHARS: Final = 2_000


class Notifier:
    """A listener that sends what waits for a person to the addresses of a gateway."""

    def __init__(self, notifications: Sequence[Notification], *, url: str, pauses: Sequence[float] = _PAUSES) -> None:
        self._targets = [(each, each.read_url(), _read_secret(each)) for each in notifications]
        self._url = url.rstrip("/")
        self._pauses = tuple(pauses)
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue(maxsize=_MAX_WAITING)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._executor: Executor | None = None
        self._doubts: dict[tuple[str, str], None] = {}
        """The calls in doubt that were sent, the oldest first."""

    def follow(self, executor: Executor) -> None:
        """The executor whose approvals are looked up, and which hears of failures."""
        self._executor = executor

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._targets:
            self._task = asyncio.create_task(self._send_all(), name="handrail:notify")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def __call__(self, event: Event) -> None:
        """Queue what has to be sent about an event."""
        if self._loop is None or self._loop.is_closed():
            return
        if isinstance(event, CallFinished) and not self._is_new_doubt(event):
            return
        for number, (wanted, _, _) in enumerate(self._targets):
            if _is_wanted(wanted, event):
                self._loop.call_soon_threadsafe(self._add, number, event)  # A handler may emit from a thread.

    def _is_new_doubt(self, event: CallFinished) -> bool:
        """Whether nobody knows what a call did, and nobody was told so yet: it may be sent again and again."""
        if event.result.error is None or event.result.error.code != "outcome_unknown":
            return False
        ref = (event.session_id, event.call.id)
        if ref in self._doubts:
            return False
        self._doubts[ref] = None
        if len(self._doubts) > _MAX_DOUBTS:
            del self._doubts[next(iter(self._doubts))]
        return True

    def _add(self, number: int, event: Event) -> None:
        try:
            self._queue.put_nowait((number, event))
        except asyncio.QueueFull:
            self._report(event, "notification_dropped", f"{_MAX_WAITING} are waiting")

    async def _send_all(self) -> None:
        async with httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=False) as client:
            while True:
                number, event = await self._queue.get()
                try:
                    await self._send(client, number, event)
                except Exception:
                    log.exception("a notification failed")

    async def _send(self, client: httpx2.AsyncClient, number: int, event: Event) -> None:
        wanted, url, secret = self._targets[number]
        body = json.dumps(await self._build_body(wanted, event), ensure_ascii=False).encode("utf-8", "replace")
        problem = ""
        for pause in (*self._pauses, None):
            headers = {"Content-Type": "application/json", **_sign(body, secret)}
            try:
                response = await client.post(url, content=body, headers=headers)
                if response.status_code < 300:
                    return
                problem = f"status {response.status_code}"
                if response.status_code < 500 and response.status_code not in (408, 429):
                    break
            except (httpx2.HTTPError, OSError) as error:  # Without its text: the address may be a secret.
                problem = type(error).__name__
            if pause is not None:
                await asyncio.sleep(pause)
        self._report(event, "notification_failed", problem)

    async def _build_body(self, wanted: Notification, event: Event) -> dict[str, Any]:
        link, call, token = f"{self._url}/doubts", "", ""
        if isinstance(event, ApprovalRequested):
            link, tool, token = f"{self._url}/decide/{event.token}", event.tool_name, event.token
            text = f"{tool} waits for the {event.by}: {link}"
        else:
            assert isinstance(event, CallFinished)
            tool, call = event.call.name, event.call.id
            text = f"Nobody knows whether {tool} took effect: {link}"
        body: dict[str, Any] = {
            "text": text,
            "event": "approval_requested" if token else "doubt",
            "tool": tool,
            "tenant": event.tenant_id,
            "session": event.session_id,
            "link": link,
            "at": event.at,
        } | ({"token": token} if token else {"call": call})
        if wanted.include == "arguments" and token and self._executor is not None:
            approval = await self._executor.approvals.get(token)
            if approval is not None:
                body["arguments"] = compact_json(dict(approval.arguments))[:_MAX_ARGUMENT_CHARS]
        return body

    def _report(self, event: Event, name: str, problem: str) -> None:
        log.warning("a notification was not sent: %s", problem)
        if self._executor is not None:
            self._executor.emit(
                LogEvent(
                    at=time.time(),
                    session_id=event.session_id,
                    tenant_id=event.tenant_id,
                    name=name,
                    severity="warning",
                    fields={"problem": problem},
                )
            )


def _is_wanted(wanted: Notification, event: Event) -> bool:
    if wanted.tenant is not None and wanted.tenant != event.tenant_id:
        return False
    if isinstance(event, ApprovalRequested):
        return "approval_requested" in wanted.on and wanted.whose in (None, event.by)
    return isinstance(event, CallFinished) and "doubt" in wanted.on and wanted.whose in (None, "operator")


def _read_secret(notification: Notification) -> bytes | None:
    if notification.secret is None:
        return None
    return resolve_reference(notification.secret, name="notify.secret").encode()


def _sign(body: bytes, secret: bytes | None) -> dict[str, str]:
    """The time and the signature of `time.body`, so that nobody else can send one, and an old one is recognised."""
    if secret is None:
        return {}
    at = str(int(time.time()))
    digest = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Handrail-Signature": f"t={at},v1={digest}"}
