"""Keys of people and clients: made once, stored as a digest, scoped to a role and a tenant, revoked for good."""

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final, Literal, get_args

from msgspec import Struct
from sqlalchemy import bindparam, select, update
from sqlalchemy.sql import insert

from handrail.core.events import Event, LogEvent
from handrail.errors import ConfigError
from handrail.store.database import Database, to_storable
from handrail.store.tables import keys as table

Role = Literal["admin", "operator", "viewer", "caller"]
"""`caller` calls tools; `viewer` sees; `operator` sees and decides; `admin` sees, and manages tenants and keys, and
decides nothing."""
ROLES: Final[tuple[Role, ...]] = get_args(Role)

_PREFIX: Final = "hrk_"
_MAX_CHARS: Final = 200


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key as it is stored: who holds it and what they may do, never the secret."""

    id: str
    role: Role
    tenant_id: str | None
    """The only tenant whose rows the holder sees and whose calls they make; None: every tenant."""
    who: str
    """The holder: what is audited as `who` of their decisions, and as the customer of their calls."""
    created_at: float
    revoked_at: float | None = None


class SqlKeys:
    """The keys of all processes that share a database."""

    def __init__(self, database: Database, *, on_event: Callable[[Event], object]) -> None:
        self._database = database
        self._on_event = on_event

    async def create(self, *, role: Role, who: str, tenant_id: str | None = None) -> tuple[ApiKey, str]:
        """Make a key; returns it with its secret, which cannot be read again."""
        if role not in ROLES:
            raise ConfigError(f"role must be one of {', '.join(ROLES)}, got {role!r}.")
        for name, value in (("who", who), ("tenant_id", tenant_id)):
            if value is not None and not (0 < len(value) <= _MAX_CHARS and value.isprintable()):
                raise ConfigError(f"{name} must be 1 to {_MAX_CHARS} printable characters, got {value!r:.100}.")
        secret = f"{_PREFIX}{secrets.token_urlsafe(32)}"
        key = ApiKey(
            id=secrets.token_hex(6),
            role=role,
            tenant_id=None if tenant_id is None else to_storable(tenant_id),
            who=to_storable(who),
            created_at=time.time(),
        )
        values = {name: getattr(key, name) for name in key.__struct_fields__}
        await self._database.write(insert(table), {**values, "digest": _digest(secret)})
        self._audit("key_created", key)
        return key, secret

    async def find(self, secret: str) -> ApiKey | None:
        """The key with this secret, unless it is revoked."""
        if not secret.startswith(_PREFIX) or len(secret) > _MAX_CHARS:
            return None
        rows = await self._database.fetch(_BY_DIGEST, {"of_digest": _digest(secret)})
        return _build_key(rows[0]) if rows else None

    async def get(self, id: str) -> ApiKey | None:
        """The key with this id, also one that is revoked."""
        rows = await self._database.fetch(_BY_ID, {"of_id": to_storable(id)})
        return _build_key(rows[0]) if rows else None

    async def list(self, *, tenant_id: str | None = None) -> "list[ApiKey]":
        """Every key, the oldest first; with `tenant_id`, those of one tenant."""
        query = select(*_COLUMNS).order_by(table.c.created_at, table.c.id)
        if tenant_id is not None:
            query = query.where(table.c.tenant_id == tenant_id)
        return [_build_key(row) for row in await self._database.fetch(query)]

    async def revoke(self, id: str) -> ApiKey:
        """Revoke a key for good; every process refuses it within a second. Raises `ConfigError` if there is none."""
        changed = await self._database.write(_REVOKE, {"of_id": to_storable(id), "now": time.time()})
        key = await self.get(id)
        if key is None:
            raise ConfigError(f"there is no key {id!r}; `handrail keys list` shows all.")
        if changed:
            self._audit("key_revoked", key)
        return key

    def _audit(self, name: str, key: ApiKey) -> None:
        fields = {"id": key.id, "role": key.role, "who": key.who}
        self._on_event(LogEvent(at=time.time(), session_id="", tenant_id=key.tenant_id, name=name, fields=fields))


def _digest(secret: str) -> str:
    # 32 random bytes cannot be guessed, so that a slow hash would only be slow.
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _build_key(row: tuple[object, ...]) -> ApiKey:
    return ApiKey(**dict(zip(ApiKey.__struct_fields__, row, strict=True)))  # pyright: ignore[reportArgumentType]


_COLUMNS = [table.c[name] for name in ApiKey.__struct_fields__]
_BY_DIGEST = select(*_COLUMNS).where(table.c.digest == bindparam("of_digest"), table.c.revoked_at.is_(None))
_BY_ID = select(*_COLUMNS).where(table.c.id == bindparam("of_id"))
_REVOKE = (
    update(table)
    .where(table.c.id == bindparam("of_id"), table.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("now"))
)
