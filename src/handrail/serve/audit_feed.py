"""The calls of all processes as they end, read from the audit: one reader for all pages that are open."""

import asyncio
import hashlib
import hmac
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Final

from handrail.core.log import log
from handrail.store import SqlStore
from handrail.store.audit_rows import AuditRow

_MAX_SAME_MOMENT: Final = 1_000


def write_cursor(store: SqlStore, row: AuditRow) -> str:
    """The place of a row: a time, and a digest for rows of the same moment."""
    return f"{row.at!r}:{_digest(store, row)}"


async def read_cursor(store: SqlStore, text: str, tenant_id: str | None) -> AuditRow | None:
    """The row at a place, to ask for the page of older ones; None if the text is no place."""
    at, _, digest = text.partition(":")
    try:
        moment = float(at)
    except ValueError:
        return None
    if not 0 <= moment < 1e11:
        return None
    after = math.nextafter(moment, math.inf)
    rows = await store.audit.query(tenant_id=tenant_id, since=moment, until=after, limit=_MAX_SAME_MOMENT)
    for row in rows:
        if _digest(store, row) == digest:
            return row
    return AuditRow(writer="", number=0, at=moment, kind="", session_id="")


def _digest(store: SqlStore, row: AuditRow) -> str:
    message = f"audit row\n{row.writer}\n{row.number}".encode()
    return hmac.new(store.ledger.digest_key, message, hashlib.sha256).hexdigest()[:16]


MAX_STREAMS: Final = 500
MAX_STREAMS_PER_TENANT: Final = 250
_MAX_ROWS: Final = 500
_MAX_WAITING: Final = 200
"""Rows that wait for one page; a page that does not read them misses the oldest."""
_IDLE_SECONDS: Final = 15.0


class AuditFeed:
    """Reads the rows of finished calls that are new, while somebody looks.

    Each look reads the last two intervals again, because rows of other processes arrive late; what was seen before is
    dropped by its writer and number.
    """

    def __init__(self, store: SqlStore, *, interval: float = 1.0) -> None:
        self._store = store
        self._interval = interval
        self._streams: dict[object, tuple[Callable[[AuditRow], bool], asyncio.Queue[AuditRow | None]]] = {}
        self._by_tenant: Counter[str | None] = Counter()
        self._seen: dict[tuple[str, int], float] = {}
        self._task: asyncio.Task[None] | None = None

    def is_full(self, tenant_id: str | None) -> bool:
        """Whether there is no room for another stream of a tenant, or of somebody who sees every tenant."""
        is_own_full = tenant_id is not None and self._by_tenant[tenant_id] >= MAX_STREAMS_PER_TENANT
        return is_own_full or len(self._streams) >= MAX_STREAMS

    async def stream(
        self, wanted: Callable[[AuditRow], bool], *, tenant_id: str | None
    ) -> AsyncGenerator[AuditRow | None]:
        """The rows that are wanted, as they come; None when there was none for a while."""
        token, queue = object(), asyncio.Queue[AuditRow | None](maxsize=_MAX_WAITING)
        self._streams[token] = (wanted, queue)
        self._by_tenant[tenant_id] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read(), name="handrail:audit-feed")
        try:
            while True:
                try:
                    async with asyncio.timeout(_IDLE_SECONDS):
                        yield await queue.get()
                except TimeoutError:
                    yield None
        finally:
            self._streams.pop(token, None)
            self._by_tenant[tenant_id] -= 1
            if not self._by_tenant[tenant_id]:
                del self._by_tenant[tenant_id]

    async def aclose(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        started = time.time()
        while self._streams:
            since = max(time.time() - 2 * self._interval, started - self._interval)
            try:
                rows = await self._store.audit.query(kind="call_finished", since=since, limit=_MAX_ROWS)
            except Exception:  # Such as a row that nobody can read: it is not among the newest for long.
                log.warning("the audit cannot be read; the open pages wait", exc_info=True)
                rows = []
            self._seen = {ref: at for ref, at in self._seen.items() if at >= since}
            for row in rows:
                if (row.writer, row.number) not in self._seen:
                    self._seen[(row.writer, row.number)] = row.at
                    self._publish(row)
            await asyncio.sleep(self._interval)

    def _publish(self, row: AuditRow) -> None:
        for wanted, queue in tuple(self._streams.values()):
            if wanted(row):
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(row)
