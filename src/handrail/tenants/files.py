"""Reading tenants from YAML and JSON files; every error names the file, the line and the field."""

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError

from handrail.errors import ConfigError, MissingExtraError
from handrail.tenants.config import Features, Section, TenantConfig

SUFFIXES: Final = (".json", ".yaml", ".yml")
_MAX_BYTES: Final = 5_000_000
_MAX_NODES: Final = 100_000

Path_ = tuple[str | int, ...]


def list_files(place: str | Path) -> list[Path]:
    """The configuration files of a directory, in the order of their names; or the one file itself."""
    path = Path(place)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"{path}: there is no such directory of tenants.")
    return sorted(one for one in path.iterdir() if one.suffix.lower() in SUFFIXES and one.is_file())


def read_file(path: Path) -> TenantConfig:
    """One tenant, or `ConfigError`."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path}: a tenant's file must have at most {_MAX_BYTES:,} bytes.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the file cannot be read: {error}.") from error
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


def _problems(error: ValidationError, path: Path, lines: Mapping[Path_, int]) -> Iterator[str]:
    for one in error.errors(include_url=False, include_input=False):
        place = _find_place(one["loc"], lines)
        line = f":{lines[place]}" if place in lines else ""
        field = ".".join(str(part) for part in one["loc"]) or "tenant"
        message = one["msg"].removeprefix("Value error, ")
        if one["type"] == "extra_forbidden":
            message = f"unknown field{_suggest(str(one['loc'][-1]))}"
        yield f"{path}{line}: {field}: {message}"


def _suggest(name: str) -> str:
    sections = (TenantConfig, *Section.__subclasses__(), Features)
    known = {field for section in sections for field in section.model_fields}
    similar = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def _find_place(loc: tuple[int | str, ...], lines: Mapping[Path_, int]) -> Path_:
    """The longest part of a place that is in the file: what is missing has the line of what it is missing from."""
    place: Path_ = ()
    for part in loc:
        if (*place, part) not in lines:
            break
        place = (*place, part)
    return place


def _read_json(text: str, path: Path) -> tuple[Any, dict[Path_, int]]:
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


def _read_yaml(text: str, path: Path) -> tuple[Any, dict[Path_, int]]:
    try:
        import yaml  # noqa: PLC0415  # optional
    except ImportError as error:
        raise MissingExtraError("pyyaml", extra="yaml") from error
    try:
        root: Any = cast(Any, yaml).compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            f"{path}:{mark.line + 1 if mark else 1}: this is not YAML: {getattr(error, 'problem', error)}."
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{path}:1: it is nested too deeply.") from error
    if root is None:
        raise ConfigError(f"{path}:1: the file is empty.")
    reader = _Nodes(yaml, path)
    return reader.read(root, ()), reader.lines


class _Nodes:
    """Reads YAML nodes, because only nodes know their lines."""

    def __init__(self, yaml: Any, path: Path) -> None:
        self._yaml = yaml
        self._path = path
        self._open: list[Any] = []
        self._left = _MAX_NODES
        self.lines: dict[Path_, int] = {}

    def read(self, node: Any, place: Path_) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        self._left -= 1
        if self._left < 0 or any(node is one for one in self._open):  # Through references, a short text is endless.
            raise self._error(node, f"it refers to itself, or has more than {_MAX_NODES:,} values")
        self._open.append(node)
        try:
            return self._value(node, place)
        finally:
            self._open.pop()

    def _value(self, node: Any, place: Path_) -> Any:
        if isinstance(node, self._yaml.SequenceNode):
            return [self.read(one, (*place, index)) for index, one in enumerate(node.value)]
        if isinstance(node, self._yaml.MappingNode):
            found: dict[str, Any] = {}
            for key_node, value_node in node.value:
                if not isinstance(key_node, self._yaml.ScalarNode):
                    raise self._error(key_node, "a key must be text")
                key = str(key_node.value)
                if key in found:
                    raise self._error(key_node, f"the key {key!r} is here twice")
                self.lines[(*place, key)] = key_node.start_mark.line + 1
                found[key] = self.read(value_node, (*place, key))
            return found
        loader = self._yaml.SafeLoader("")
        try:
            return loader.construct_object(node, deep=True)
        except (self._yaml.YAMLError, ValueError) as error:
            raise self._error(node, str(getattr(error, "problem", error))) from error
        finally:
            loader.dispose()

    def _error(self, node: Any, problem: str) -> ConfigError:
        return ConfigError(f"{self._path}:{node.start_mark.line + 1}: {problem}.")
