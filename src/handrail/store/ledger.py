"""The ledger in SQL: a claim is one statement, and the database's unique constraints choose who wins it."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Executable, String, bindparam, insert, literal_column, select, union_all, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from handrail.authorize.approvals import Approvals
from handrail.errors import StoreError
from handrail.execute.ledger import Entry
from handrail.store.approvals import USE_UP, SqlApprovals
from handrail.store.database import Database
from handrail.store.recorded import read, written
from handrail.store.tables import approvals as approvals_table
from handrail.store.tables import ledger as table


class _NotClaimed(Exception):
    """Takes a transaction back."""


class SqlLedger:
    """Entries of all processes that share a database."""

    def __init__(self, database: Database, *, digest_key: bytes) -> None:
        self.digest_key = digest_key
        self._database = database
        self._insert = (sqlite if database.is_sqlite else postgresql).insert(table).on_conflict_do_nothing()

    async def recall(self, *, session_id: str, call_id: str, key: str) -> tuple[Entry | None, Entry | None]:
        """The entry with this id, and the newest entry with this key, in one round trip."""
        rows = await self._database.fetch(_RECALL, {"id_session": session_id, "id_call": call_id, "of_key": key})
        found = {row[0]: _entry(row) for row in rows}
        return found.get("id"), found.get("key")

    async def claim(self, entry: Entry, *, approval: str | None, approvals: Approvals) -> bool:
        """Write the entry and use up the approval, both or none."""
        values = _values(entry)
        if approval is None:
            return await self._database.write(self._insert, values) == 1
        if not isinstance(approvals, SqlApprovals) or not approvals.lie_in(self._database):
            return await self._claim_with_others(entry, values, approval, approvals)
        used = {"of_token": approval, "now": entry.claimed_at}
        if self._database.is_sqlite:
            return await self._claim_in_two_steps(values, used)
        try:
            new = {f"new_{name}": value for name, value in values.items()}
            return await self._database.write(_CLAIM_APPROVED, {**new, **used}) == 1
        except IntegrityError as error:
            if getattr(error.orig, "sqlstate", None) != UNIQUE_VIOLATION:
                raise
            return False

    async def _claim_in_two_steps(self, values: Mapping[str, Any], used: Mapping[str, Any]) -> bool:
        """SQLite cannot do both in one statement."""
        try:
            async with self._database.transaction() as connection:
                for step, given in ((USE_UP, used), (self._insert, values)):
                    if (await connection.execute(step, given)).rowcount != 1:
                        raise _NotClaimed
        except _NotClaimed:
            return False
        return True

    async def _claim_with_others(
        self, entry: Entry, values: Mapping[str, Any], approval: str, approvals: Approvals
    ) -> bool:
        """The approvals are kept elsewhere. This one is used up while the entry is written and not yet seen, so that
        nobody can claim in between, and is given back if the entry does not stay."""
        used = False
        try:
            async with self._database.transaction() as connection:
                if (await connection.execute(self._insert, values)).rowcount != 1:
                    raise _NotClaimed
                used = await approvals.consume(approval, now=entry.claimed_at)
                if not used:
                    raise _NotClaimed
        except _NotClaimed:
            return False
        except BaseException:
            if used:
                await approvals.restore(approval)
            raise
        return True

    async def settle(self, entry: Entry) -> None:
        """Write what became of a claimed call. What is committed stays committed, whoever comes late."""
        values = {
            "of_session": entry.session_id,
            "of_call": entry.call_id,
            "of_owner": entry.owner,
            "to_state": entry.state,
            "to_settled_at": entry.settled_at,
            "to_recorded": written(entry.recorded),
        }
        if await self._database.write(_SETTLE, values) == 1:
            return
        if entry.state == "failed":  # Nothing happened, and nothing is written of it: there is nothing to mend.
            return
        known, _ = await self.recall(session_id=entry.session_id, call_id=entry.call_id, key=entry.key)
        if known is None or known.owner != entry.owner:
            raise StoreError(f"The entry of this call of {entry.tool} is not in the ledger.")


UNIQUE_VIOLATION = "23505"
"""As Postgres says it."""


def _recall() -> Executable:
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
    return union_all(by_id, select(newest))


def _claim_approved() -> Executable:
    """Both in one statement, which Postgres takes back as a whole if the entry cannot be written."""
    used = USE_UP.returning(approvals_table.c.token).cte("used")
    given = select(*(bindparam(f"new_{column.name}", type_=column.type) for column in table.columns)).select_from(used)
    return insert(table).from_select(list(table.columns), given)


_RECALL = _recall()
_CLAIM_APPROVED = _claim_approved()
_SETTLE = (
    update(table)
    .where(
        table.c.session_id == bindparam("of_session"),
        table.c.call_id == bindparam("of_call"),
        table.c.owner == bindparam("of_owner"),
        table.c.state != literal_column("'committed'"),
    )
    .values(state=bindparam("to_state"), settled_at=bindparam("to_settled_at"), recorded=bindparam("to_recorded"))
)


def _values(entry: Entry) -> dict[str, Any]:
    return {
        "session_id": entry.session_id,
        "call_id": entry.call_id,
        "tool": entry.tool,
        "tenant_id": entry.tenant_id,
        "identity": entry.identity,
        "key": entry.key,
        "number": entry.number,
        "repeat": entry.repeat,
        "turn": entry.turn,
        "owner": entry.owner,
        "claimed_at": entry.claimed_at,
        "lease_until": entry.lease_until,
        "state": entry.state,
        "settled_at": entry.settled_at,
        "recorded": written(entry.recorded),
    }


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry(
        session_id=row[1],
        call_id=row[2],
        tool=row[3],
        tenant_id=row[4],
        identity=row[5],
        key=row[6],
        number=row[7],
        repeat=row[8],
        turn=row[9],
        owner=row[10],
        claimed_at=row[11],
        lease_until=row[12],
        state=row[13],
        settled_at=row[14],
        recorded=read(row[15]),
    )
