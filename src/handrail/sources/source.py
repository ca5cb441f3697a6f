"""What a source of tools is: it is opened once, and its tools may change while it is open."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.sources.pins import PinDifference

SourceState = Literal["connecting", "connected", "reconnecting", "failed", "closed"]


class SkippedTool(Struct, frozen=True, kw_only=True):
    """A tool of a source that is not offered, and why."""

    name: str
    reason: str


class SourceStatus(Struct, frozen=True, kw_only=True):
    """The state of one source."""

    name: str
    state: SourceState
    reason: str = ""
    """Why it is not connected; for the operator, never for a model."""
    tools: int = 0
    """How many tools it offers now."""
    skipped: tuple[SkippedTool, ...] = ()
    """Tools that cannot be offered, each with the reason."""
    differences: tuple[PinDifference, ...] = ()
    """Tools whose definition is not the pinned one: not offered until somebody accepts the difference."""


class OpenSource(Protocol):
    """A source while it is open."""

    @property
    def tools(self) -> Sequence[Tool[..., Any]]: ...

    @property
    def status(self) -> SourceStatus: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class CallingSource(Protocol):
    """What an open source also is, if closing it cuts off its calls."""

    async def wait_idle(self) -> None:
        """Wait until no call is under way."""
        ...


class Source(Protocol):
    """Where tools come from: `McpServer`, `OpenApi`, or a class of your own."""

    @property
    def name(self) -> str: ...

    async def open(self, *, on_change: Callable[[], None], secrets: Mapping[str, str]) -> OpenSource:
        """Open the source. It calls `on_change` whenever its tools are not those that it had before.

        `secrets` are for what is asked without a call, such as the list of tools; a call brings its own.
        """
        ...
