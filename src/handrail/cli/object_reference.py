"""Loads objects that are named on the command line: `module:object` or `file.py:object`."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from handrail.cli.agent_file import run_file
from handrail.errors import ConfigError


def load_object(text: str) -> Any:
    """Load an object from a module or a file, which is executed."""
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise ConfigError(f"Name an object as module:object or file.py:object, got {text!r}.")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise ConfigError(f"There is no file {where}.")
        names = run_file(Path(where))
        if name not in names:
            raise ConfigError(f"{where} defines no {name}.")
        return names[name]
    sys.path.insert(0, "")
    try:
        module = import_module(where)
    except ModuleNotFoundError as error:
        raise ConfigError(f"There is no module {where}: {error}.") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{where} has no {name}.")
        found = getattr(found, part)
    return found
