"""The ledger in SQL: claiming a call is one statement, and a unique constraint decides between two processes."""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
from msgspec import structs
from sqlalchemy import Executable, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from handrail.authorize.approvals import Approvals, build_used
from handrail.core.events import CallStarted
from handrail.core.text import compact_json
from handrail.core.values import Approval, Decision
from handrail.errors import CallTakenOverError, StoreError
from handrail.execute.ledger import Entry, Recalled, VerifyAnswer, take_entry, with_answer
from handrail.execute.recorded_result import encode_record, read_record
from handrail.execute.stored_calls import Work, WorkItem
from handrail.store.approvals import SqlApprovals
from handrail.store.audit import Audit
from handrail.store.database import Database, LastingConnection
from handrail.store.encryption import Cipher
from handrail.store.ledger_statements import LedgerStatements, Steps
from handrail.store.stored_calls import SqlWork
from handrail.store.tables import deliveries as table
from handrail.store.tables import settings
from handrail.store.transactions import Transaction

_RENEWAL_TIMEOUT: Final = 10.0
"""Seconds that a statement that renews leases may take."""


class _NotClaimed(Exception):
    """Another process has claimed the call: the transaction is rolled back."""


class SqlLedger:
    """The ledger of all processes that share a database."""

    is_immediate: ClassVar[bool] = False
    needs_lease: ClassVar[bool] = True
    is_written: ClassVar[bool] = True
    can_claim_new: ClassVar[bool] = True

    def __init__(self, database: Database, *, cipher: Cipher, audit: Audit) -> None:
        self._digest_key: bytes | None = None
        self._database = database
        self._cipher = cipher
        self._audit = audit
        self._statements = LedgerStatements(is_sqlite=database.is_sqlite)
        self._renewing: dict[asyncio.AbstractEventLoop, LastingConnection] = {}
        """The connections of threads that renew leases: each executor has one, with an event loop of its own."""

    @property
    def awaits_plain_futures(self) -> bool:
        """Whether its methods wait for futures only: those of the thread that has the connection to SQLite."""
        return self._database.is_sqlite

    @property
    def digest_key(self) -> bytes:
        """The key of all digests; the first process that opens the database creates it."""
        if self._digest_key is None:
            raise StoreError("the store is not open yet: pass store=store, or open it first with `async with`.")
        return self._digest_key

    async def load_digest_key(self) -> None:
        """Load the key of all digests, when the store is opened."""
        query = select(settings.c.value).where(settings.c.name == "digest_key")
        found = await self._database.fetch(query)
        if not found:
            new = (sqlite if self._database.is_sqlite else postgresql).insert(settings).on_conflict_do_nothing()
            await self._database.write(new, {"name": "digest_key", "value": secrets.token_bytes(32)})
            found = await self._database.fetch(query)
        if self._digest_key not in (None, found[0][0]):
            raise StoreError("the database was replaced by another one while the store was closed.")
        self._digest_key = found[0][0]

    async def recall(self, *, session_id: str, call_id: str, key: str = "", full_key: str = "") -> Recalled:
        """Find the entry with this id and the newest entries with these keys, in one round trip."""
        of_call = {"id_session": session_id, "id_call": call_id}
        if not key:
            rows = await self._database.fetch(self._statements.recall_id, of_call)
        else:
            rows = await self._database.fetch(
                self._statements.recall, {**of_call, "of_key": key, "of_full_key": full_key}
            )
        found = {row[0]: self._entry(row) for row in rows}
        return Recalled(found.get("id"), found.get("key"), found.get("full"), found.get("sent"))

    async def claim(
        self,
        entry: Entry,
        *,
        approval: Approval | None,
        approvals: Approvals,
        started: CallStarted | None = None,
        item: WorkItem | None = None,
        work: Work | None = None,
        is_new: bool = False,
    ) -> bool:
        """Write the entry, consume the approval, store the row of a durable call, and audit: all or nothing."""
        values = self._values(entry)
        if not isinstance(approvals, SqlApprovals) or not approvals.is_in(self._database):
            return await self._claim_with_other_approvals(
                entry, values, approval, approvals, started, item, work, is_new=is_new
            )
        stored = None
        if item is not None and work is not None:
            if not isinstance(work, SqlWork) or not work.is_in(self._database):
                return await self._claim_with_other_work(entry, approval, approvals, started, item, work, is_new=is_new)
            stored = {**work.to_values(item), "lease": entry.lease_until - entry.claimed_at}
            if self._database.is_sqlite:
                stored["now"] = entry.claimed_at
        used = None if approval is None else build_used(approval, call_id=entry.call_id)
        # The audit of another store in this database numbers its own rows.
        is_own = approvals.is_of(self._database)
        async with self._audit.reserve(used if is_own else None, started) as reserved:
            # A trigger withdraws what is pending about the call.
            token = None if approval is None else approval.token
            steps = self._statements.build_claim(values, token, reserved.rows, stored, is_new=is_new)
            reserved.is_written = await self._run_steps(steps)
        if reserved.is_written and used is not None:
            approvals.events.emit(used)
        return reserved.is_written

    async def _claim_with_other_work(
        self,
        entry: Entry,
        approval: Approval | None,
        approvals: Approvals,
        started: CallStarted | None,
        item: WorkItem,
        work: Work,
        *,
        is_new: bool,
    ) -> bool:
        """Claim a durable call whose row another store keeps: it is written once the call is claimed."""
        is_claimed = await self.claim(entry, approval=approval, approvals=approvals, started=started, is_new=is_new)
        if is_claimed:
            await work.hold(item, lease=entry.lease_until - entry.claimed_at)
        return is_claimed

    async def queue_new(
        self, item: WorkItem, *, key: str, full_key: str, work: Work, max_queued: int | None = None
    ) -> bool:
        """Queue a durable call that was not looked up, in one statement."""
        if not isinstance(work, SqlWork) or not work.is_in(self._database):
            return False
        return await work.put_new(item, key=key, full_key=full_key, max_queued=max_queued)

    async def _run_steps(self, steps: Steps) -> bool:
        """Run statements in one transaction; False if one of them changes nothing, and then nothing is changed."""
        try:
            if len(steps) == 1:
                return await self._database.write(*steps[0]) > 0
            await self._database.run(lambda transaction: _execute(transaction, steps))
        except IntegrityError as error:
            if getattr(error.orig, "sqlstate", None) != UNIQUE_VIOLATION:
                raise
            return False
        except _NotClaimed:
            return False
        return True

    async def _claim_with_other_approvals(
        self,
        entry: Entry,
        values: Mapping[str, Any],
        approval: Approval | None,
        approvals: Approvals,
        started: CallStarted | None,
        item: WorkItem | None,
        work: Work | None,
        *,
        is_new: bool,
    ) -> bool:
        """Claim with approvals that another store keeps.

        The approval is consumed before the entry is written, so that no other call can claim in between, and restored
        if it is not written. What is pending about a call that needs no approval is withdrawn before, too.
        """
        if (await self.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id is not None:
            return False
        if approval is None:
            await approvals.withdraw_pending(session_id=entry.session_id, call_id=entry.call_id)
        elif not await approvals.consume(approval.token, now=entry.claimed_at, call_id=entry.call_id):
            return False
        is_claimed = False
        try:
            async with self._audit.reserve(started) as reserved:
                steps = self._statements.build_plain_claim(values, reserved.rows, is_new=is_new)
                is_claimed = await self._run_steps(steps)
                reserved.is_written = is_claimed
        finally:
            if approval is not None and not is_claimed:
                await approvals.restore(approval.token)
        if is_claimed and item is not None and work is not None:
            await work.hold(item, lease=entry.lease_until - entry.claimed_at)
        return is_claimed

    async def settle(self, entry: Entry, *, work: Work | None = None) -> None:
        """Write the outcome of a claimed call, and end the row of a durable one. A committed entry is never changed."""
        values: dict[str, Any] = {
            "of_session": entry.session_id,
            "of_call": entry.call_id,
            "of_owner": entry.owner,
            "to_state": entry.state,
            "to_recorded": encode_record(entry.recorded),
            "to_changed": self._cipher.encrypt_text(entry.changed_arguments),
            "is_settled": entry.state in ("committed", "failed"),
        }
        if self._database.is_sqlite:
            values["to_settled_at"] = entry.settled_at
        if work is not None and entry.state != "unknown":
            is_settled = await self._settle_with_row(entry, values, work)
        else:
            is_settled = await self._run_steps([(self._statements.settle, values)])
        if is_settled:
            return
        if entry.state == "failed":  # Nothing happened, so a missing entry is no harm.
            return
        known = (await self.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id
        if known is None:
            raise StoreError(f"the ledger has no entry for this call of {entry.tool!r}.")
        if known.owner != entry.owner:
            raise CallTakenOverError(entry.tool)

    async def _settle_with_row(self, entry: Entry, values: Mapping[str, Any], work: Work) -> bool:
        of_call = {"session_id": entry.session_id, "call_id": entry.call_id}
        if not isinstance(work, SqlWork) or not work.is_in(self._database):
            is_settled = await self._run_steps([(self._statements.settle, values)])
            if is_settled:
                await work.end(**of_call)
            return is_settled

        def settle(transaction: Transaction) -> list[tuple[Any, ...]]:
            settled = transaction.fetch(self._statements.settle_durable, values)
            if settled:
                work.end_within(transaction, **of_call)
            return settled

        with work.signals.settling((entry.session_id, entry.call_id)) as settling:
            if self._database.is_sqlite:
                settled = await self._database.run(settle)
            else:
                settled = await self._database.fetch(self._statements.settle_durable, values)
            for settled_at, erased_at in settled:
                if settling.is_awaited and erased_at is None:  # As `recall` would read it.
                    recorded = read_record(values["to_recorded"], state=entry.state, tool=entry.tool)
                    settling.entry = structs.replace(entry, settled_at=settled_at, recorded=recorded)
        return bool(settled)

    async def take_over(
        self,
        entry: Entry,
        *,
        owner: str,
        lease_until: float,
        run_until: float,
        started: CallStarted | None = None,
    ) -> Entry | None:
        """Make another owner's entry this one's, if it is still as it was read."""
        taken = take_entry(entry, owner=owner, lease_until=lease_until, run_until=run_until)
        values = {
            "of_session": entry.session_id,
            "of_call": entry.call_id,
            "of_owner": entry.owner,
            "of_state": entry.state,
            "of_lease": entry.lease_until,
            "to_owner": owner,
            "to_lease_until": lease_until,
            "to_run_until": run_until,
            "now": time.time(),
        }
        async with self._audit.reserve(started) as reserved:
            reserved.is_written = await self._run_steps(self._statements.build_take_over(values, reserved.rows))
        return taken if reserved.is_written else None

    async def renew(self, entries: Sequence[Entry], *, lease_until: float) -> None:
        """Move the leases of running entries, in one statement, on the connection of the thread that renews them."""
        now = time.time()
        if self._database.is_sqlite:
            keys = [[entry.session_id, entry.call_id, entry.owner] for entry in entries]
            values: dict[str, Any] = {"entries": compact_json(keys), "to_lease_until": lease_until}
        else:
            values = {
                "sessions": [entry.session_id for entry in entries],
                "calls": [entry.call_id for entry in entries],
                "owners": [entry.owner for entry in entries],
                "to_lease_until": lease_until,
                "now": now,
            }
        await self.run_lasting(self._statements.renew, values)

    async def run_lasting(self, statement: Executable, values: Mapping[str, Any]) -> None:
        """Run and commit a statement on the connection of the thread that renews leases."""
        loop = asyncio.get_running_loop()
        connection = self._renewing.get(loop)
        if connection is None:
            connection = self._renewing[loop] = LastingConnection(self._database.url, timeout=_RENEWAL_TIMEOUT)
        await connection.execute(statement, values)

    async def end_renewals(self) -> None:
        """Close the connection of the thread that renews leases."""
        if (connection := self._renewing.pop(asyncio.get_running_loop(), None)) is not None:
            await connection.close()

    async def find_doubts(
        self, *, now: float, session_id: str | None = None, tenant_id: str | None = None, limit: int = 100
    ) -> list[Entry]:
        """Find the entries whose outcome is not known, the oldest first."""
        wanted = self._statements.find_doubts(session_id=session_id, tenant_id=tenant_id, limit=limit)
        found = await self._database.fetch(wanted, {"now": now} if self._database.is_sqlite else None)
        return [self._entry(row, is_listed=True) for row in found]

    async def record_answer(self, entry: Entry, answer: VerifyAnswer) -> None:
        """Write what `verify` said about an entry in doubt, if it is still as it was read."""
        values = {
            "of_session": entry.session_id,
            "of_call": entry.call_id,
            "of_owner": entry.owner,
            "of_state": entry.state,
            "of_lease": entry.lease_until,
            "to_recorded": encode_record(with_answer(entry, answer)),
        }
        await self._database.write(self._statements.record_answer, values)

    async def resolve(self, entry: Entry, *, work: Work | None = None) -> bool:
        """Write what an operator found out; only one of several can, and only while it is in doubt."""
        values: dict[str, Any] = {
            "of_session": entry.session_id,
            "of_call": entry.call_id,
            "of_owner": entry.owner,
            "to_state": entry.state,
            "to_recorded": encode_record(entry.recorded),
            "to_changed": None,
            "is_settled": True,
        }
        if self._database.is_sqlite:
            values |= {"now": entry.settled_at, "to_settled_at": entry.settled_at}
        if await self._database.write(self._statements.resolve, values) != 1:
            return False
        if work is not None:  # If that fails, a worker finds the entry settled, and ends the row.
            await work.end(session_id=entry.session_id, call_id=entry.call_id)
        return True

    def _values(self, entry: Entry) -> dict[str, Any]:
        return {
            "new_session_id": entry.session_id,
            "new_call_id": entry.call_id,
            "new_tool": entry.tool,
            "new_tenant_id": entry.tenant_id,
            "new_identity": entry.identity,
            "new_key": entry.key,
            "new_sent_key": entry.sent_key,
            "new_arguments_digest": entry.arguments_digest,
            "new_arguments": entry.arguments,
            "new_changed_arguments": self._cipher.encrypt_text(entry.changed_arguments),
            "new_customer_id": entry.customer_id,
            "new_agent_id": entry.agent_id,
            "new_number": entry.number,
            "new_repeat": entry.repeat,
            "new_turn": entry.turn,
            "new_owner": entry.owner,
            "new_claimed_at": entry.claimed_at,
            "new_lease_until": entry.lease_until,
            "new_run_until": entry.run_until,
            "new_state": entry.state,
            "new_settled_at": entry.settled_at,
            "new_recorded": encode_record(entry.recorded),
            "new_guideline_ids": list(entry.guideline_ids) or None,
            "new_erased_at": None,
            "new_erased_by": None,
            "new_full_key": entry.full_key,
            "new_full_number": entry.full_number,
            "new_repeat_until": entry.repeat_until,
            "new_decision": None if entry.decision is None else msgspec.json.encode(entry.decision).decode(),
            "new_approval": entry.approval,
        }

    def _entry(self, row: tuple[Any, ...], *, is_listed: bool = False) -> Entry:
        """An entry; in a list it does without the arguments that an approver changed, which may be encrypted."""
        return Entry(
            session_id=row[1],
            call_id=row[2],
            tool=row[3],
            tenant_id=row[4],
            identity=row[5],
            key=row[6],
            sent_key=row[7],
            arguments_digest=row[8],
            arguments=row[9],
            changed_arguments=None if is_listed else self._cipher.decrypt_text(row[10]),
            customer_id=row[11],
            agent_id=row[12],
            number=row[13],
            repeat=row[14],
            turn=row[15],
            owner=row[16],
            claimed_at=row[17],
            lease_until=row[18],
            run_until=row[19],
            state=row[20],
            settled_at=row[21],
            recorded=None if row[24] is not None else read_record(row[22], state=row[20], tool=row[3]),
            guideline_ids=tuple(row[23] or ()),
            erased_at=row[24],
            full_key=row[26],
            full_number=row[27],
            repeat_until=row[28],
            decision=None if row[29] is None else msgspec.json.decode(row[29], type=Decision),
            approval=row[30],
            read_at=row[-1],
        )


def _execute(transaction: Transaction, steps: Steps) -> None:
    """Run statements that change one row each; raise `_NotClaimed` if one does not."""
    for statement, values in steps:
        if transaction.execute(statement, values) != 1:
            raise _NotClaimed


UNIQUE_VIOLATION = "23505"
"""Postgres' SQLSTATE."""


class SqlReceivedResults:
    """Counts the results that a client received for one call of a session, in all processes that share a database.

    A client that lost a response sends the same call again: the count is as it was, so that it is the same call. When
    the result has been delivered, the next equal call is another one.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._insert = (sqlite if database.is_sqlite else postgresql).insert(table).on_conflict_do_nothing()

    async def count(self, session_id: str, call_digest: str) -> int:
        """How often the client received the result of this call."""
        rows = await self._database.fetch(_COUNT, {"of_session": session_id, "of_call": call_digest})
        return rows[0][0] if rows else 0

    async def add(self, session_id: str, call_digest: str, *, after: int) -> None:
        """Count one more, if `after` is the count now: the same result may be received several times."""
        now = time.time()
        if after == 0:
            values = {"session_id": session_id, "call_digest": call_digest, "count": 1, "at": now}
            await self._database.write(self._insert, values)
            return
        await self._database.write(
            _ADD,
            {"of_session": session_id, "of_call": call_digest, "of_count": after, "to_count": after + 1, "now": now},
        )


_ONE = (table.c.session_id == bindparam("of_session")) & (table.c.call_digest == bindparam("of_call"))
_COUNT = select(table.c["count"]).where(_ONE)
_ADD = (
    update(table)
    .where(_ONE, table.c["count"] == bindparam("of_count"))
    .values({"count": bindparam("to_count"), "at": bindparam("now")})
)
