"""Pinned definitions: what somebody has accepted of a server's tools, in a file that is kept under version control."""

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from msgspec import Struct

from handrail.core.lazy_loading import LazyModule
from handrail.errors import ConfigError

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")

_VERSION: Final = 1

Definition = Mapping[str, Any]


class PinDifference(Struct, frozen=True, kw_only=True):
    """How a tool differs from what was accepted."""

    tool: str
    kind: Literal["added", "changed", "removed"]
    diff: str
    """Line by line; whatever a terminal would not show as it is, is written as an escape."""


def read_pins(path: str | Path, server: str) -> dict[str, Definition]:
    """The accepted definitions of a server, by tool; none, if the file or the server is not there."""
    return _read(Path(path)).get(server, {})


def write_pins(path: str | Path, server: str, definitions: Mapping[str, Definition]) -> None:
    """Put a server's definitions into the file, in the place of those that it holds."""
    file = Path(path)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with _locked(file.parent):
            servers = {**_read(file), server: dict(sorted(definitions.items()))}
            text = json.dumps({"version": _VERSION, "servers": dict(sorted(servers.items()))}, indent=2, sort_keys=True)
            draft.write_text(text + "\n", encoding="utf-8")
            draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(f"The pins cannot be written to {file}: {error.strerror}.") from error


@contextmanager
def _locked(directory: Path) -> Generator[None]:
    """Keep other processes that write pins here waiting: each of them writes what the ones before have written, too."""
    try:
        import fcntl  # noqa: PLC0415  # not on Windows
    except ImportError:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)  # The file itself is replaced; a file for the lock would be left over.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def compare_pins(pinned: Mapping[str, Definition], current: Mapping[str, Definition]) -> tuple[PinDifference, ...]:
    """What differs, tool by tool."""
    found: list[PinDifference] = []
    for tool in sorted(pinned.keys() | current.keys()):
        before, after = pinned.get(tool), current.get(tool)
        if before != after:
            kind = "added" if before is None else "removed" if after is None else "changed"
            lines = difflib.unified_diff(_lines(before), _lines(after), "accepted", "now", lineterm="")
            found.append(PinDifference(tool=tool, kind=kind, diff="\n".join(lines)))
    return tuple(found)


def list_held_back(pinned: Mapping[str, Definition], current: Mapping[str, Definition]) -> tuple[PinDifference, ...]:
    """The tools of a server that are not offered: those that are new or changed, and that nobody has accepted yet."""
    return tuple(difference for difference in compare_pins(pinned, current) if difference.kind != "removed")


def _lines(definition: Definition | None) -> list[str]:
    return [] if definition is None else json.dumps(definition, indent=2, sort_keys=True).splitlines()


def _read(file: Path) -> dict[str, dict[str, Definition]]:
    try:
        given: object = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"The pins in {file} cannot be read: {error}.") from error
    content = cast(dict[str, Any], given) if isinstance(given, dict) else {}
    servers: object = content.get("servers")
    if not isinstance(servers, dict) or content.get("version") != _VERSION:
        raise ConfigError(f"{file} holds no pins of version {_VERSION}; `handrail mcp pin` writes them.")
    every = cast(dict[str, Any], servers)
    if not all(isinstance(tools, dict) for tools in every.values()):
        raise ConfigError(f"{file}: each server must have an object of tools.")
    return every
