"""What a source of tools is, and `connect`: several sources at once, none of which can fail the others."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from handrail.core.fair_threads import FairThreads
from handrail.core.log import log
from handrail.core.tool import Tool
from handrail.errors import ConfigError, SourceError, shorten
from handrail.sources.pins import PinDifference

SourceState = Literal["connecting", "connected", "reconnecting", "failed", "closed"]
OWNER: Final[ContextVar[str]] = ContextVar("handrail_source_owner", default="")
"""Whose the sources are that are opened, such as a tenant; empty if each is its own."""
_THREADS: Final = FairThreads("sources")
P = ParamSpec("P")
T = TypeVar("T")


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


class Sources:
    """Sources that are open: their tools and their state, now."""

    def __init__(self) -> None:
        self._open: dict[str, OpenSource | SourceStatus] = {}
        """Every source by its name; of one that could not be opened, why."""
        self._listeners: dict[object, Callable[[], None]] = {}

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools of every source, in the order of the sources; of two tools of one name, the first."""
        found: dict[str, Tool[..., Any]] = {}
        for source in self._open.values():
            for tool in () if isinstance(source, SourceStatus) else source.tools:
                found.setdefault(tool.name, tool)
        return tuple(found.values())

    @property
    def status(self) -> dict[str, SourceStatus]:
        """The state of every source, by its name."""
        return {
            name: source if isinstance(source, SourceStatus) else source.status for name, source in self._open.items()
        }

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function after every change of the tools; the function returned here unsubscribes it."""
        key = object()
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self.tools)

    def __repr__(self) -> str:
        return f"Sources({', '.join(f'{name}: {status.state}' for name, status in self.status.items())})"

    async def open(self, source: Source, secrets: Mapping[str, str]) -> None:
        """Open one more source; one that cannot be opened is shown as failed."""
        self._open[source.name] = SourceStatus(name=source.name, state="connecting")
        try:
            self._open[source.name] = await source.open(on_change=self._on_change, secrets=secrets)
        except ConfigError:
            raise
        except SourceError as error:
            log.error("the source %s cannot be opened: %s", source.name, error.message)
            self.mark_failed(source.name, error.message)
        except Exception as error:  # one source never fails the others
            log.exception("the source %s cannot be opened", source.name)
            reason = f"{type(error).__name__}: {shorten(str(error), 300)}"
            self.mark_failed(source.name, reason)

    def mark_failed(self, name: str, reason: str) -> None:
        """Show a source as failed."""
        self._open[name] = SourceStatus(name=name, state="failed", reason=reason)

    async def wait_idle(self) -> None:
        """Wait until no source has a call that closing it would cut off."""
        for source in [*self._open.values()]:
            if isinstance(source, CallingSource):
                await source.wait_idle()

    async def aclose(self) -> None:
        """Close every source."""
        self._listeners.clear()
        opened = [source for source in self._open.values() if not isinstance(source, SourceStatus)]
        await asyncio.gather(*(source.aclose() for source in opened), return_exceptions=True)

    def _on_change(self) -> None:
        for listener in tuple(self._listeners.values()):
            try:
                listener()
            except Exception:  # somebody else's code; the others still have to hear of it
                log.exception("a listener to changed tools failed")


async def run_in_thread(source: str, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Read a document, or compile a thousand schemas: it may take minutes, and keeps nobody else's source waiting."""
    return await _THREADS.run(OWNER.get() or f"source:{source}", function, *args, **options)


@asynccontextmanager
async def connect(sources: Iterable[Source], *, secrets: Mapping[str, str] | None = None) -> AsyncGenerator[Sources]:
    """Open sources, and close them at the end of the block.

    A source that cannot be opened has no tools, and its `status` says why; the others work. `secrets` are used where
    there is no call whose own secrets could be: to list the tools of a server with `bearer="secret:name"`.
    """
    every = list(sources)
    names = [source.name for source in every]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"Two sources are named {twice[0]!r}; give one of them another name.")
    opened = Sources()
    try:
        await _open_all(opened, every, secrets or {})
        yield opened
    finally:
        await opened.aclose()


async def _open_all(opened: Sources, sources: Sequence[Source], secrets: Mapping[str, str]) -> None:
    """Open sources at once. Whatever happens, none is still being opened afterwards, so that all can be closed."""
    tasks = [asyncio.create_task(opened.open(source, secrets)) for source in sources]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
