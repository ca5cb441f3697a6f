"""Which tenants there are, and who is meant by a dialled number."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, Self, cast

from handrail.core.log import log
from handrail.errors import ConfigError
from handrail.tenants.config import TenantConfig
from handrail.tenants.files import list_files, read_file
from handrail.tenants.phone_addresses import normalise_number


class Tenants(Protocol):
    """Where tenants are looked up; a phone call keeps what it found until it ends."""

    async def find(self, number: str) -> TenantConfig | None:
        """The tenant that callers of this number mean, also one that is not enabled."""
        ...

    async def get(self, tenant_id: str) -> TenantConfig | None:
        """The tenant of this id."""
        ...

    async def is_removed(self, tenant_id: str) -> bool:
        """Whether there was a tenant of this id and it was removed: whoever has a key of it may call nothing."""
        ...

    async def list(self) -> list[TenantConfig]:
        """Every tenant, by id."""
        ...


class TenantDirectory:
    """Tenants in memory, or from files. Every change applies to the next call, and never to one under way."""

    def __init__(self, tenants: Iterable[TenantConfig] = ()) -> None:
        self._place: Path | None = None
        self.problems: tuple[str, ...] = ()
        """Files that could not be read the last time, each with its line and field; their tenants are missing, or stay
        as they were."""
        self._strict = True
        self._by_file: dict[str, TenantConfig] = {}
        self._by_id: dict[str, TenantConfig] = {}
        self._by_number: dict[str, TenantConfig] = {}
        self._removed: set[str] = set()
        self._replace([(_check(tenant), "") for tenant in tenants])

    def _replace(self, tenants: "list[tuple[TenantConfig, str]]") -> None:
        """Make these the tenants, and remember which are not there any more."""
        before = self._by_id.keys()
        self._by_id, self._by_number = _index(tenants)
        self._removed = (self._removed | before) - self._by_id.keys()

    @classmethod
    def from_files(cls, place: str | Path, *, strict: bool = True) -> Self:
        """Read one tenant from each YAML and JSON file of a directory; errors name the file, the line and the field.

        With `strict=False` a file that is wrong is one of the `problems`, and the other tenants work.
        """
        made = cls()
        made._place = Path(place)
        made._strict = strict
        made.reload()
        return made

    def reload(self) -> None:
        """Read the files again. If one of them is wrong, everything stays as it was.

        With `strict=False` only the tenant of that file stays as it was.
        """
        if self._place is None:
            raise ConfigError("reload needs a directory made by TenantDirectory.from_files(…).")
        read: list[tuple[TenantConfig, str]] = []
        problems: list[str] = []
        for path in list_files(self._place):
            try:
                cfg = read_file(path)
                _index([*read, (cfg, str(path))])
            except ConfigError as error:
                if self._strict:
                    raise
                problems.append(error.message)
                log.error("a tenant cannot be used: %s", error.message)
                known = self._by_file.get(str(path))
                if known is not None and known.tenant_id not in {tenant.tenant_id for tenant, _ in read}:
                    read.append((known, str(path)))
            else:
                read.append((cfg, str(path)))
        self._replace(read)
        self._by_file = {file: tenant for tenant, file in read}
        self.problems = tuple(problems)

    def put(self, cfg: TenantConfig) -> None:
        """Add a tenant, or replace the one of its id."""
        others = [(tenant, "") for tenant in self._by_id.values() if tenant.tenant_id != cfg.tenant_id]
        self._replace([*others, (_check(cfg), "")])

    def remove(self, tenant_id: str) -> bool:
        """Turn a tenant off for good, until it is put again; whether there was one."""
        known = tenant_id in self._by_id
        self._replace([(tenant, "") for tenant in self._by_id.values() if tenant.tenant_id != tenant_id])
        return known

    async def find(self, number: str) -> TenantConfig | None:
        """The tenant that callers of this number mean, also one that is not enabled."""
        try:
            return self._by_number.get(normalise_number(number))
        except ValueError:
            return None

    async def get(self, tenant_id: str) -> TenantConfig | None:
        """The tenant of this id."""
        return self._by_id.get(tenant_id)

    async def is_removed(self, tenant_id: str) -> bool:
        """Whether there was a tenant of this id in this process, and it was removed."""
        return tenant_id in self._removed

    async def list(self) -> "list[TenantConfig]":
        """Every tenant, by id."""
        return [self._by_id[tenant_id] for tenant_id in sorted(self._by_id)]

    def __iter__(self) -> Iterator[TenantConfig]:
        return iter([self._by_id[tenant_id] for tenant_id in sorted(self._by_id)])

    def __len__(self) -> int:
        return len(self._by_id)


def _check(cfg: object) -> TenantConfig:
    if isinstance(cfg, TenantConfig):
        return cfg
    raise ConfigError(f"a tenant must be a TenantConfig, got {type(cast(Any, cfg)).__name__}.")


def _index(
    tenants: "list[tuple[TenantConfig, str]]",
) -> tuple[dict[str, TenantConfig], dict[str, TenantConfig]]:
    """Tenants by id and by number; no id and no number may belong to two."""
    by_id: dict[str, TenantConfig] = {}
    by_number: dict[str, TenantConfig] = {}
    for cfg, file in tenants:
        where = f"{file}: " if file else ""
        if cfg.tenant_id in by_id:
            raise ConfigError(f"{where}tenant_id must be unique, got {cfg.tenant_id!r} twice.")
        by_id[cfg.tenant_id] = cfg
        for number in cfg.numbers:
            if number in by_number:
                other = by_number[number].tenant_id
                raise ConfigError(
                    f"{where}numbers: {number} belongs to {other!r} already, and cannot be a number of "
                    f"{cfg.tenant_id!r} too."
                )
            by_number[number] = cfg
    return by_id, by_number
