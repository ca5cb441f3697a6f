"""Scripts in YAML or JSON files."""

import re
from pathlib import Path
from typing import Any, cast

from .script import Script, ScriptError


def load_script(path: str | Path) -> Script:
    """Read a script from a YAML or JSON file."""
    file = Path(path)
    yaml = _import_yaml()
    try:
        text = file.read_text(encoding="utf-8")
        loader = _new_loader(yaml)
        node = yaml.compose(text, Loader=loader)
        data: object = yaml.load(text, Loader=loader)
    except OSError as error:
        raise ScriptError(f"{file}: cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ScriptError(f"{file}: is not UTF-8 text: {error}.") from error
    except yaml.YAMLError as error:
        raise ScriptError(f"{file}: is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ScriptError(
            f"{file}: a script is a mapping with the keys {', '.join(Script.model_fields)}, got {type(data).__name__}."
        )
    return Script.parse(cast(object, data), source=str(file), lines=_lines_of(node))


def _import_yaml() -> Any:
    try:
        import yaml  # noqa: PLC0415  # optional
    except ImportError as error:
        raise ImportError("Scripts in YAML need PyYAML: pip install 'handrail[yaml]'.") from error
    return yaml


def _new_loader(yaml: Any) -> Any:
    """A safe loader for which only `true` and `false` are truth values: `on` is a key of scripts."""

    class Loader(yaml.SafeLoader):
        pass

    resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:bool"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.yaml_implicit_resolvers = resolvers
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|false|False)$"), list("tTfF"))
    return Loader


def _lines_of(node: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], int]:
    lines: dict[tuple[str | int, ...], int] = {path: node.start_mark.line + 1}
    if node.id == "mapping":
        for key, value in node.value:
            lines |= _lines_of(value, (*path, str(key.value)))
    elif node.id == "sequence":
        for index, value in enumerate(node.value):
            lines |= _lines_of(value, (*path, index))
    return lines
