"""Conversations in SQL: one row per message, one with everything else, and a lease while one of their turns runs."""

import time
from typing import Any, Final, Literal

from msgspec import Struct
from sqlalchemy import Double, Select, String, bindparam, delete, insert, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from handrail.authorize.approvals import check_limit
from handrail.chat.conversation import Conversation, diff_conversation, restore_conversation
from handrail.chat.session_store import build_conflict_error
from handrail.store.database import Database
from handrail.store.tables import get_clock
from handrail.store.tables import messages as message_table
from handrail.store.tables import sessions as table
from handrail.store.tables import turns as turn_table
from handrail.store.transactions import Transaction


class SavedSession(Struct, frozen=True, kw_only=True):
    """What a list says of a conversation."""

    session_id: str
    tenant_id: str | None
    customer_id: str | None
    saved_at: float
    """When it was changed last."""


class SqlSessionStore:
    """Conversations of all processes that share a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, conversation: Conversation, *, previous: Conversation | None = None) -> None:
        """Write what changed since `previous`; raise `StoreError` unless the revision is the saved one plus 1."""
        session_id, revision = conversation.session_id, conversation.revision
        is_delta = previous is not None and previous.revision == revision - 1
        delta = diff_conversation(conversation, previous if is_delta else None)
        values = {
            "session_id": session_id,
            "tenant_id": conversation.tenant_id,
            "customer_id": conversation.customer_id,
            "revision": revision,
            "saved_at": time.time(),
            "state": delta.state,
        }
        new = [
            {"session_id": session_id, "position": at, "message": one}
            for at, one in delta.messages
            if at >= delta.previous_length
        ]
        replaced = [
            {"of_session": session_id, "of_position": at, "message": one}
            for at, one in delta.messages
            if at < delta.previous_length
        ]

        def write(transaction: Transaction) -> None:
            if revision == 1:
                try:
                    transaction.execute(_INSERT, values)
                except IntegrityError as error:
                    raise build_conflict_error(session_id) from error
            else:
                older = {"of_session": session_id, "of_revision": revision - 1}
                if transaction.execute(_UPDATE, values | older) != 1:
                    raise build_conflict_error(session_id)
                if not is_delta or delta.length < delta.previous_length:
                    first = delta.length if is_delta else 0
                    transaction.execute(_REMOVE_MESSAGES, {"of_session": session_id, "first_position": first})
            if replaced:
                transaction.execute_many(_REPLACE_MESSAGE, replaced)
            if new:
                transaction.execute_many(_INSERT_MESSAGE, new)

        await self._database.run(write)

    async def load(self, session_id: str) -> Conversation | None:
        """Load the conversation of this id, or return None if there is none."""
        # One statement, so that the state and the messages are of one revision.
        rows = await self._database.fetch(_LOAD, {"of_session": session_id})
        if not rows:
            return None
        messages = [row[1] for row in rows if row[1] is not None]
        return restore_conversation(rows[0][0], messages, source=f"the conversation {session_id!r}")

    async def list_saved(
        self, *, tenant_id: str | None, limit: int = 100, before: tuple[float, str] | None = None
    ) -> list[SavedSession]:
        """The conversations of a tenant, or those without one, the one that was changed last first.

        `before` has `saved_at` and `session_id` of the last one of a page: the page of older ones is returned.
        """
        query = _build_list(has_tenant=tenant_id is not None, is_before=before is not None)
        values: dict[str, Any] = {"of_tenant": tenant_id} if tenant_id is not None else {}
        if before is not None:
            values |= {"before_time": before[0], "before_session": before[1]}
        rows = await self._database.fetch(query.limit(check_limit(limit)), values)
        return [SavedSession(session_id=row[0], tenant_id=row[1], customer_id=row[2], saved_at=row[3]) for row in rows]

    async def remove(self, session_id: str) -> bool:
        """Delete a conversation; return whether there was one."""

        def write(transaction: Transaction) -> bool:
            transaction.execute(_REMOVE_MESSAGES, {"of_session": session_id, "first_position": 0})
            return transaction.execute(_REMOVE, {"of_session": session_id}) == 1

        return await self._database.run(write)


def _build_list(*, has_tenant: bool, is_before: bool) -> Select[Any, Any, Any, Any]:
    tenant = table.c.tenant_id
    found = select(table.c.session_id, tenant, table.c.customer_id, table.c.saved_at)
    found = found.where(tenant == bindparam("of_tenant") if has_tenant else tenant.is_(None))
    if is_before:
        position = tuple_(bindparam("before_time", type_=Double()), bindparam("before_session", type_=String()))
        found = found.where(tuple_(table.c.saved_at, table.c.session_id) < position)
    return found.order_by(table.c.saved_at.desc(), table.c.session_id.desc())


_LOAD = (
    select(table.c.state, message_table.c.message)
    .select_from(table.outerjoin(message_table, message_table.c.session_id == table.c.session_id))
    .where(table.c.session_id == bindparam("of_session"))
    .order_by(message_table.c.position)
)
_INSERT = insert(table)
_INSERT_MESSAGE = insert(message_table)
_REMOVE = delete(table).where(table.c.session_id == bindparam("of_session"))
_REMOVE_MESSAGES = delete(message_table).where(
    message_table.c.session_id == bindparam("of_session"), message_table.c.position >= bindparam("first_position")
)
_UPDATE = update(table).where(
    table.c.session_id == bindparam("of_session"), table.c.revision == bindparam("of_revision")
)
_REPLACE_MESSAGE = update(message_table).where(
    message_table.c.session_id == bindparam("of_session"), message_table.c.position == bindparam("of_position")
)


TurnLease = Literal["held", "interrupted", "lost"]
_CLEAN_EVERY: Final = 100
"""Of how many turns one deletes the leases that dead processes have left."""


class SqlTurns:
    """Leases on conversations, of all processes that share a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        clock = get_clock(is_sqlite=database.is_sqlite)
        until = clock + bindparam("seconds")
        mine = (turn_table.c.session_id == bindparam("of_session")) & (turn_table.c.owner == bindparam("of_owner"))
        new = (sqlite if database.is_sqlite else postgresql).insert(turn_table)
        self._acquire = new.values(
            session_id=bindparam("of_session"), owner=bindparam("of_owner"), lease_until=until, interrupted=False
        ).on_conflict_do_update(
            index_elements=[turn_table.c.session_id],
            set_={"owner": new.excluded.owner, "lease_until": new.excluded.lease_until, "interrupted": False},
            where=turn_table.c.lease_until <= clock,
        )
        self._renew = update(turn_table).where(mine).values(lease_until=until)
        self._interrupted = select(turn_table.c.interrupted).where(mine)
        self._release = delete(turn_table).where(mine)
        held = (turn_table.c.session_id == bindparam("of_session")) & (turn_table.c.lease_until > clock)
        self._interrupt = update(turn_table).where(held).values(interrupted=True)
        self._held = select(turn_table.c.session_id).where(held)
        self._clean = delete(turn_table).where(turn_table.c.lease_until <= clock)
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
