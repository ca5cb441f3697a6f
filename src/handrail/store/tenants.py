"""Tenants in SQL: every revision is kept, and the newest one applies to the next call of every process."""

import hashlib
import json
import time
from collections import OrderedDict
from typing import Final

from msgspec import Struct
from pydantic import ValidationError
from sqlalchemy import bindparam, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from handrail.core.fair_threads import FairThreads
from handrail.core.log import log
from handrail.errors import ConfigError, StoreError
from handrail.store.database import Database
from handrail.store.tables import tenant_numbers
from handrail.store.tables import tenants as table
from handrail.store.transactions import Transaction
from handrail.tenants.config import TenantConfig
from handrail.tenants.phone_addresses import normalise_number

_MAX_DECODED: Final = 1_000


class TenantRevision(Struct, frozen=True, kw_only=True):
    """One saved state of a tenant."""

    revision: int
    version: str
    saved_at: float
    who: str
    removed: bool


class SqlTenants:
    """The tenants of all processes that share a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.problems: dict[str, str] = {}
        """Why a configuration is not valid, by its tenant's id: of those that the last `list` left out."""
        self._decoded: OrderedDict[str, tuple[bytes, TenantConfig]] = OrderedDict()
        """The configurations that are used, by tenant, each with the digest of what is saved."""
        self._threads = FairThreads("tenant-configs")
        """Where they are decoded: a thousand patterns in the rules of one tenant take seconds."""

    async def put(self, cfg: TenantConfig, *, who: str = "", revision: int | None = None) -> int:
        """Save a tenant; its new revision. With `revision`, only if that is the newest one that is saved."""
        written = cfg.model_dump_json(exclude_unset=True).encode()

        def write(transaction: Transaction) -> int:
            saved = _add(transaction, cfg.tenant_id, written, cfg.version, who, revision)
            transaction.execute(_DROP_NUMBERS, {"of_tenant": cfg.tenant_id})
            if cfg.numbers:
                rows = [{"number": number, "tenant_id": cfg.tenant_id} for number in cfg.numbers]
                transaction.execute_many(_INSERT_NUMBERS, rows)
            return saved

        try:
            return await self._database.run(write)
        except IntegrityError as error:
            for number in cfg.numbers:
                other = await self._owner(number)
                if other not in (None, cfg.tenant_id):
                    raise ConfigError(f"numbers: {number} belongs to {other!r} already.") from error
            raise StoreError(f"The tenant {cfg.tenant_id!r} was changed by somebody else meanwhile.") from error

    async def remove(self, tenant_id: str, *, who: str = "") -> bool:
        """Turn a tenant off for good; whether there was one. Its revisions stay."""

        def write(transaction: Transaction) -> None:
            _add(transaction, tenant_id, None, "", who, None)
            transaction.execute(_DROP_NUMBERS, {"of_tenant": tenant_id})

        while True:
            rows = await self._database.fetch(_NEWEST, {"of_tenant": tenant_id})
            if not rows or rows[0][0] is None:  # What is not valid can be turned off, too.
                return False
            try:
                await self._database.run(write)
            except IntegrityError:  # Somebody else has saved a revision meanwhile: that one is turned off.
                continue
            return True

    async def find(self, number: str) -> TenantConfig | None:
        """The tenant that callers of this number mean, also one that is not enabled."""
        try:
            tenant_id = await self._owner(normalise_number(number))
        except ValueError:
            return None
        return None if tenant_id is None else await self.get(tenant_id)

    async def get(self, tenant_id: str, *, revision: int | None = None) -> TenantConfig | None:
        """The tenant of this id: its newest revision, or the one that is asked for."""
        written = await self.read_written(tenant_id, revision=revision)
        return None if written is None else await self._decode(written, tenant_id)

    async def read_written(self, tenant_id: str, *, revision: int | None = None) -> bytes | None:
        """The JSON that was saved of a tenant, also if it is not valid any more."""
        if revision is None:
            rows = await self._database.fetch(_NEWEST, {"of_tenant": tenant_id})
        else:
            rows = await self._database.fetch(_ONE, {"of_tenant": tenant_id, "of_revision": revision})
        return rows[0][0] if rows else None

    async def _decode(self, written: bytes, tenant_id: str) -> TenantConfig:
        digest = hashlib.sha256(written).digest()
        known = self._decoded.get(tenant_id)
        if known is None or known[0] != digest:
            TenantConfig.model_rebuild()  # Here: Pydantic builds a model in one thread at a time only.
            known = digest, await self._threads.run(tenant_id, _decode, written, tenant_id)
        self._decoded[tenant_id] = known
        self._decoded.move_to_end(tenant_id)
        if len(self._decoded) > _MAX_DECODED:
            self._decoded.popitem(last=False)
        return known[1]

    async def is_removed(self, tenant_id: str) -> bool:
        """Whether there was a tenant of this id, and it was turned off for good."""
        rows = await self._database.fetch(_NEWEST, {"of_tenant": tenant_id})
        return bool(rows) and rows[0][0] is None

    async def list(self) -> "list[TenantConfig]":
        """Every tenant, by id. One whose configuration is not valid any more, such as after an upgrade, is left out,
        logged, and one of the `problems`: it keeps no other from being served."""
        found: list[TenantConfig] = []
        problems: dict[str, str] = {}
        for tenant_id, config in await self._database.fetch(_ALL):
            try:
                if config is not None:
                    found.append(await self._decode(config, tenant_id))
            except ConfigError as error:
                log.error("the tenant %s is left out: %s", tenant_id, error)
                problems[tenant_id] = error.message
        self.problems = problems
        return found

    async def list_retention_days(self) -> dict[str, float]:
        """How long the rows of each tenant are kept, by the last configuration that it had: also of one that was
        removed, and of one that is not valid any more."""
        found: dict[str, float] = {}
        for tenant_id, written in await self._database.fetch(_ALL_WRITTEN):
            days = json.loads(written).get("retention_days")
            if isinstance(days, int | float) and days > 0:
                found[tenant_id] = days
        return found

    async def history(self, tenant_id: str) -> "list[TenantRevision]":
        """What was saved of a tenant, the newest first."""
        rows = await self._database.fetch(_HISTORY, {"of_tenant": tenant_id})
        return [
            TenantRevision(revision=number, version=version, saved_at=saved_at, who=who, removed=removed)
            for number, version, saved_at, who, removed in rows
        ]

    async def _owner(self, number: str) -> str | None:
        rows = await self._database.fetch(_OWNER, {"of_number": number})
        return rows[0][0] if rows else None


def _add(
    transaction: Transaction, tenant_id: str, written: bytes | None, version: str, who: str, expected: int | None
) -> int:
    newest = transaction.fetch(_LAST, {"of_tenant": tenant_id})[0][0] or 0
    if expected is not None and newest != expected:
        raise StoreError(f"The tenant {tenant_id!r} is at revision {newest}, not at {expected}.")
    values = {
        "tenant_id": tenant_id,
        "revision": newest + 1,
        "version": version,
        "saved_at": time.time(),
        "who": who,
        "config": written,
    }
    transaction.execute(_INSERT, values)
    return newest + 1


def _decode(written: bytes, tenant_id: str) -> TenantConfig:
    try:
        return TenantConfig.model_validate_json(written)
    except ValidationError as error:
        raise ConfigError(f"The saved configuration of the tenant {tenant_id!r} is not valid: {error}") from error


_of_tenant = table.c.tenant_id == bindparam("of_tenant")
_newest = select(table.c.tenant_id, func.max(table.c.revision).label("revision")).group_by(table.c.tenant_id).subquery()
_newest_written = (
    select(table.c.tenant_id, func.max(table.c.revision).label("revision"))
    .where(table.c.config.is_not(None))
    .group_by(table.c.tenant_id)
    .subquery()
)
_ALL_WRITTEN = select(table.c.tenant_id, table.c.config).join(
    _newest_written,
    (table.c.tenant_id == _newest_written.c.tenant_id) & (table.c.revision == _newest_written.c.revision),
)
_LAST = select(func.max(table.c.revision)).where(_of_tenant)
_NEWEST = select(table.c.config).where(_of_tenant).order_by(table.c.revision.desc()).limit(1)
_ONE = select(table.c.config).where(_of_tenant, table.c.revision == bindparam("of_revision"))
_ALL = (
    select(table.c.tenant_id, table.c.config)
    .join(_newest, (table.c.tenant_id == _newest.c.tenant_id) & (table.c.revision == _newest.c.revision))
    .order_by(table.c.tenant_id)
)
_HISTORY = (
    select(table.c.revision, table.c.version, table.c.saved_at, table.c.who, table.c.config.is_(None))
    .where(_of_tenant)
    .order_by(table.c.revision.desc())
)
_OWNER = select(tenant_numbers.c.tenant_id).where(tenant_numbers.c.number == bindparam("of_number"))
_INSERT = insert(table)
_INSERT_NUMBERS = insert(tenant_numbers)
_DROP_NUMBERS = delete(tenant_numbers).where(tenant_numbers.c.tenant_id == bindparam("of_tenant"))
