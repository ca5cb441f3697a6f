"""Which tenants there are, read from YAML and JSON files or added by code, and who is meant by a dialled number."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast, get_args

from pydantic import BaseModel, ValidationError

from handrail.core.log import log
from handrail.core.text import join_names, suggest
from handrail.core.yaml_reader import YamlPath, YamlReader, read_config_file
from handrail.errors import ConfigError, MissingExtraError
from handrail.tenants.config import TenantConfig
from handrail.tenants.phone_addresses import normalise_number

SUFFIXES: Final = (".json", ".yaml", ".yml")
_MAX_VALUES: Final = 100_000


def list_files(place: str | Path) -> list[Path]:
    """The configuration files of a directory, in the order of their names; or the one file itself."""
    path = Path(place)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"{path}: there is no such directory of tenants.")
    return sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())


def read_file(path: Path) -> TenantConfig:
    """One tenant, or `ConfigError`."""
    text = read_config_file(path)
    if path.suffix.lower() == ".json":
        values, lines = _read_json(text, path)
    else:
        values, lines = _read_yaml(text, path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: a tenant must be a mapping with tenant_id, got {type(values).__name__}.")
    try:
        return TenantConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(error, path, lines))) from error


def _problems(error: ValidationError, path: Path, lines: Mapping[YamlPath, int]) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_input=False):
        place = _find_place(problem["loc"], lines)
        line = f":{lines[place]}" if place in lines else ""
        field = ".".join(str(part) for part in problem["loc"]) or "tenant"
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            fields = _list_fields(problem["loc"][:-1])
            message = f"unknown field{suggest(problem['loc'][-1], fields, otherwise='; it has: ' + join_names(fields))}"
        elif problem["type"] == "tuple_type":
            message = "must be a list, such as [a, b]"
        yield f"{path}{line}: {field}: {message}"


def _list_fields(place: Iterable[int | str]) -> list[str]:
    """The fields that a configuration may have at a place."""
    models: list[type[BaseModel]] = [TenantConfig]
    for part in place:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        # What is no field stands between them: the number of an entry, a name of the tenant's, the kind of a union.
        models = [found for field in fields for found in _find_models(field.annotation)] or models
    return list(dict.fromkeys(field for model in models for field in model.model_fields))


def _find_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _find_models(argument)


def _find_place(loc: tuple[int | str, ...], lines: Mapping[YamlPath, int]) -> YamlPath:
    """The longest part of a place that is in the file: what is missing has the line of what it is missing from."""
    place: YamlPath = ()
    for part in loc:
        if (*place, part) not in lines:
            break
        place = (*place, part)
    return place


def _read_json(text: str, path: Path) -> tuple[Any, dict[YamlPath, int]]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{path}: the key {twice!r} is in one object twice.")
        return found

    try:
        values = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: this is not JSON: {error.msg}.") from error
    except RecursionError as error:
        raise ConfigError(f"{path}:1: it is nested too deeply.") from error
    except ValueError as error:  # A number of thousands of digits.
        raise ConfigError(f"{path}: this JSON cannot be read: {error}.") from error
    try:  # JSON is YAML in all but details; its lines are a help, not a need.
        return values, _read_yaml(text, path)[1]
    except (ConfigError, MissingExtraError):
        return values, {}


def _read_yaml(text: str, path: Path) -> tuple[Any, dict[YamlPath, int]]:
    reader = YamlReader(text, source=str(path), max_values=_MAX_VALUES)
    if reader.root is None:
        raise reader.build_error(None, "the file is empty")
    lines: dict[YamlPath, int] = {}
    return reader.read_value(reader.root, lines), lines


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
