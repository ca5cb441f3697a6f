"""What JSON does not show of a call's arguments: a consequential tool with such an argument is refused.

Policy, approvals, keys and the ledger see the arguments as JSON. They would decide about less than what runs.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic_core import PydanticUndefined, to_jsonable_python

from handrail.errors import ToolDefinitionError, shorten


def refuse_unwritable(name: str, problem: str | None, *, read_only: bool) -> None:
    """Raise for a consequential tool with an argument that JSON does not show; `problem` says which, None if none."""
    if problem is not None and not read_only:
        raise ToolDefinitionError(f"`{name}` cannot be a tool: {problem}, or read_only=True if it changes nothing.")


def find_unwritable_default(defaults: Mapping[str, Any]) -> str | None:
    """A default that JSON cannot represent, with its parameter: approvals, keys and the ledger hold JSON."""
    for parameter, default in defaults.items():
        if default is PydanticUndefined:
            continue
        try:
            json.dumps(to_jsonable_python(default), allow_nan=False)
        except (ValueError, TypeError, RecursionError):
            return f"the default of `{parameter}` cannot be written as JSON, got {shorten(repr(default))}; use None"
    return None


def find_hidden_field(core_schema: Any) -> str | None:
    """Describe a field with `exclude=True`, anywhere in a type: its value is not in the JSON of the arguments."""
    name = next(_find_excluded(core_schema, ""), None)
    return None if name is None else f"the field `{name}` has exclude=True; leave that out"


def _find_excluded(node: Any, name: str) -> Iterator[str]:
    if isinstance(node, dict):
        members = cast(dict[str, Any], node)
        if members.get("serialization_exclude"):
            yield str(members.get("name", name))
        for key, child in members.items():
            if key not in ("default", "metadata"):
                yield from _find_excluded(child, key)
    elif isinstance(node, list):
        for child in cast(list[Any], node):
            yield from _find_excluded(child, name)
