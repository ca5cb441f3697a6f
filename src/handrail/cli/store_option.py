"""The option `--store` of the commands that read or change a database."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from handrail.core.secrets import resolve_reference
from handrail.core.yaml_reader import YamlReader, read_config_file
from handrail.store import open_store

if TYPE_CHECKING:
    from handrail.store import SqlStore

DEFAULT_STORE: Final = "sqlite:///handrail.db"
_FILE: Final = "gateway.yaml"


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--store",
        metavar="URL",
        help="sqlite:///… or postgresql://…, or the file of a gateway (default: $HANDRAIL_STORE, else the store of "
        f"./{_FILE}, else ./handrail.db)",
    )


def open_chosen_store(given: str | None, *, migrate: bool = False) -> "SqlStore":
    """Open the database that a command is about."""
    text = given or os.environ.get("HANDRAIL_STORE") or (_FILE if Path(_FILE).is_file() else DEFAULT_STORE)
    if text.endswith((".yaml", ".yml")) and "://" not in text:
        text = _read_store(Path(text))
    return open_store(text, migrate=migrate)


def _read_store(file: Path) -> str:
    """The store of a gateway's file. Its other fields are not looked at: `handrail serve` checks them."""
    reader = YamlReader(read_config_file(file), source=str(file), max_values=10_000)
    fields = reader.read_mapping(reader.root, "a gateway is a mapping with `sources:`")
    if "store" not in fields:
        return DEFAULT_STORE
    node = fields["store"][1]
    text = reader.read_value(node)
    if not isinstance(text, str):
        raise reader.build_error(node, "store must be the URL of a database")
    return resolve_reference(text, name="store") if text.startswith(("env:", "file:")) else text
