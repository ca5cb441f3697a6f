"""Durable calls in SQL: their rows, and the delivery that needs nothing but the database."""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec import structs
from sqlalchemy import Executable, text
from sqlalchemy.exc import IntegrityError

from handrail.authorize.approvals import Approvals
from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.core.values import Decision, ToolCall
from handrail.errors import ConfigError, StoreError
from handrail.execute.delivery import Delivery, Handle
from handrail.execute.ledger import Entry
from handrail.execute.recorded_result import RecordedResult, decode_record, encode_record
from handrail.execute.running import start_task
from handrail.execute.scheduler import CallRef
from handrail.execute.stored_calls import (
    CallNotice,
    NoticeBoard,
    ObservedLease,
    OnNotice,
    WaitForEnd,
    WorkItem,
    WorkState,
    send_item,
)
from handrail.store.database import Database, build_engine
from handrail.store.encryption import Cipher
from handrail.store.ledger_statements import build_unknown
from handrail.store.stored_call_statements import COLUMNS, WorkStatements
from handrail.store.transactions import Transaction

_NO_LIMIT: Final = 2**62
_CHANNEL: Final = "handrail_work"
_NOTICES: Final = "handrail_work_notices"
_MAX_PAYLOAD_BYTES: Final = 7_900
"""Of what Postgres notifies with: it takes less than 8,000."""
_PUBLISH: Final = text(f"SELECT pg_notify('{_NOTICES}', p) FROM unnest(CAST(:payloads AS text[])) AS p")
_AWAY_DELAY: Final = 1.0
"""Seconds until a database that is away is asked again."""


class SqlWork:
    """The durable calls of all processes that share a database."""

    is_immediate: ClassVar[bool] = False

    def __init__(
        self,
        database: Database,
        *,
        cipher: Cipher,
        delivery: Delivery | None,
        run_lasting: Callable[[Executable, Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        self._database = database
        self._cipher = cipher
        self._run_lasting = run_lasting
        self._statements = WorkStatements(is_sqlite=database.is_sqlite)
        self._put_new = self._statements.build_put_new(build_unknown())
        self._taken: dict[CallRef, WorkItem] = {}
        """Rows that were taken in this process, until a worker asks for them."""
        self.signals = WorkSignals(database, cipher)
        self.delivery: Delivery = SqlDelivery() if delivery is None else delivery
        if isinstance(self.delivery, SqlDelivery):
            self.delivery.bind(self)

    @property
    def awaits_plain_futures(self) -> bool:
        """Whether its methods wait for futures only: those of the thread that has the connection to SQLite."""
        return self._database.is_sqlite

    def is_in(self, database: Database) -> bool:
        """Whether these calls are in this database."""
        return self._database is database or self._database.url == database.url

    @property
    def statements(self) -> WorkStatements:
        """For what changes rows in the same transaction as others."""
        return self._statements

    async def aclose(self) -> None:
        """Close the connection that listens."""
        await self.signals.aclose()

    # Running statements.

    def _bind(self, **values: Any) -> dict[str, Any]:
        return {**values, "now": time.time()} if self._database.is_sqlite else values

    async def _change(self, statement: Executable, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run one statement that changes rows and returns them."""
        if not self._database.is_sqlite:
            return await self._database.fetch(statement, values)
        return await self._database.run(lambda transaction: transaction.fetch(statement, values))

    # Storing.

    async def put(self, item: WorkItem, *, max_queued: int | None = None) -> bool:
        """Queue a call; False if its tenant has too many."""
        if await self._put(self._statements.put, item, max_queued):
            return True
        known = await self.get(session_id=item.session_id, call_id=item.call_id)
        return known is not None and known.state in ("queued", "running", "waiting")

    async def put_new(self, item: WorkItem, *, key: str, full_key: str, max_queued: int | None = None) -> bool:
        """Queue a call that was not looked up; False if the ledger, in the same database, may know it or its effect."""
        return await self._put(self._put_new, item, max_queued, new_key=key, new_full_key=full_key)

    async def _put(self, statement: Executable, item: WorkItem, max_queued: int | None, **keys: str) -> bool:
        """Write a row, and hand it to a delivery that is in the same database in the same transaction."""
        max_queued = _NO_LIMIT if max_queued is None else max_queued
        values = self._bind(**self.to_values(item), max_queued=max_queued, **keys)
        send_within = getattr(self.delivery, "send_within", None)

        def put(transaction: Transaction) -> bool:
            is_written = transaction.execute(statement, values) == 1
            if is_written and send_within is not None:
                send_within(transaction, item.id, tenant=item.tenant_id, priority=item.priority)
            return is_written

        if send_within is None:
            is_written = await self._database.write(statement, values) == 1
        else:
            is_written = await self._database.run(put)
        if is_written:
            self.signals.wake_workers()
        return is_written

    async def get(self, *, session_id: str, call_id: str) -> WorkItem | None:
        """Find a call."""
        values = self._bind(of_session=session_id, of_call=call_id)
        for row in await self._database.fetch(self._statements.get, values):
            return self._item(row)
        return None

    async def hold(self, item: WorkItem, *, lease: float) -> None:
        """Store a call whose entry is in another database."""
        await self._database.write(self._statements.build_hold(), self._bind(**self.to_values(item), lease=lease))

    async def take(self, *, session_id: str, call_id: str, owner: str, lease: float) -> WorkItem | None:
        """Take a call, unless the delivery has done so for this owner."""
        taken = self._taken.pop((session_id, call_id), None)
        if taken is not None and taken.owner == owner:
            return taken
        values = self._bind(of_session=session_id, of_call=call_id, of_owner=owner, lease=lease)
        for row in await self._change(self._statements.take_one, values):
            return self._item(row)
        return None

    async def take_many(
        self, handle: Handle, *, max_rows: int, max_running_per_tenant: int | None, last_tenant: str
    ) -> list[WorkItem]:
        """Take calls for a worker, and take over those of owners that are gone; `take` then returns each."""
        definitions = sorted(handle.definitions)
        values: dict[str, Any] = self._bind(
            of_owner=handle.owner, lease=handle.lease, max_rows=max_rows, last_tenant=last_tenant
        )
        if self._database.is_sqlite:
            values["definitions"] = compact_json(definitions)
            if max_running_per_tenant is not None:
                values["slots"] = compact_json(list(range(1, max_running_per_tenant + 1)))
        else:
            values["definitions"] = definitions
            if max_running_per_tenant is not None:
                values["max_running_per_tenant"] = max_running_per_tenant
        statement = self._statements.build_take(is_limited=max_running_per_tenant is not None)
        try:
            rows = await self._change(statement, values)
        except IntegrityError:  # Another worker gave the same slot to another call: look again.
            return []
        items: list[WorkItem] = []
        for row in rows:
            try:
                items.append(self._item(row))
            except (StoreError, msgspec.MsgspecError):
                log.exception("a stored call cannot be read; it is tried again when its lease is over")
        for item in items:
            self._taken[item.ref] = item
        return items

    async def is_due(self) -> bool:
        """Whether there may be something to take, without a lock."""
        return bool(await self._database.fetch(self._statements.is_due, self._bind()))

    async def release(
        self, item: WorkItem, *, state: Literal["queued", "waiting"], delay: float, is_begun: bool = True
    ) -> bool:
        """Give a call back."""
        values = self._of(item, to_state=state, delay=delay, more=0 if is_begun else -1)
        is_released = await self._database.write(self._statements.release, values) == 1
        if is_released and state == "queued" and not delay:
            self.signals.wake_workers()
        return is_released

    async def finish(self, item: WorkItem, recorded: RecordedResult) -> bool:
        """End a call that has no entry in the ledger."""
        values = self._of(item, to_recorded=encode_record(recorded))
        is_finished = await self._database.write(self._statements.finish, values) == 1
        self.signals.wake_waiters(item.ref)
        return is_finished

    async def end(self, *, session_id: str, call_id: str) -> None:
        """End a call that is settled in the ledger."""
        await self._database.write(self._statements.end, self._bind(of_session=session_id, of_call=call_id))
        self.signals.wake_waiters((session_id, call_id))

    def end_within(self, transaction: Transaction, *, session_id: str, call_id: str) -> None:
        """End a call in the transaction that settles it."""
        transaction.execute(self._statements.end, self._bind(of_session=session_id, of_call=call_id))

    async def park(self, item: WorkItem, *, expires_in: float, approvals: Approvals) -> WorkState:
        """Store a call until its approval is decided; `queued` if it is already."""
        values = self._bind(
            **self.to_values(item), of_token=item.approval, of_owner=item.owner or "", expires_in=expires_in
        )
        for (state,) in await self._change(self._statements.park, values):
            if state == "queued":
                self.signals.wake_workers()
            return state
        known = await self.get(session_id=item.session_id, call_id=item.call_id)
        return "done" if known is None else known.state

    async def wake(self, token: str) -> list[WorkItem]:
        """Queue the calls that were parked for an approval."""
        woken = await self._database.run(lambda transaction: self.wake_within(transaction, token))
        self.signals.wake_workers()
        return woken

    def wake_within(self, transaction: Transaction, token: str) -> list[WorkItem]:
        """Queue the calls that were parked for an approval, in the transaction that decides about it."""
        rows = transaction.fetch(self._statements.wake, self._bind(of_approval=token))
        return [self._item(row, is_listed=True) for row in rows]

    async def send_woken(self, items: Sequence[WorkItem]) -> None:
        """Bring calls that were queued to a worker; what cannot be sent now is sent by a worker later."""
        self.signals.wake_workers()
        for item in items:
            await send_item(self.delivery, item)

    async def find(self, *, resend_after: float, limit: int = 100) -> list[WorkItem]:
        """Queue what is due, and find what has to be sent again: nothing, if the database itself delivers."""
        woken = [self._item(row, is_listed=True) for row in await self._wake_due()]
        if woken:
            self.signals.wake_workers()
        if isinstance(self.delivery, SqlDelivery):
            return []
        values = self._bind(resend_after=resend_after, max_rows=limit)
        rows = await self._database.fetch(self._statements.resend, values)
        return [*woken, *(self._item(row, is_listed=True) for row in rows)]

    async def _wake_due(self) -> list[tuple[Any, ...]]:
        return await self._change(self._statements.wake_due, self._bind())

    async def renew(self, refs: Sequence[CallRef], *, owner: str, lease: float) -> None:
        """Move the leases of an owner's calls, in one statement, on the connection that renews its entries."""
        values = self._bind(of_owner=owner, lease=lease, **self._bind_refs(refs))
        await self._run_lasting(self._statements.renew, values)

    async def count_attempts(self, refs: Sequence[CallRef]) -> Mapping[CallRef, int]:
        """How often workers have taken each of these calls, in one query."""
        rows = await self._database.fetch(self._statements.count_attempts, self._bind_refs(refs))
        return {(row[0], row[1]): row[2] for row in rows}

    def _bind_refs(self, refs: Sequence[CallRef]) -> dict[str, Any]:
        if self._database.is_sqlite:
            return {"refs": compact_json([list(ref) for ref in refs])}
        return {"sessions": [ref[0] for ref in refs], "calls": [ref[1] for ref in refs]}

    async def cancel(self, *, session_id: str, call_id: str, recorded: RecordedResult | None) -> bool:
        """Ask to cancel a call."""
        values = self._bind(of_session=session_id, of_call=call_id, to_recorded=encode_record(recorded))
        is_open = await self._database.write(self._statements.cancel, values) == 1
        self.signals.wake_waiters((session_id, call_id))
        return is_open

    async def find_cancelled(self, *, owner: str) -> list[CallRef]:
        """Find the calls of an owner that somebody asked to cancel."""
        return [
            (row[0], row[1]) for row in await self._database.fetch(self._statements.find_cancelled, {"of_owner": owner})
        ]

    async def observe(self, *, owner: str) -> list[ObservedLease]:
        """Look at the leases of other owners' entries."""
        return [
            ObservedLease(*row) for row in await self._database.fetch(self._statements.observe, {"of_owner": owner})
        ]

    async def publish(self, notices: Sequence[CallNotice]) -> None:
        """Tell the processes that follow calls: all of them in Postgres, this one with SQLite."""
        await self.signals.publish(notices)

    async def subscribe(self, receiver: OnNotice) -> None:
        """Hand every notice to an object."""
        await self.signals.subscribe(receiver)

    def watch_end(self, *, session_id: str, call_id: str) -> AbstractAsyncContextManager[WaitForEnd]:
        """Watch for the end of a call."""
        return self.signals.watch_end((session_id, call_id))

    # Rows.

    def _of(self, item: WorkItem, **values: Any) -> dict[str, Any]:
        return self._bind(of_session=item.session_id, of_call=item.call_id, of_owner=item.owner, **values)

    def to_values(self, item: WorkItem) -> dict[str, Any]:
        """The values of a new row; its times are set by the statement."""
        calls = None
        if item.call is not None:
            calls = self._cipher.encrypt_text(msgspec.json.encode([item.call, item.sent_call]).decode())
        values = {
            "session_id": item.session_id,
            "call_id": item.call_id,
            "tool": item.tool,
            "definition": item.definition,
            "tenant_id": item.tenant_id or "",
            "customer_id": item.customer_id,
            "agent_id": item.agent_id,
            "turn": item.turn,
            "wakes": item.wakes,
            "priority": item.priority,
            "calls": calls,
            "decision": None if item.decision is None else msgspec.json.encode(item.decision).decode(),
            "approval": item.approval,
            "repeat": item.repeat,
            "seal": item.seal,
            "state": item.state,
            "owner": item.owner,
            "slot": None,
            "attempts": item.attempts,
            "queued_at": None,
            "due_at": 0.0,
            "ended_at": None,
            "cancelled_at": None,
            "recorded": None,
            "is_heard": item.is_heard,
        }
        return {f"work_{name}": value for name, value in values.items()}

    def _item(self, row: tuple[Any, ...], *, is_listed: bool = False) -> WorkItem:
        """A stored call; in a list it does without its arguments, which may be encrypted."""
        values: dict[str, Any] = dict(zip((*COLUMNS, "read_at"), row, strict=True))
        del values["slot"]
        calls = None if is_listed else self._cipher.decrypt_text(values["calls"])
        del values["calls"]
        call, sent = (None, None) if calls is None else msgspec.json.decode(calls, type=tuple[ToolCall, ToolCall])
        decision = values["decision"]
        values |= {
            "call": call,
            "sent_call": sent,
            "tenant_id": values["tenant_id"] or None,
            "decision": None if decision is None else msgspec.json.decode(decision, type=Decision),
            "recorded": decode_record(values["recorded"]),
            "is_heard": bool(values["is_heard"]),
        }
        return WorkItem(**values)


class SqlDelivery:
    """Delivers from the rows themselves: Postgres tells its workers of new ones, SQLite is asked for them.

    `max_running_per_tenant` limits the calls of a tenant that all workers run together. Tenants take turns.
    """

    def __init__(self, *, max_running_per_tenant: int | None = None) -> None:
        if max_running_per_tenant is not None and max_running_per_tenant < 1:
            raise ConfigError(f"max_running_per_tenant must be at least 1, got {max_running_per_tenant!r}.")
        self._max_running_per_tenant = max_running_per_tenant
        self._last_tenant = ""
        """The tenant whose turn it was last."""
        self._work: SqlWork | None = None

    def bind(self, work: SqlWork) -> None:
        """Deliver the calls of this store."""
        if self._work is not None:
            raise ConfigError("delivery must be a SqlDelivery of its own for each store.")
        self._work = work

    async def send(self, id: str, *, tenant: str | None, priority: int) -> None:
        """A row that is queued is its own delivery: workers were told of it when it was written."""

    async def serve(self, handle: Handle, *, max_running: int, stopping: asyncio.Event) -> None:
        """Take calls and hand them to a worker."""
        assert self._work is not None, "a SqlDelivery serves the store that it was passed to"
        work, running, loop = self._work, set[asyncio.Task[float | None]](), asyncio.get_running_loop()
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            async with work.signals.watch_queue(handle.lease) as wait_for_work:
                is_woken = False
                while not stopping.is_set():
                    running = {task for task in running if not task.done()}
                    free = max_running - len(running)
                    taken = await self._take(work, handle, free, is_woken=is_woken) if free > 0 else []
                    is_woken = False
                    for item in taken:
                        running.add(start_task(loop, handle(item.id), f"handrail:deliver:{item.id}"))
                    if len(taken) < max(free, 1):  # There is no more to take now.
                        is_woken = await wait_for_work({stopped, *running} if free <= 0 else {stopped})
            if running:
                await asyncio.wait(running)
        finally:
            stopped.cancel()

    async def _take(self, work: SqlWork, handle: Handle, free: int, *, is_woken: bool) -> list[WorkItem]:
        try:
            # A look costs less than SQLite's lock; nobody has to look who was told of a call.
            if work.signals.is_polled and not is_woken and not await work.is_due():
                return []
            taken = await work.take_many(
                handle,
                max_rows=free,
                max_running_per_tenant=self._max_running_per_tenant,
                last_tenant=self._last_tenant,
            )
            tenants = [item.tenant_id or "" for item in taken]
            self._last_tenant = max(tenants, key=lambda tenant: (tenant <= self._last_tenant, tenant), default="")
            return taken
        except Exception:
            log.warning("stored calls could not be taken; it is tried again", exc_info=True)
            await asyncio.sleep(_AWAY_DELAY)
            return []


class _Signal:
    """Wakes one who waits, or who waits next: an `asyncio.Event` takes a task and two more passes of the event loop."""

    __slots__ = ("_is_given", "_waiter")

    def __init__(self) -> None:
        self._is_given = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for it."""
        return self._waiter is not None

    def give(self) -> None:
        """Give it, once for as long as nobody has waited."""
        self._is_given = True
        self._end_wait()

    async def wait(self, timeout: float, others: Iterable["asyncio.Future[Any]"] = ()) -> bool:
        """Wait for it, for one of several futures, or for some seconds; whether it was given."""
        if not self._is_given:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout, self._end_wait)
            for other in others:
                other.add_done_callback(self._end_wait)
            try:
                await self._waiter
            finally:
                self._waiter = None
                timer.cancel()
                for other in others:
                    other.remove_done_callback(self._end_wait)
        is_given, self._is_given = self._is_given, False
        return is_given

    def _end_wait(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _EndWatch:
    """Somebody in this process who waits for the end of a call."""

    __slots__ = ("settled", "signal")

    def __init__(self) -> None:
        self.signal = _Signal()
        self.settled: Entry | None = None
        """The entry of the call, if it was settled here: it need not be read."""


class _Settling:
    """A call that is being settled here."""

    __slots__ = ("entry", "is_awaited")

    def __init__(self) -> None:
        self.entry: Entry | None = None
        """As it was committed."""
        self.is_awaited = False
        """Whether somebody here waits for it."""


class WorkSignals:
    """Wakes workers when calls are queued, and callers when they have ended: in this process, and through Postgres."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database = database
        self._cipher = cipher
        self._board = NoticeBoard()
        self.is_polled = database.is_sqlite
        """Whether other processes are noticed only by looking."""
        self._workers: set[_Signal] = set()
        self._waiters: dict[str, set[_EndWatch]] = {}
        self._settling: set[str] = set()
        """Calls that this process settles now, if somebody here waits for them."""
        self._listening: asyncio.Task[None] | None = None

    def wake_workers(self) -> None:
        """Calls were queued."""
        for signal in self._workers:
            signal.give()

    def wake_waiters(self, ref: CallRef) -> None:
        """A call has ended."""
        self._wake_digest(_digest(ref))

    def _wake_digest(self, digest: str, settled: Entry | None = None) -> None:
        for watch in self._waiters.get(digest, ()):
            watch.settled = settled or watch.settled  # Postgres says the same once more.
            watch.signal.give()

    @contextmanager
    def settling(self, ref: CallRef) -> "Generator[_Settling]":
        """Settle a call inside the block, after which callers here are woken, with its entry if it is given.

        What Postgres says of it meanwhile wakes nobody here: they would read what they are about to get.
        """
        digest, settling = _digest(ref), _Settling()
        settling.is_awaited = digest in self._waiters
        if settling.is_awaited:
            self._settling.add(digest)
        try:
            yield settling
        finally:
            self._settling.discard(digest)
            self._wake_digest(digest, settling.entry)

    @asynccontextmanager
    async def watch_queue(
        self, lease: float
    ) -> "AsyncGenerator[Callable[[set[asyncio.Future[Any]]], Awaitable[bool]]]":
        """Wait for calls to take, or for other things, inside the block: True if somebody told of a call."""
        await self._start_listening()
        signal = _Signal()
        self._workers.add(signal)
        longest = min(lease / 6, 1.0)  # Leases end without a word.
        interval = min(0.02 if self.is_polled else longest, longest)

        async def wait(others: "set[asyncio.Future[Any]]") -> bool:
            return await signal.wait(interval, others)

        try:
            yield wait
        finally:
            self._workers.discard(signal)

    @asynccontextmanager
    async def watch_end(self, ref: CallRef) -> AsyncGenerator[WaitForEnd]:
        """Wait for the end of a call inside the block."""
        await self._start_listening()
        watch, digest = _EndWatch(), _digest(ref)
        self._waiters.setdefault(digest, set()).add(watch)
        interval = 0.02 if self.is_polled else 0.5

        async def wait(timeout: float) -> Entry | bool:
            if not await watch.signal.wait(min(timeout, interval)):
                return False
            settled, watch.settled = watch.settled, None
            return settled or True

        try:
            yield wait
        finally:
            self._waiters[digest].discard(watch)
            if not self._waiters[digest]:
                del self._waiters[digest]

    # Notices.

    async def publish(self, notices: Sequence[CallNotice]) -> None:
        """Tell what happens to calls: through Postgres to all processes, else to this one."""
        if self.is_polled:
            for notice in notices:
                self._board.show(notice)
            return
        payloads = [payload for notice in notices if (payload := self._encode(notice)) is not None]
        if payloads:
            await self._database.fetch(_PUBLISH, {"payloads": payloads})

    def _encode(self, notice: CallNotice) -> str | None:
        for shown in (notice, structs.replace(notice, message="")):
            payload = self._cipher.encrypt_text(msgspec.json.encode(shown).decode())
            if payload is not None and len(payload.encode()) <= _MAX_PAYLOAD_BYTES:
                return payload
        return None  # Its ids alone are too long.

    async def subscribe(self, receiver: OnNotice) -> None:
        """Hand every notice to an object, from now on."""
        self._board.add(receiver)
        await self._start_listening()

    def _on_notice(self, connection: object, pid: int, channel: str, payload: str) -> None:
        if not self._board:
            return
        try:
            notice = msgspec.json.decode(self._cipher.decrypt_text(payload) or "", type=CallNotice)
        except (StoreError, msgspec.MsgspecError):
            log.warning("a notice about a stored call cannot be read", exc_info=True)
            return
        self._board.show(notice)

    # Postgres.

    async def _start_listening(self) -> None:
        if self.is_polled:
            return
        loop = asyncio.get_running_loop()
        if self._listening is None or self._listening.done() or self._listening.get_loop() is not loop:
            ready = asyncio.Event()
            self._listening = loop.create_task(self._listen(ready), name="handrail:listen")
            waiting = asyncio.ensure_future(ready.wait())
            await asyncio.wait({waiting}, timeout=_AWAY_DELAY)
            waiting.cancel()

    async def _listen(self, ready: asyncio.Event) -> None:
        """Listen on one connection, and open another one if it was lost: what was missed is found by looking."""
        engine = build_engine(self._database.url, connect_timeout=10.0)  # Without a pool, which would keep a lost one.
        while True:
            try:
                async with engine.connect() as connection:
                    driver: Any = (await connection.get_raw_connection()).driver_connection
                    lost = asyncio.Event()
                    driver.add_termination_listener(_build_setter(lost))
                    await driver.add_listener(_CHANNEL, self._on_notification)
                    await driver.add_listener(_NOTICES, self._on_notice)
                    ready.set()
                    await lost.wait()
            except Exception:
                log.warning("the connection that listens for stored calls was lost", exc_info=True)
            self.wake_workers()
            await asyncio.sleep(_AWAY_DELAY)

    def _on_notification(self, connection: object, pid: int, channel: str, payload: str) -> None:
        if not payload:
            if pid not in self._database.backends:  # Of what this process queues, it tells its workers itself.
                self.wake_workers()
        elif payload not in self._settling:
            self._wake_digest(payload)

    async def aclose(self) -> None:
        """Stop listening."""
        listening, self._listening = self._listening, None
        if listening is not None and not listening.done() and listening.get_loop() is asyncio.get_running_loop():
            listening.cancel()
            await asyncio.wait({listening})


def _build_setter(event: asyncio.Event) -> Callable[[object], None]:
    return lambda _: event.set()


def _digest(ref: CallRef) -> str:
    return hashlib.md5(f"{ref[0]}/{ref[1]}".encode(), usedforsecurity=False).hexdigest()
