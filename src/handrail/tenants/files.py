"""Reading tenants from YAML and JSON files; every error names the file, the line and the field."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from handrail.core.text import suggest
from handrail.core.yaml_reader import YamlPath, YamlReader, read_config_file
from handrail.errors import ConfigError, MissingExtraError
from handrail.tenants.config import Features, TenantConfig
from handrail.tenants.section import Section

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
            message = f"unknown field{suggest(problem['loc'][-1], _list_fields(), otherwise='')}"
        yield f"{path}{line}: {field}: {message}"


def _list_fields() -> set[str]:
    sections = (TenantConfig, *Section.__subclasses__(), Features)
    return {field for section in sections for field in section.model_fields}


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
