"""Which process runs the turn of a conversation: one at a time, until it ends or its lease does."""

import time
from typing import Any, Final, Literal

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from handrail.store.clock import get_clock
from handrail.store.database import Database
from handrail.store.tables import turns as table
from handrail.store.transactions import Transaction

TurnLease = Literal["held", "interrupted", "lost"]
_CLEAN_EVERY: Final = 100
"""Of how many turns one deletes the leases that dead processes have left."""


class SqlTurns:
    """Leases on conversations, of all processes that share a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        clock = get_clock(is_sqlite=database.is_sqlite)
        until = clock + bindparam("seconds")
        mine = (table.c.session_id == bindparam("of_session")) & (table.c.owner == bindparam("of_owner"))
        new = (sqlite if database.is_sqlite else postgresql).insert(table)
        self._acquire = new.values(
            session_id=bindparam("of_session"), owner=bindparam("of_owner"), lease_until=until, interrupted=False
        ).on_conflict_do_update(
            index_elements=[table.c.session_id],
            set_={"owner": new.excluded.owner, "lease_until": new.excluded.lease_until, "interrupted": False},
            where=table.c.lease_until <= clock,
        )
        self._renew = update(table).where(mine).values(lease_until=until)
        self._interrupted = select(table.c.interrupted).where(mine)
        self._release = delete(table).where(mine)
        held = (table.c.session_id == bindparam("of_session")) & (table.c.lease_until > clock)
        self._interrupt = update(table).where(held).values(interrupted=True)
        self._held = select(table.c.session_id).where(held)
        self._clean = delete(table).where(table.c.lease_until <= clock)
        self._count = 0

    async def acquire(self, session_id: str, *, owner: str, lease: float) -> bool:
        """Take the turn of a conversation for `lease` seconds; False if another one is running."""
        values = self._build_values(session_id, of_owner=owner, seconds=lease)
        if self._count % _CLEAN_EVERY == 0:
            await self._database.write(self._clean, self._build_values())
        self._count += 1
        return await self._database.write(self._acquire, values) == 1

    async def renew(self, session_id: str, *, owner: str, lease: float) -> TurnLease:
        """Keep the turn for `lease` seconds more. It was `lost` if it ended and another process took it."""
        values = self._build_values(session_id, of_owner=owner)

        def write(transaction: Transaction) -> TurnLease:
            if transaction.execute(self._renew, {**values, "seconds": lease}) != 1:
                return "lost"
            rows = transaction.fetch(self._interrupted, {"of_session": session_id, "of_owner": owner})
            return "interrupted" if rows and rows[0][0] else "held"

        return await self._database.run(write)

    async def release(self, session_id: str, *, owner: str) -> None:
        """The turn has ended."""
        await self._database.write(self._release, {"of_session": session_id, "of_owner": owner})

    async def interrupt(self, session_id: str) -> bool:
        """Ask the process that runs the turn to interrupt it; False if no turn is running."""
        return await self._database.write(self._interrupt, self._build_values(session_id)) == 1

    async def is_running(self, session_id: str) -> bool:
        """Whether a turn of the conversation is running anywhere."""
        return bool(await self._database.fetch(self._held, self._build_values(session_id)))

    def _build_values(self, session_id: str | None = None, **values: Any) -> dict[str, Any]:
        if session_id is not None:
            values["of_session"] = session_id
        if self._database.is_sqlite:
            values["now"] = time.time()
        return values
