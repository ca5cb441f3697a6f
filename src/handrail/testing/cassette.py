"""Recorded answers of tools and models, for tests that must not run them: a replay never executes anything."""

import functools
import inspect
import itertools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self, TypeAlias, TypeVar, cast, get_args

from handrail.core.redact import Redactor
from handrail.core.text import canonical_json, compact_json
from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.errors import ConfigError, ProviderError, shorten
from handrail.providers.provider import ModelRequest, ModelResponse, Provider, StreamEvent, TextDelta
from handrail.registry.registry import ToolRegistry
from handrail.testing import tape
from handrail.testing.tape import Asked, ModelTake, Tape, ToolTake

Mode = Literal["replay", "strict", "record", "new"]
"""`replay` answers from the file; `strict` also wants all of it used; `record` runs everything for real and replaces
the file; `new` records if there is no file, else it replays."""

Outcome: TypeAlias = ModelResponse | ProviderError | None
Take = TypeVar("Take", ToolTake, ModelTake)

_HOW: Final = "Record it with: pytest --cassette=record"
_LISTED: Final = 10
"""How many recordings a message names."""


class Cassette:
    """What one test recorded, in one file. Leaving its `with` block saves it, or fails for what was not recorded.

    Everything is redacted before it is written, and compared redacted: two calls that differ only in what is secret
    are the same call here, and what is replayed is what was written.
    """

    def __init__(self, path: Path | str, *, mode: Mode = "replay", redactor: Redactor | None = None) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"A cassette's mode is one of {', '.join(get_args(Mode))}, not {mode!r}.")
        self.path = Path(path)
        self.records = mode == "record" or (mode == "new" and not self.path.exists())
        """Whether everything runs for real."""
        self._strict = mode == "strict"
        self._redactor = redactor or Redactor()
        self._tape = Tape() if self.records else tape.load(self.path)
        self._used: set[int] = set()
        """The ids of the recordings that were replayed."""
        self._kept: list[tuple[int, ToolTake | ModelTake]] = []
        self._numbers = itertools.count()
        self._problems: list[str] = []
        self._lock = threading.Lock()  # Handlers run in threads.
        self._closed = False

    def tools(self, tools: ToolRegistry | Iterable[object]) -> list[Tool[..., Any]]:
        """The same tools with the same names, schemas and flags, whose handlers answer from the cassette, or record.

        Arguments are still validated; permission checks, keys and locks are still the tool's own.
        """
        return [self._recorded(tool) for tool in ToolRegistry(tools)]

    def provider(self, provider: Provider | None = None) -> Provider:
        """A provider that answers from the cassette, or asks this one and records. A replay needs none."""
        if not self.records:
            name = provider.name if provider is not None else next((one.provider for one in self._tape.models), "")
            return _Player(self, name or "cassette:replay")
        if provider is None:
            raise ConfigError("There is nothing to record: give the provider that is to be asked.")
        return _Recorder(self, provider)

    def close(self, failed: BaseException | None = None) -> None:
        """Fail for every call that was not recorded; save what was recorded, unless the test failed."""
        __tracebackhide__ = True
        self._closed = True
        if self._problems and str(failed) not in self._problems:
            raise AssertionError("\n".join(dict.fromkeys(self._problems))) from failed
        if failed is not None:
            return
        if self.records:
            tape.save(self.path, self._made())
        elif self._strict and (unused := [one for one in self._takes() if id(one) not in self._used]):
            raise AssertionError(f"{self.path} has recordings that were not used: {_listed(unused)}. {_HOW}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception):  # Not one who wants to stop.
            self.close(error)

    # What tools and providers do with it.

    def begin(self) -> int:
        """The number of something that is about to be recorded."""
        self._check_open()
        return next(self._numbers)

    def asked(self, request: ModelRequest) -> Asked:
        """What tells a request from another."""
        return tape.asked(request, self._redactor)

    def answered(self, number: int, name: str, asked: Asked, pieces: list[str], outcome: Outcome) -> None:
        """Record what a model answered."""
        take = tape.model_take(name, asked, pieces=pieces, outcome=outcome, redactor=self._redactor)
        self._kept.append((number, take))

    def model_take(self, asked: Asked) -> ModelTake:
        """The next recorded answer to a request."""
        same = [one for one in self._tape.models if one.request.digest == asked.digest]
        take = self._next(same, repeats=False)
        if take is None:
            self.miss(f"The model was asked: {_request(asked)}", same, self._tape.models)
        return take

    def miss(self, what: str, same: Iterable[ToolTake | ModelTake], every: Iterable[ToolTake | ModelTake]) -> NoReturn:
        """Fail, now and at the end: an executor answers the model even if a handler fails in this way."""
        if same := list(same):
            problem = f"more often than the {len(same)} times that are recorded in {self.path}"
        elif listed := _listed(every):
            problem = f"which is not recorded in {self.path}. Recorded are: {listed}"
        elif self.path.exists():
            problem = f"and {self.path} has no recording of this kind"
        else:
            problem = f"and there is no cassette {self.path}"
        self._problems.append(f"{what}, {problem}. {_HOW}")
        raise AssertionError(self._problems[-1])

    # Tools.

    def _recorded(self, tool: Tool[..., Any]) -> Tool[..., Any]:
        function = tool.function

        @functools.wraps(function)
        def direct(*args: Any, **kwargs: Any) -> NoReturn:
            raise AssertionError(f"`{tool.name}` belongs to a cassette: have it run by an executor, not directly.")

        handler = self._handler(tool, tool.handler, verify=False, dump=tool.dump, is_async=tool.is_async)
        verify = tool.verify
        if verify is not None:
            asks = inspect.iscoroutinefunction(verify)
            verify = self._handler(tool, verify, verify=True, dump=lambda arguments: arguments, is_async=asks)
        return replace(tool, function=direct, handler=handler, verify=verify)

    def _handler(
        self,
        tool: Tool[..., Any],
        real: Callable[[Any, Any], Any],
        *,
        verify: bool,
        dump: Callable[[Any], dict[str, Any]],
        is_async: bool,
    ) -> Callable[[Any, Any], Any]:
        """A handler around the real one, async if that is."""

        def place(arguments: Any) -> dict[str, Any]:
            return tape.comparable(dump(arguments), self._redactor)

        def play(arguments: Any) -> Any:
            return tape.played(self._tool_take(tool, place(arguments), verify=verify))

        async def handle(arguments: Any, context: Any) -> Any:
            if not self.records:
                return play(arguments)
            with self._keeping(self.begin(), tool.name, place(arguments), verify=verify) as keep:
                return keep(await real(arguments, context))

        def handle_sync(arguments: Any, context: Any) -> Any:
            if not self.records:
                return play(arguments)
            number, where = self.begin(), place(arguments)
            with self._keeping(number, tool.name, where, verify=verify) as keep:
                output = real(arguments, context)
                if not inspect.isawaitable(output):
                    return keep(output)
            return finish(output, number, where)

        async def finish(output: Any, number: int, where: dict[str, Any]) -> Any:
            # A plain function around a coroutine function, as decorators make them.
            with self._keeping(number, tool.name, where, verify=verify) as keep:
                return keep(await output)

        return handle if is_async else handle_sync

    @contextmanager
    def _keeping(
        self, number: int, name: str, arguments: dict[str, Any], *, verify: bool
    ) -> Generator[Callable[[Any], Any]]:
        def keep(outcome: Any) -> Any:
            given = outcome.output if isinstance(outcome, ToolResult) else outcome
            if isinstance(outcome, Exception) or _is_writable(given):
                take = tape.tool_take(
                    name, verify=verify, arguments=arguments, outcome=outcome, redactor=self._redactor
                )
                self._kept.append((number, take))
            else:
                problem = f"`{name}` returned a {type(given).__name__}, which cannot be written as JSON, nor recorded."
                self._problems.append(problem)
            return outcome

        try:
            yield keep
        except Exception as error:
            keep(error)
            raise
        except BaseException:
            self._problems.append(f"`{name}` was cut off before it answered: there is nothing to record.")
            raise

    def _tool_take(self, tool: Tool[..., Any], arguments: dict[str, Any], *, verify: bool) -> ToolTake:
        known = [one for one in self._tape.tools if (one.tool, one.verify) == (tool.name, verify)]
        wanted = canonical_json(arguments)
        same = [one for one in known if canonical_json(one.arguments) == wanted]
        # To look again is harmless; what has consequences was not recorded to happen once more.
        take = self._next(same, repeats=tool.read_only or verify)
        if take is None:
            doing = "was asked what became of the call" if verify else "was called"
            self.miss(f"`{tool.name}` {doing} with {shorten(wanted, 400)}", same, known or self._tape.tools)
        return take

    # The tape.

    def _next(self, takes: list[Take], *, repeats: bool) -> Take | None:
        self._check_open()
        with self._lock:
            take = next((one for one in takes if id(one) not in self._used), None)
            if take is not None:
                self._used.add(id(take))
        return takes[-1] if take is None and repeats and takes else take

    def _check_open(self) -> None:
        if self._closed:
            raise AssertionError(f"The cassette {self.path} is closed: the test that it belongs to is over.")

    def _takes(self) -> list[ToolTake | ModelTake]:
        return [*self._tape.tools, *self._tape.models]

    def _made(self) -> Tape:
        kept = sorted(self._kept, key=lambda one: one[0])
        tools = [one for _, one in kept if isinstance(one, ToolTake)]
        tools.sort(key=lambda one: (one.tool, one.verify, canonical_json(one.arguments)))
        return Tape(tools=tuple(tools), models=tuple(one for _, one in kept if isinstance(one, ModelTake)))


class _Recorder:
    """Asks a provider, and records what it answers."""

    def __init__(self, cassette: Cassette, provider: Provider) -> None:
        self._cassette = cassette
        self._provider = provider

    @property
    def name(self) -> str:
        return self._provider.name

    async def ask(self, request: ModelRequest) -> ModelResponse:
        number, asked = self._cassette.begin(), self._cassette.asked(request)
        try:
            reply = await self._provider.ask(request)
        except ProviderError as error:
            self._cassette.answered(number, self.name, asked, [], error)
            raise
        self._cassette.answered(number, self.name, asked, [], reply)
        return reply

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        number, asked = self._cassette.begin(), self._cassette.asked(request)
        pieces: list[str] = []
        outcome: Outcome = None
        stream = self._provider.stream(request)
        try:
            async for piece in stream:
                if isinstance(piece, TextDelta):
                    pieces.append(piece.text)
                else:
                    outcome = piece
                yield piece
        except ProviderError as error:
            outcome = error
            raise
        finally:
            self._cassette.answered(number, self.name, asked, pieces, outcome)
            if isinstance(stream, AsyncGenerator):  # The one who reads may have had enough.
                await cast(AsyncGenerator[StreamEvent], stream).aclose()


class _Player:
    """Answers from a cassette."""

    def __init__(self, cassette: Cassette, name: str) -> None:
        self._cassette = cassette
        self.name = name

    async def ask(self, request: ModelRequest) -> ModelResponse:
        *_, reply = [piece async for piece in self.stream(request)]
        return cast(ModelResponse, reply)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        asked = self._cassette.asked(request)
        take = self._cassette.model_take(asked)
        whole = (take.reply.text,) if take.reply is not None and take.reply.text else ()
        for text in take.pieces or whole:
            yield TextDelta(text=text)
        if take.error is not None:
            raise tape.provider_error(take.error)
        if take.reply is None:
            self._cassette.miss(f"More was read of the answer to {_request(asked)} than when it was recorded", [], [])
        yield take.reply


def _is_writable(value: Any) -> bool:
    if isinstance(value, Iterator | AsyncIterator) or inspect.isawaitable(value):
        return False  # To write it would use it up.
    try:
        compact_json(value)
    except ValueError:
        return False
    return True


def _listed(takes: Iterable[ToolTake | ModelTake]) -> str:
    """Recordings by what they answer, for a message."""
    names = list(dict.fromkeys(map(_named, takes)))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _named(take: ToolTake | ModelTake) -> str:
    if isinstance(take, ModelTake):
        return _request(take.request)
    return f"{take.tool}({'verify: ' if take.verify else ''}{shorten(canonical_json(take.arguments), 200)})"


def _request(asked: Asked) -> str:
    return f"`{shorten(asked.last)}` (message {asked.messages}; {asked.digest[:8]})"
