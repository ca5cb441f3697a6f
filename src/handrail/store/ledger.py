"""The ledger in SQL: claiming a call is one statement, and a unique constraint decides between two processes."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from sqlalchemy import (
    Boolean,
    Executable,
    String,
    Text,
    bindparam,
    case,
    insert,
    literal_column,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from handrail.authorize.approvals import Approvals
from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.core.values import Failure
from handrail.errors import StoreError
from handrail.execute.ledger import Entry, RecordedResult
from handrail.store.approvals import CONSUME, SqlApprovals
from handrail.store.database import Database, build_engine
from handrail.store.encryption import Cipher
from handrail.store.erasure import ERASED_ENTRY
from handrail.store.tables import UNSETTLED, settings
from handrail.store.tables import approvals as approvals_table
from handrail.store.tables import ledger as table


class _NotClaimed(Exception):
    """Rolls a transaction back."""


class SqlLedger:
    """The ledger of all processes that share a database."""

    is_immediate: ClassVar[bool] = False
    needs_lease: ClassVar[bool] = True
    is_written: ClassVar[bool] = True

    def __init__(self, database: Database, *, cipher: Cipher) -> None:
        self._digest_key: bytes | None = None
        self._database = database
        self._cipher = cipher
        self._insert = (sqlite if database.is_sqlite else postgresql).insert(table).on_conflict_do_nothing()

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

    async def recall(self, *, session_id: str, call_id: str, key: str) -> tuple[Entry | None, Entry | None]:
        """Find the entry with this id and the newest entry with this key or sent key, in one round trip."""
        rows = await self._database.fetch(_RECALL, {"id_session": session_id, "id_call": call_id, "of_key": key})
        found = {row[0]: self._entry(row) for row in rows}
        return found.get("id"), found.get("key") or found.get("sent")

    async def claim(self, entry: Entry, *, approval: str | None, approvals: Approvals) -> bool:
        """Write the entry and consume the approval, both or neither."""
        values = self._values(entry)
        if approval is None:
            is_claimed = await self._database.write(self._insert, values) == 1
            if is_claimed and not self._has_in_same_database(approvals):
                await approvals.withdraw_pending(session_id=entry.session_id, call_id=entry.call_id)
            return is_claimed
        if not isinstance(approvals, SqlApprovals) or not self._has_in_same_database(approvals):
            return await self._claim_with_other_approvals(entry, values, approval, approvals)
        consumed = {"of_token": approval, "now": entry.claimed_at}
        if self._database.is_sqlite:
            is_claimed = await self._claim_in_two_steps(values, consumed)
        else:
            is_claimed = await self._claim_in_one_step(values, consumed)
        if is_claimed:
            await approvals.emit_used(approval, call_id=entry.call_id)
        return is_claimed

    def _has_in_same_database(self, approvals: Approvals) -> bool:
        return isinstance(approvals, SqlApprovals) and approvals.is_in(self._database)

    async def _claim_in_one_step(self, values: Mapping[str, Any], consumed: Mapping[str, Any]) -> bool:
        try:
            new = {f"new_{name}": value for name, value in values.items()}
            return await self._database.write(_CLAIM_APPROVED, {**new, **consumed}) == 1
        except IntegrityError as error:
            if getattr(error.orig, "sqlstate", None) != UNIQUE_VIOLATION:
                raise
            return False

    async def _claim_in_two_steps(self, values: Mapping[str, Any], consumed: Mapping[str, Any]) -> bool:
        """Claim in a transaction: SQLite cannot do both in one statement."""
        try:
            async with self._database.transaction() as connection:
                for statement, parameters in ((CONSUME, consumed), (self._insert, values)):
                    if (await connection.execute(statement, parameters)).rowcount != 1:
                        raise _NotClaimed
        except _NotClaimed:
            return False
        return True

    async def _claim_with_other_approvals(
        self, entry: Entry, values: Mapping[str, Any], approval: str, approvals: Approvals
    ) -> bool:
        """Claim with approvals that another store keeps.

        The approval is consumed before the entry is committed, so that no other call can claim in between, and restored
        if the commit fails.
        """
        is_consumed = False
        try:
            async with self._database.transaction() as connection:
                if (await connection.execute(self._insert, values)).rowcount != 1:
                    raise _NotClaimed
                is_consumed = await approvals.consume(approval, now=entry.claimed_at)
                if not is_consumed:
                    raise _NotClaimed
        except _NotClaimed:
            return False
        except BaseException:
            if is_consumed:
                await approvals.restore(approval)
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
        known, _ = await self.recall(session_id=entry.session_id, call_id=entry.call_id, key=entry.key)
        if known is None or known.owner != entry.owner:
            raise StoreError(f"the ledger has no entry for this call of {entry.tool!r}.")

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
            "session_id": entry.session_id,
            "call_id": entry.call_id,
            "tool": entry.tool,
            "tenant_id": entry.tenant_id,
            "identity": entry.identity,
            "key": entry.key,
            "sent_key": entry.sent_key,
            "arguments_digest": entry.arguments_digest,
            "arguments": entry.arguments,
            "changed_arguments": self._cipher.encrypt_text(entry.changed_arguments),
            "customer_id": entry.customer_id,
            "agent_id": entry.agent_id,
            "number": entry.number,
            "repeat": entry.repeat,
            "turn": entry.turn,
            "owner": entry.owner,
            "claimed_at": entry.claimed_at,
            "lease_until": entry.lease_until,
            "run_until": entry.run_until,
            "state": entry.state,
            "settled_at": entry.settled_at,
            "recorded": encode_record(entry.recorded),
            "guideline_ids": list(entry.guideline_ids) or None,
            "erased_at": None,
            "erased_by": None,
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
        )


UNIQUE_VIOLATION = "23505"
"""Postgres' SQLSTATE."""


def _build_recall() -> Executable:
    by_id = select(literal_column("'id'", String).label("found_by"), table).where(
        table.c.session_id == bindparam("id_session"), table.c.call_id == bindparam("id_call")
    )
    newest = (
        select(literal_column("'key'", String).label("found_by"), table)
        .where(table.c.key == bindparam("of_key"))
        .order_by(table.c.number.desc())
        .limit(literal_column("1"))
        .subquery()
    )
    changed = (
        select(literal_column("'sent'", String).label("found_by"), table)
        .where(table.c.sent_key == bindparam("of_key"), table.c.sent_key != table.c.key)
        .order_by(table.c.claimed_at.desc())
        .limit(literal_column("1"))
        .subquery()
    )
    return union_all(by_id, select(newest), select(changed))


def _build_claim() -> Executable:
    """Build one statement that consumes the approval and inserts the entry; Postgres rolls both back if one fails."""
    consumed = CONSUME.returning(approvals_table.c.token).cte("consumed")
    new = select(*(bindparam(f"new_{column.name}", type_=column.type) for column in table.columns)).select_from(
        consumed
    )
    return insert(table).from_select(list(table.columns), new)


_RECALL = _build_recall()
_CLAIM_APPROVED = _build_claim()
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
