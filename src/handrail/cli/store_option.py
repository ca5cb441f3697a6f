"""Which database a command is about: `--store`, else `$HANDRAIL_STORE`, else the default of the command."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from handrail.core.yaml_reader import YamlReader, read_config_file
from handrail.store import DEFAULT_STORE, open_store, place_store

if TYPE_CHECKING:
    from handrail.store import SqlStore

_FILE: Final = "gateway.yaml"


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--store",
        metavar="URL",
        help="sqlite:///… or postgresql://…, or the file of a gateway (default: $HANDRAIL_STORE, else the store of "
        f"./{_FILE}, else ./handrail.db)",
    )


def find_user_store() -> str:
    """The database of a desktop client's gateway, which has no directory of its own."""
    return f"sqlite:///{Path.home() / '.handrail.db'}"


def find_agent_store() -> str:
    """The database of an agent that is served."""
    return DEFAULT_STORE


def _find_store_here() -> str:
    """The file of the gateway in this directory, else the default."""
    return _FILE if Path(_FILE).is_file() else DEFAULT_STORE


def choose_store_url(given: str | None, *, default: Callable[[], str]) -> str:
    """Choose the database of a command: what was given, else what the environment names, else the default."""
    return given or os.environ.get("HANDRAIL_STORE") or default()


def open_chosen_store(given: str | None, *, migrate: bool = False) -> "SqlStore":
    """Open the database that a command is about."""
    text = choose_store_url(given, default=_find_store_here)
    if text.endswith((".yaml", ".yml")) and "://" not in text:
        text = _read_store(Path(text))
    return open_store(text, migrate=migrate)


def _read_store(file: Path) -> str:
    """The store of a gateway's file. Its other fields are not looked at: `handrail serve` checks them."""
    reader = YamlReader(read_config_file(file), source=str(file), max_values=10_000)
    fields = reader.read_mapping(reader.root, "a gateway is a mapping with `sources:`")
    text: object = DEFAULT_STORE
    if "store" in fields:
        node = fields["store"][1]
        text = reader.read_value(node)
        if not isinstance(text, str):
            raise reader.build_error(node, "store must be the URL of a database")
    return place_store(text, file.parent)
