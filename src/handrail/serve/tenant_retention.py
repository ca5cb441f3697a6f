"""Deletes what a tenant does not keep any longer, in every replica, in the background."""

import asyncio
import time
from typing import Final

from handrail.core.log import log
from handrail.store import SqlStore
from handrail.store.tenants import SqlTenants
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
        """Delete what is too old now; how many rows. A tenant whose rows cannot be deleted costs no other."""
        now = time.time() if now is None else now
        deleted = 0
        try:
            listed = await self._list_days()
        except Exception:  # Tenants may be kept anywhere: whatever is wrong there now, the next look comes.
            log.exception("what tenants do not keep any longer cannot be deleted now: they cannot be listed")
            return 0
        for tenant_id, days in listed.items():
            try:
                before = now - days * _DAY
                deleted += await self._store.purge(before=before, audit_before=before, tenant_id=tenant_id)
            except Exception:
                log.exception("what the tenant %s does not keep any longer cannot be deleted now", tenant_id)
        return deleted

    async def _list_days(self) -> dict[str, float]:
        if isinstance(self._tenants, SqlTenants):
            return await self._tenants.list_retention_days()
        every = await self._tenants.list()
        return {cfg.tenant_id: cfg.retention_days for cfg in every if cfg.retention_days is not None}
