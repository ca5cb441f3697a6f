"""Which webhooks were taken by any process, so that one that is delivered again is recognised."""

import time
from collections.abc import Sequence

from sqlalchemy import bindparam, delete
from sqlalchemy.dialects import postgresql, sqlite

from handrail.store.database import Database, to_storable
from handrail.store.tables import webhooks

_CLEAN_EVERY = 100
"""Of how many claims one deletes those that have expired."""


class SqlWebhookClaims:
    """Webhook ids, each until it expires."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._insert = (sqlite if database.is_sqlite else postgresql).insert(webhooks)
        self._claims = 0

    async def claim(self, ids: Sequence[str], *, window: float) -> bool:
        """Claim ids that mean the same webhook, for `window` seconds; False if one of them was claimed before.

        Of several processes that claim an id at the same time, one gets it.
        """
        now = time.time()
        names = dict.fromkeys(to_storable(id) for id in ids)
        new = self._insert.values([{"id": name, "expires_at": now + window} for name in names])
        claim = new.on_conflict_do_update(
            index_elements=[webhooks.c.id],
            set_={"expires_at": new.excluded.expires_at},
            where=webhooks.c.expires_at <= now,
        )
        claimed = await self._database.write(claim, {})
        if self._claims % _CLEAN_EVERY == 0:
            await self._database.write(_EXPIRED, {"now": now})
        self._claims += 1
        return claimed == len(names)


_EXPIRED = delete(webhooks).where(webhooks.c.expires_at <= bindparam("now"))
