"""Which results of calls a client has received, for clients that give their calls no ids of their own."""

import time

from sqlalchemy import bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from handrail.store.database import Database
from handrail.store.tables import deliveries as table


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
