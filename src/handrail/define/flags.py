"""`ToolFlags`: what is declared about a tool whose function belongs to another framework."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, cast

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

    def __post_init__(self) -> None:
        for name in ("key", "lock_key", "tags"):  # Tuples can be compared and hashed.
            if isinstance(value := getattr(self, name), Iterable) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(cast(Iterable[Any], value)))

    @classmethod
    def from_annotations(cls, annotations: Mapping[str, Any]) -> Self:
        """What the annotations of an MCP tool say (`readOnlyHint`, `idempotentHint`): only where they are trusted."""
        read_only = annotations.get("readOnlyHint") is True
        is_idempotent = annotations.get("idempotentHint") is True
        return cls(read_only=read_only, concurrency_safe=read_only, idempotent=is_idempotent)

    def to_options(self) -> dict[str, Any]:
        """The same as options for `build_tool`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
