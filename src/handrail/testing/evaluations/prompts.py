"""The committed prompts: what a customer says, and the call that should follow, or none."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import msgspec


class Prompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that a customer says, and what is right."""

    say: str
    tool: str | None
    """The tool that should be called; None where nothing should be."""
    arguments: Mapping[str, Any]
    """Those that it should be called with; None stands for any value."""
    held_out: bool
    """Written before the embedded provider was made, and not run until it was done."""


def load() -> tuple[Prompt, ...]:
    """All of them, in the order of the file."""
    text = files("handrail.testing.evaluations").joinpath("prompts.jsonl").read_bytes()
    return tuple(msgspec.json.decode(line, type=Prompt) for line in text.splitlines() if line)
