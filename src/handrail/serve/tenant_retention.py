"""Deletes what a tenant does not keep any longer, in every replica, in the background."""

import asyncio
import time
from typing import Final

from handrail.core.log import log
from handrail.errors import HandrailError
from handrail.store import SqlStore
from handrail.tenants.directory import Tenants

_DAY: Final = 86_400.0


class Retention:
    """Looks at the tenants' `retention_days` from time to time."""

    def __init__(self, store: SqlStore, tenants: Tenants, *, interval: float = 3_600.0) -> None:
        self._store = store
        self._tenants = tenants
        self._interval = interval

    async def run(self) -> None:
        """Delete what is too old, again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.apply()

    async def apply(self, *, now: float | None = None) -> int:
        """Delete what is too old now; how many rows. A tenant that cannot be read costs no other."""
        now = time.time() if now is None else now
        deleted = 0
        try:
            for cfg in await self._tenants.list():
                if cfg.retention_days is not None:
                    before = now - cfg.retention_days * _DAY
                    deleted += await self._store.purge(before=before, audit_before=before, tenant_id=cfg.tenant_id)
        except HandrailError:
            log.exception("what tenants do not keep any longer cannot be deleted now")
        return deleted
