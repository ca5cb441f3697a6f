"""`ToolFlags`: what is declared about a tool whose function belongs to another framework."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from handrail.core.context import ToolContext
from handrail.core.tool import KeyOf, OnInterrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFlags:
    """The options of `@tool` for a tool that is only passed to `Executor.guard()` or to the fallback.

    The fields of `Tool` say what each one means. A tool of which nothing is declared is consequential.
    """

    read_only: bool = False
    concurrency_safe: bool = False
    idempotent: bool = False
    repeatable: bool = False
    key: str | Iterable[str] | KeyOf | None = None
    lock_key: str | Iterable[str] | KeyOf | None = None
    verify: Callable[..., Any] | None = None
    permission_check: Callable[[dict[str, Any], ToolContext[Any]], Any] | None = None
    timeout: float | None = None
    max_output_chars: int | None = None
    max_media_bytes: int | None = None
    cache_for: float | None = None
    cache_public: bool = False
    on_interrupt: OnInterrupt | None = None
    tags: Iterable[str] = ()
    source: str = "local"

    def to_options(self) -> dict[str, Any]:
        """The same as options for `build_tool`."""
        return {one.name: getattr(self, one.name) for one in fields(self)}
