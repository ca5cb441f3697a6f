"""What a builder answers."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from handrail.authorize.policy import Rule

LogFields = tuple[tuple[str, Mapping[str, Any]], ...]


class BuiltTool(Struct, frozen=True):
    """A tool, with the rules and the prompt text that belong to it."""

    tool: Any
    """A `Tool`, or anything tool-shaped."""
    rules: tuple[Rule, ...] = ()
    prompt: str = ""
    """Added to the instructions."""
    read_back: Callable[[Mapping[str, Any]], str] | None = None
    """From validated arguments to what the caller is asked to agree to; without it the arguments are listed."""
    background: float | None = None
    """Seconds after which the model is told that the call still runs, and the conversation goes on; the result is told
    when it is there. The tool has to be `concurrency_safe`."""
    log: LogFields = ()
    """Names and fields of log events about how it was built."""


class NoTool(Struct, frozen=True):
    """No tool for this tenant, and why; a builder may also return None."""

    reason: str = ""
    log: LogFields = ()
