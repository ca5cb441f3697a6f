"""The ledger in SQL: claiming a call is one statement, and a unique constraint decides between two processes."""

import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import msgspec
from sqlalchemy import (
    CTE,
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    Executable,
    Select,
    String,
    Text,
    and_,
    bindparam,
    case,
    exists,
    insert,
    literal_column,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from handrail.authorize.approvals import Approvals, build_used
from handrail.core.events import CallStarted
from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.core.values import Approval, Failure
from handrail.errors import CallTakenOverError, StoreError
from handrail.execute.ledger import Entry, Recalled, RecordedResult, take_entry
from handrail.store.approvals import CONSUME, SqlApprovals
from handrail.store.audit import Audit
from handrail.store.database import Database, build_engine
from handrail.store.encryption import Cipher
from handrail.store.erasure import ERASED_ENTRY
from handrail.store.tables import UNSETTLED, settings
from handrail.store.tables import approvals as approvals_table
from handrail.store.tables import audit as audit_table
from handrail.store.tables import ledger as table

_Steps = list[tuple[Executable, Mapping[str, Any]]]
"""Statements of one transaction, with their values."""


class _NotClaimed(Exception):
    """Another process has claimed the call: the transaction is rolled back."""


class SqlLedger:
    """The ledger of all processes that share a database."""

    is_immediate: ClassVar[bool] = False
    needs_lease: ClassVar[bool] = True
    is_written: ClassVar[bool] = True

    def __init__(self, database: Database, *, cipher: Cipher, audit: Audit) -> None:
        self._digest_key: bytes | None = None
        self._database = database
        self._cipher = cipher
        self._audit = audit
        new = (sqlite if database.is_sqlite else postgresql).insert(table)
        self._insert = new.from_select(
            list(table.columns), _select_new().where(_is_next_claim())
        ).on_conflict_do_nothing()

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
            rows = await self._database.fetch(_RECALL_ID, of_call)
        else:
            rows = await self._database.fetch(_RECALL, {**of_call, "of_key": key, "of_full_key": full_key})
        found = {row[0]: self._entry(row) for row in rows}
        return Recalled(found.get("id"), found.get("key"), found.get("full"), found.get("sent"))

    async def claim(
        self, entry: Entry, *, approval: Approval | None, approvals: Approvals, started: CallStarted | None = None
    ) -> bool:
        """Write the entry, consume the approval, and audit both: all or nothing."""
        values = self._values(entry)
        if not isinstance(approvals, SqlApprovals) or not approvals.is_in(self._database):
            return await self._claim_with_other_approvals(entry, values, approval, approvals, started)
        used = None if approval is None else build_used(approval, call_id=entry.call_id)
        # The audit of another store in this database numbers its own rows.
        is_own = approvals.is_of(self._database)
        with self._audit.reserve(used if is_own else None, started) as reserved:
            # A trigger withdraws what is pending about the call.
            token = None if approval is None else approval.token
            reserved.is_written = await self._run_steps(self._build_claim(values, token, reserved.rows))
        if reserved.is_written and used is not None:
            approvals.events.emit(used)
        return reserved.is_written

    def _build_claim(self, values: Mapping[str, Any], token: str | None, rows: Sequence[Mapping[str, Any]]) -> _Steps:
        consumed = {} if token is None else {"of_token": token, "now": values["new_claimed_at"]}
        if not self._database.is_sqlite:
            return [(build_claim(is_approved=token is not None, rows=len(rows)), {**values, **consumed, **_bind(rows)})]
        steps: _Steps = [(CONSUME, consumed)] if token is not None else []
        return [*steps, (self._insert, values), *((_INSERT_AUDIT, row) for row in rows)]

    async def _run_steps(self, steps: _Steps) -> bool:
        """Run statements in one transaction; False if one of them changes nothing, and then nothing is changed."""
        try:
            if len(steps) == 1:
                return await self._database.write(*steps[0]) > 0
            async with self._database.transaction() as connection:
                await _execute(connection, steps)
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
    ) -> bool:
        """Claim with approvals that another store keeps.

        The approval is consumed before the entry is committed, so that no other call can claim in between, and restored
        if the commit fails. What is pending about a call that needs no approval is withdrawn before, too.
        """
        is_consumed = False
        try:
            with self._audit.reserve(started) as reserved:
                try:
                    async with self._database.transaction() as connection:
                        audited = ((_INSERT_AUDIT, row) for row in reserved.rows)
                        await _execute(connection, [(self._insert, values), *audited])
                        if approval is None:
                            await approvals.withdraw_pending(session_id=entry.session_id, call_id=entry.call_id)
                        else:
                            is_consumed = await approvals.consume(approval.token, now=entry.claimed_at)
                            if not is_consumed:
                                raise _NotClaimed
                except _NotClaimed:
                    return False
                reserved.is_written = True
        except BaseException:
            if approval is not None and is_consumed:
                await approvals.restore(approval.token)
            raise
        return True

    async def settle(self, entry: Entry) -> None:
        """Write the outcome of a claimed call. A committed entry is never changed."""
        values = {
            "of_session": entry.session_id,
            "of_call": entry.call_id,
            "of_owner": entry.owner,
            "to_state": entry.state,
            "to_settled_at": entry.settled_at,
            "to_recorded": encode_record(entry.recorded),
            "to_changed": self._cipher.encrypt_text(entry.changed_arguments),
            "is_settled": entry.state in ("committed", "failed"),
        }
        if await self._database.write(_SETTLE, values) == 1:
            return
        if entry.state == "failed":  # Nothing happened, so a missing entry is no harm.
            return
        known = (await self.recall(session_id=entry.session_id, call_id=entry.call_id)).by_id
        if known is None:
            raise StoreError(f"the ledger has no entry for this call of {entry.tool!r}.")
        if known.owner != entry.owner:
            raise CallTakenOverError(entry.tool)

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
            "to_repeat_until": taken.repeat_until,
        }
        with self._audit.reserve(started) as reserved:
            reserved.is_written = await self._run_steps(self._build_take_over(values, reserved.rows))
        return taken if reserved.is_written else None

    def _build_take_over(self, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> _Steps:
        if self._database.is_sqlite or not rows:
            return [(_TAKE_OVER, values), *((_INSERT_AUDIT, row) for row in rows)]
        taken = _TAKE_OVER.returning(table.c.call_id).cte("taken")
        return [(_build_audited(taken, len(rows)), {**values, **_bind(rows)})]

    async def renew(self, entries: Sequence[Entry], *, lease_until: float) -> None:
        """Move the leases of running entries, on a connection of its own."""
        own = build_engine(self._database.url, connect_timeout=10.0, statement_timeout=10.0)
        try:
            values = [
                {
                    "of_session": entry.session_id,
                    "of_call": entry.call_id,
                    "of_owner": entry.owner,
                    "to_lease_until": lease_until,
                }
                for entry in entries
            ]
            async with own.connect() as connection:
                await connection.execute(_RENEW, values)
        finally:
            await own.dispose()

    async def find_doubts(self, *, now: float, session_id: str | None = None, limit: int = 100) -> list[Entry]:
        """Find the entries whose outcome is not known, the oldest first."""
        is_unknown = (table.c.state == "unknown") | (table.c.lease_until <= now)
        wanted = select(literal_column("'id'", String), table).where(UNSETTLED, is_unknown).order_by(table.c.claimed_at)
        if session_id is not None:
            wanted = wanted.where(table.c.session_id == session_id)
        return [self._entry(row, is_listed=True) for row in await self._database.fetch(wanted.limit(limit))]

    async def resolve(self, entry: Entry) -> bool:
        """Write what an operator found out; only one of several can, and only while it is in doubt."""
        values = {
            "of_session": entry.session_id,
            "of_call": entry.call_id,
            "of_owner": entry.owner,
            "now": entry.settled_at,
            "to_state": entry.state,
            "to_settled_at": entry.settled_at,
            "to_recorded": encode_record(entry.recorded),
            "to_changed": None,
            "is_settled": True,
        }
        return await self._database.write(_RESOLVE, values) == 1

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
            recorded=None if row[24] is not None else _read_record(row[22], state=row[20], tool=row[3]),
            guideline_ids=tuple(row[23] or ()),
            erased_at=row[24],
            full_key=row[26],
            full_number=row[27],
            repeat_until=row[28],
        )


async def _execute(connection: AsyncConnection, steps: _Steps) -> None:
    """Run statements that change one row each; raise `_NotClaimed` if one does not."""
    for statement, values in steps:
        if (await connection.execute(statement, values)).rowcount != 1:
            raise _NotClaimed


UNIQUE_VIOLATION = "23505"
"""Postgres' SQLSTATE."""


_RECALL_ID = select(literal_column("'id'", String).label("found_by"), table).where(
    table.c.session_id == bindparam("id_session"), table.c.call_id == bindparam("id_call")
)


def _build_recall() -> Executable:
    key, full_key = bindparam("of_key", type_=String), bindparam("of_full_key", type_=String)
    by_key = (
        _find_newest("key", table.c.number, table.c.key == key),
        _find_newest("full", table.c.full_number, table.c.full_key == full_key),
        _find_newest("sent", table.c.claimed_at, table.c.sent_key == key, table.c.sent_key != table.c.key),
    )
    return union_all(_RECALL_ID, *by_key)


def _find_newest(found_by: str, order: Column[Any], *conditions: ColumnElement[bool]) -> Select[Any]:
    found = select(literal_column(f"'{found_by}'", String).label("found_by"), table).where(*conditions)
    return select(found.order_by(order.desc()).limit(literal_column("1")).subquery())


def _is_next_claim() -> ColumnElement[bool]:
    """Whether the entries with the numbers before are still there: otherwise a number would be given twice."""
    before = table.alias("before")
    checks = (
        or_(
            _new(number) == literal_column("0"),
            exists().where(before.c[key] == _new(key), before.c[number] == _new(number) - literal_column("1")),
        )
        for key, number in (("key", "number"), ("full_key", "full_number"))
    )
    return and_(*checks)


@cache
def build_claim(*, is_approved: bool, rows: int) -> Executable:
    """Build one statement for Postgres that consumes the approval, inserts the entry, and audits it.

    Postgres rolls all back if one fails.
    """
    new = postgresql.insert(table)
    if is_approved:
        # The consumption is in force even if nothing is inserted, so that it has the condition; and an entry that
        # exists is an error, which undoes it.
        consumed = CONSUME.where(_is_next_claim()).returning(approvals_table.c.token).cte("consumed")
        claim = new.from_select(list(table.columns), _select_new().select_from(consumed))
    else:
        claim = new.from_select(list(table.columns), _select_new().where(_is_next_claim())).on_conflict_do_nothing()
    return _build_audited(claim.returning(table.c.call_id).cte("claimed"), rows) if rows else claim


def _build_audited(changed: CTE, rows: int) -> Executable:
    """Build a statement that inserts rows into the audit if another one in it changed a row of the ledger."""
    selected = [
        select(
            *(bindparam(f"row_{number}_{column.name}", type_=column.type) for column in audit_table.columns)
        ).select_from(changed)
        for number in range(rows)
    ]
    return insert(audit_table).from_select(list(audit_table.columns), union_all(*selected))


def _bind(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {f"row_{number}_{name}": value for number, row in enumerate(rows) for name, value in row.items()}


def _select_new() -> Select[Any]:
    return select(*(_new(column.name) for column in table.columns))


def _new(name: str) -> BindParameter[Any]:
    return bindparam(f"new_{name}", type_=table.c[name].type)


_RECALL = _build_recall()
_INSERT_AUDIT = insert(audit_table)
_IS_ERASED = table.c.erased_at.is_not(None) & bindparam("is_settled", type_=Boolean)
_OUTCOME: Mapping[str, Any] = {
    "state": bindparam("to_state"),
    "settled_at": bindparam("to_settled_at"),
    "recorded": bindparam("to_recorded", type_=Text),
    "changed_arguments": bindparam("to_changed", type_=Text),
}
_SETTLED = _OUTCOME | {
    name: case((_IS_ERASED, value), else_=_OUTCOME.get(name, table.c[name])) for name, value in ERASED_ENTRY.items()
}
"""The outcome of a call; one whose customer was erased while it ran or was in doubt loses its values now."""
_SETTLE = (
    update(table)
    .where(
        table.c.session_id == bindparam("of_session"),
        table.c.call_id == bindparam("of_call"),
        table.c.owner == bindparam("of_owner"),
        table.c.state != literal_column("'committed'"),
    )
    .values(_SETTLED)
)


_TAKE_OVER = (
    update(table)
    .where(
        table.c.session_id == bindparam("of_session"),
        table.c.call_id == bindparam("of_call"),
        table.c.owner == bindparam("of_owner"),
        table.c.state == bindparam("of_state"),
        table.c.lease_until == bindparam("of_lease"),
        UNSETTLED,
    )
    .values(
        owner=bindparam("to_owner"),
        state=literal_column("'running'"),
        lease_until=bindparam("to_lease_until"),
        run_until=bindparam("to_run_until"),
        repeat_until=bindparam("to_repeat_until"),
        settled_at=None,
        recorded=None,
    )
)
_RENEW = (
    update(table)
    .where(
        table.c.session_id == bindparam("of_session"),
        table.c.call_id == bindparam("of_call"),
        table.c.owner == bindparam("of_owner"),
        table.c.state == literal_column("'running'"),
    )
    .values(lease_until=bindparam("to_lease_until"))
)
_RESOLVE = (
    update(table)
    .where(
        table.c.session_id == bindparam("of_session"),
        table.c.call_id == bindparam("of_call"),
        table.c.owner == bindparam("of_owner"),
        (table.c.state == literal_column("'unknown'"))
        | ((table.c.state == literal_column("'running'")) & (table.c.lease_until <= bindparam("now"))),
    )
    .values(_SETTLED)
)


_ENCODING_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)


def encode_record(recorded: RecordedResult | None) -> str | None:
    """Encode a recorded result as JSON. It never fails: metadata that is not JSON is left out."""
    if recorded is None:
        return None
    try:
        return msgspec.json.encode(recorded).decode()
    except _ENCODING_ERRORS:
        return compact_json(
            {
                "text": recorded.text,
                "is_json": recorded.is_json,
                "failure": recorded.failure and msgspec.to_builtins(recorded.failure),
                "control": recorded.control and msgspec.to_builtins(recorded.control),
                "metadata": _drop_unencodable(recorded.metadata),
                "media": msgspec.to_builtins(recorded.media),
                "notice": recorded.notice,
            }
        )


def decode_record(text: str | None) -> RecordedResult | None:
    """Decode a recorded result."""
    return None if text is None else msgspec.json.decode(text, type=RecordedResult)


def _read_record(text: str | None, *, state: str, tool: str) -> RecordedResult | None:
    """The recorded result; one that cannot be read does not hide what became of its call."""
    try:
        return decode_record(text)
    except msgspec.DecodeError:
        log.exception("the recorded result of %s cannot be read", tool)
    if state == "failed":
        return RecordedResult(failure=Failure(message=f"`{tool}` failed, and its recorded result cannot be read."))
    return RecordedResult(text=f"`{tool}` took effect, and its recorded result cannot be read.")


def _drop_unencodable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    encodable: dict[str, Any] = {}
    for name, value in metadata.items():
        try:
            encodable[name] = msgspec.json.decode(compact_json(value))
        except _ENCODING_ERRORS:
            continue
    return encodable
