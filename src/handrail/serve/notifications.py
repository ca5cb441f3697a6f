"""Notifications: a signed JSON POST to whoever has to decide, which never delays a call."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from typing import Any, Final, Self

import httpx2
from msgspec import Struct

from handrail.core.events import ApprovalRequested, CallFinished, Event, LogEvent
from handrail.core.log import log
from handrail.core.secrets import resolve_reference
from handrail.core.text import compact_json
from handrail.errors import StoreError
from handrail.execute.executor import Executor
from handrail.serve.gateway_config import Notification

_MAX_WAITING: Final = 1_000
"""Notifications that wait for one address; when there are more, the newest are dropped, and an event says so."""
_MAX_DOUBTS: Final = 10_000
_MAX_OPEN_DOUBTS: Final = 1_000
"""The oldest doubts that one look finds: a hundred that nobody resolves must not hide the ones after them."""
_DOUBT_SECONDS: Final = 15.0
"""Seconds between two looks for calls whose process died."""
_TIMEOUT: Final = 10.0
_PAUSES: Final = (1.0, 5.0, 30.0)
"""Seconds between the attempts to send one."""
_MAX_ARGUMENT_CHARS: Final = 2_000


class _Notice(Struct, frozen=True, kw_only=True):
    """What somebody has to look at: a question, which has a token, or a call in doubt."""

    tool: str
    tenant_id: str | None
    session_id: str
    at: float
    token: str = ""
    by: str = "operator"
    call_id: str = ""

    def is_wanted(self, wanted: Notification) -> bool:
        kind = "approval_requested" if self.token else "doubt"
        return kind in wanted.on and wanted.tenant in (None, self.tenant_id) and wanted.whose in (None, self.by)


class _Target(Struct, frozen=True, kw_only=True):
    """One entry, with what waits for its address: one that does not answer keeps no other waiting."""

    wanted: Notification
    url: str
    secret: bytes | None
    queue: asyncio.Queue[_Notice]


class Notifier:
    """A listener that sends what waits for a person to the addresses of a gateway."""

    def __init__(
        self,
        notifications: Sequence[Notification],
        *,
        url: str,
        pauses: Sequence[float] = _PAUSES,
        doubt_interval: float = _DOUBT_SECONDS,
    ) -> None:
        self._targets = [
            _Target(
                wanted=each, url=each.read_url(), secret=_read_secret(each), queue=asyncio.Queue(maxsize=_MAX_WAITING)
            )
            for each in notifications
        ]
        self._url = url.rstrip("/")
        self._pauses = tuple(pauses)
        self._interval = doubt_interval
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._executor: Executor | None = None
        self._doubts: dict[tuple[str, str], None] = {}
        """The calls in doubt that were sent, the oldest first."""

    def follow(self, executor: Executor) -> None:
        """The executor whose approvals are looked up, and which hears of failures."""
        self._executor = executor

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._tasks = [asyncio.create_task(self._send_all(target), name="handrail:notify") for target in self._targets]
        if any("doubt" in target.wanted.on for target in self._targets):
            self._tasks.append(asyncio.create_task(self._find_doubts(), name="handrail:notify-doubts"))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __call__(self, event: Event) -> None:
        """Queue what has to be sent about an event."""
        if self._loop is None or self._loop.is_closed():
            return
        if isinstance(event, ApprovalRequested):
            notice = _Notice(
                tool=event.tool_name,
                tenant_id=event.tenant_id,
                session_id=event.session_id,
                at=event.at,
                token=event.token,
                by=event.by,
            )
            self._loop.call_soon_threadsafe(self._add, notice)  # A handler may emit from a thread.
        elif isinstance(event, CallFinished) and event.result.error and event.result.error.code == "outcome_unknown":
            notice = _Notice(
                tool=event.call.name,
                tenant_id=event.tenant_id,
                session_id=event.session_id,
                at=event.at,
                call_id=event.call.id,
            )
            self._loop.call_soon_threadsafe(self._add, notice)

    async def _find_doubts(self) -> None:
        """Look for calls whose process died: there is no event of those. Their first look reminds of older ones."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                found = [] if self._executor is None else await self._executor.doubts(limit=_MAX_OPEN_DOUBTS)
            except Exception:  # A ledger may be anybody's.
                log.warning("the doubts cannot be read; trying again", exc_info=True)
                continue
            for doubt in found:
                self._add(
                    _Notice(
                        tool=doubt.tool,
                        tenant_id=doubt.tenant_id,
                        session_id=doubt.session_id,
                        at=doubt.claimed_at,
                        call_id=doubt.call_id,
                    )
                )

    def _is_new(self, notice: "_Notice") -> bool:
        """Whether nobody was told yet: a call in doubt may be sent again and again."""
        if not notice.call_id:
            return True
        ref = (notice.session_id, notice.call_id)
        if ref in self._doubts:
            return False
        self._doubts[ref] = None
        if len(self._doubts) > _MAX_DOUBTS:
            del self._doubts[next(iter(self._doubts))]
        return True

    def _add(self, notice: "_Notice") -> None:
        if not self._is_new(notice):
            return
        for target in self._targets:
            if notice.is_wanted(target.wanted):
                try:
                    target.queue.put_nowait(notice)
                except asyncio.QueueFull:
                    self._report(notice, "notification_dropped", f"{_MAX_WAITING} are waiting")

    async def _send_all(self, target: _Target) -> None:
        async with httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=False) as client:
            while True:
                notice = await target.queue.get()
                try:
                    await self._send(client, target, notice)
                except Exception:
                    log.exception("a notification failed")

    async def _send(self, client: httpx2.AsyncClient, target: _Target, notice: "_Notice") -> None:
        problem = ""
        for pause in (*self._pauses, None):
            try:
                body = json.dumps(await self._build_body(target.wanted, notice), ensure_ascii=False)
                content = body.encode("utf-8", "replace")
                headers = {"Content-Type": "application/json", **_sign(content, target.secret)}
                response = await client.post(target.url, content=content, headers=headers)
                if response.status_code < 300:
                    return
                problem = f"status {response.status_code}"
                if response.status_code < 500 and response.status_code not in (408, 429):
                    break
            except (httpx2.HTTPError, OSError, StoreError) as error:  # Without its text: the address may be a secret.
                problem = type(error).__name__
            if pause is not None:
                await asyncio.sleep(pause)
        self._report(notice, "notification_failed", problem)

    async def _build_body(self, wanted: Notification, notice: "_Notice") -> dict[str, Any]:
        tool, token = notice.tool, notice.token
        link = f"{self._url}/decide/{token}" if token else f"{self._url}/doubts"
        waits, unknown = f"{tool} waits for the {notice.by}: {link}", f"Nobody knows whether {tool} took effect: {link}"
        body: dict[str, Any] = {
            "text": waits if token else unknown,
            "event": "approval_requested" if token else "doubt",
            "tool": tool,
            "tenant": notice.tenant_id,
            "session": notice.session_id,
            "link": link,
            "at": notice.at,
        } | ({"token": token} if token else {"call": notice.call_id})
        if wanted.include == "arguments" and token and self._executor is not None:
            approval = await self._executor.approvals.get(token)
            if approval is not None:
                body["arguments"] = compact_json(dict(approval.arguments))[:_MAX_ARGUMENT_CHARS]
        return body

    def _report(self, notice: "_Notice", name: str, problem: str) -> None:
        log.warning("a notification was not sent: %s", problem)
        if self._executor is not None:
            self._executor.emit(
                LogEvent(
                    at=time.time(),
                    session_id=notice.session_id,
                    tenant_id=notice.tenant_id,
                    name=name,
                    severity="warning",
                    fields={"problem": problem},
                )
            )


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
