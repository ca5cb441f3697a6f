"""Conversations in SQL: saved by one process, gone on with by another, never by two at once."""

import time

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from handrail.chat.conversation import Conversation, decode_conversation, encode_conversation
from handrail.chat.session_store import build_conflict_error
from handrail.store.database import Database
from handrail.store.tables import sessions as table


class SqlSessionStore:
    """Conversations of all processes that share a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, conversation: Conversation) -> None:
        """Keep a conversation; `StoreError` unless its revision is the next one after the one that is kept."""
        values = {
            "session_id": conversation.session_id,
            "tenant_id": conversation.tenant_id,
            "revision": conversation.revision,
            "saved_at": time.time(),
            "conversation": encode_conversation(conversation),
        }
        if conversation.revision == 1:
            try:
                await self._database.write(insert(table), values)
            except IntegrityError as error:
                raise build_conflict_error(conversation.session_id) from error
            return
        older = {"of_session": conversation.session_id, "of_revision": conversation.revision - 1}
        if await self._database.write(_REPLACE, values | older) != 1:
            raise build_conflict_error(conversation.session_id)

    async def load(self, session_id: str) -> Conversation | None:
        """The conversation of this id, if there is one."""
        for row in await self._database.fetch(_FIND, {"of_session": session_id}):
            return decode_conversation(row[0], source=f"The conversation {session_id!r}")
        return None

    async def remove(self, session_id: str) -> bool:
        """Forget a conversation; whether there was one."""
        return await self._database.write(_REMOVE, {"of_session": session_id}) == 1


_FIND = select(table.c.conversation).where(table.c.session_id == bindparam("of_session"))
_REMOVE = delete(table).where(table.c.session_id == bindparam("of_session"))
_REPLACE = update(table).where(
    table.c.session_id == bindparam("of_session"), table.c.revision == bindparam("of_revision")
)
