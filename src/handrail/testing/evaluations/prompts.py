"""The fixed set of prompts: a customer's message, and the call that is expected, or none."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import msgspec


class Prompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A customer's message and the expected call."""

    message: str
    tool: str | None
    """The expected tool; None if no call is expected."""
    arguments: Mapping[str, Any]
    """The expected arguments; None matches any value."""
    held_out: bool
    """Whether it was written before the embedded provider, and not used to tune it."""


def load_prompts() -> tuple[Prompt, ...]:
    """Load all prompts, in the order of the file."""
    text = files("handrail.testing.evaluations").joinpath("prompts.jsonl").read_bytes()
    return tuple(msgspec.json.decode(line, type=Prompt) for line in text.splitlines() if line)
