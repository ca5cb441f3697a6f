"""Records what tools and models return, and replays it in tests without running them."""

import functools
import inspect
import itertools
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self, TypeAlias, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET

from handrail.core.redact import Redactor
from handrail.core.text import canonical_json, compact_json
from handrail.core.tool import Tool
from handrail.core.values import Failure, ToolResult, find_media_result
from handrail.errors import ConfigError, ProviderError, ToolError, shorten
from handrail.providers.provider import ModelRequest, ModelResponse, Provider, StreamEvent, TextDelta
from handrail.registry.registry import ToolRegistry
from handrail.testing import recording_format
from handrail.testing.recording_format import (
    PROVIDER_ERRORS,
    ModelRecording,
    ProviderFailure,
    Recordings,
    RequestSummary,
    ToolRecording,
)

CassetteMode = Literal["replay", "strict", "record", "new"]
"""`replay` returns results from the file; `strict` also fails if a recording is not used; `record` runs everything and
replaces the file; `new` records if there is no file, and replays otherwise."""

RecordedOutcome: TypeAlias = ModelResponse | ProviderError | None
R = TypeVar("R", ToolRecording, ModelRecording)

_HINT: Final = "Record it with: pytest --cassette=record"
_MAX_NAMES: Final = 10
"""The most recordings in one message."""


class Cassette:
    """The recordings of one test, in one file. Leaving its `with` block saves it, or fails if a recording is missing.

    Everything is redacted before it is written and before it is compared: two calls that differ only in a secret are
    the same call here, and a replay returns the redacted values.
    """

    def __init__(self, path: Path | str, *, mode: CassetteMode = "replay", redactor: Redactor | None = None) -> None:
        if mode not in get_args(CassetteMode):
            raise ConfigError(f"mode must be one of {', '.join(get_args(CassetteMode))}, got {mode!r}.")
        self.path = Path(path)
        self.is_recording = mode == "record" or (mode == "new" and not self.path.exists())
        """Whether tools and models really run."""
        self._strict = mode == "strict"
        self._redactor = redactor or Redactor()
        self._recordings = Recordings() if self.is_recording else recording_format.load_recordings(self.path)
        self._used: set[int] = set()
        """The ids of the recordings that were replayed."""
        self._new: list[tuple[int, ToolRecording | ModelRecording]] = []
        self._numbers = itertools.count()
        self._problems: list[str] = []
        self._lock = threading.Lock()  # Handlers run in threads.
        self._closed = False

    def tools(self, tools: ToolRegistry | Iterable[object]) -> list[Tool[..., Any]]:
        """Return copies of the tools whose handlers replay from the cassette, or record.

        Names, schemas, flags, validation, permission checks, keys and locks are unchanged.
        """
        return [self._wrap_tool(tool) for tool in ToolRegistry(tools)]

    def provider(self, provider: Provider | None = None) -> Provider:
        """Return a provider that replays from the cassette, or asks this one and records. A replay needs none."""
        if not self.is_recording:
            name = (
                provider.name
                if provider is not None
                else next((recording.provider for recording in self._recordings.models), "")
            )
            return _ReplayProvider(self, name or "cassette:replay")
        if provider is None:
            raise ConfigError("provider is required to record.")
        return _RecordingProvider(self, provider)

    def close(self, failed: BaseException | None = None) -> None:
        """Fail if a recording was missing; save new recordings, unless the test failed."""
        __tracebackhide__ = True
        self._closed = True
        if self._problems and str(failed) not in self._problems:
            raise AssertionError("\n".join(dict.fromkeys(self._problems))) from failed
        if failed is not None:
            return
        if self.is_recording:
            recording_format.save_recordings(self.path, self._build_recordings())
        elif self._strict and (
            unused := [recording for recording in self._list_recordings() if id(recording) not in self._used]
        ):
            raise AssertionError(f"{self.path} has recordings that were not used: {_format_list(unused)}. {_HINT}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception):  # A KeyboardInterrupt is not a failure of the test.
            self.close(error)

    # Used by the wrapped tools and providers.

    def start_recording(self) -> int:
        """Return the number of the next recording, which keeps the order of the calls."""
        self._require_open()
        return next(self._numbers)

    def summarize(self, request: ModelRequest) -> RequestSummary:
        """Summarize what identifies a request."""
        return recording_format.summarize_request(request, self._redactor)

    def record_response(
        self, number: int, name: str, summary: RequestSummary, deltas: list[str], outcome: RecordedOutcome
    ) -> None:
        """Record the outcome of a request to a model."""
        recording = _build_model_recording(name, summary, deltas=deltas, outcome=outcome, redactor=self._redactor)
        self._new.append((number, recording))

    def find_response(self, summary: RequestSummary) -> ModelRecording:
        """Find the next recorded response to a request."""
        same = [recording for recording in self._recordings.models if recording.request.digest == summary.digest]
        recording = self._use_next(same, can_repeat=False)
        if recording is None:
            self.fail(f"the model was asked {_format_request(summary)}", same, self._recordings.models)
        return recording

    def fail(
        self,
        what: str,
        same: Iterable[ToolRecording | ModelRecording],
        candidates: Iterable[ToolRecording | ModelRecording],
    ) -> NoReturn:
        """Raise `AssertionError` now and in `close`: the executor turns an exception of a handler into a result."""
        if same := list(same):
            problem = f"but {self.path} has only {len(same)} recordings of it"
        elif names := _format_list(candidates):
            problem = f"which is not recorded in {self.path}. Recorded are: {names}"
        elif self.path.exists():
            problem = f"but {self.path} has no recording of this kind"
        else:
            problem = f"but there is no cassette {self.path}"
        self._problems.append(f"{what}, {problem}. {_HINT}")
        raise AssertionError(self._problems[-1])

    # Tools.

    def _wrap_tool(self, tool: Tool[..., Any]) -> Tool[..., Any]:
        function = tool.function

        @functools.wraps(function)
        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            raise AssertionError(f"{tool.name!r} belongs to a cassette: run it with an executor instead of calling it.")

        handler = self._wrap_handler(tool, tool.handler, verify=False, dump=tool.dump, is_async=tool.is_async)
        verify = tool.verify
        if verify is not None:
            is_async = inspect.iscoroutinefunction(verify)
            verify = self._wrap_handler(tool, verify, verify=True, dump=lambda arguments: arguments, is_async=is_async)
        return replace(tool, function=refuse, handler=handler, verify=verify)

    def _wrap_handler(
        self,
        tool: Tool[..., Any],
        real: Callable[[Any, Any], Any],
        *,
        verify: bool,
        dump: Callable[[Any], dict[str, Any]],
        is_async: bool,
    ) -> Callable[[Any, Any], Any]:
        """Wrap a handler; the wrapper is async if the handler is."""

        def normalize(arguments: Any) -> dict[str, Any]:
            return recording_format.normalize(dump(arguments), self._redactor)

        def replay(arguments: Any) -> Any:
            return _return_recorded(self._find_result(tool, normalize(arguments), verify=verify))

        async def handle(arguments: Any, context: Any) -> Any:
            if not self.is_recording:
                return replay(arguments)
            with self._recording_result(
                self.start_recording(), tool.name, normalize(arguments), verify=verify
            ) as record:
                return record(await real(arguments, context))

        def handle_sync(arguments: Any, context: Any) -> Any:
            if not self.is_recording:
                return replay(arguments)
            number, normalized = self.start_recording(), normalize(arguments)
            with self._recording_result(number, tool.name, normalized, verify=verify) as record:
                output = real(arguments, context)
                if not inspect.isawaitable(output):
                    return record(output)
            return finish(output, number, normalized)

        async def finish(output: Any, number: int, normalized: dict[str, Any]) -> Any:
            # A sync function that returns a coroutine, as some decorators do.
            with self._recording_result(number, tool.name, normalized, verify=verify) as record:
                return record(await output)

        return handle if is_async else handle_sync

    @contextmanager
    def _recording_result(
        self, number: int, name: str, arguments: dict[str, Any], *, verify: bool
    ) -> Generator[Callable[[Any], Any]]:
        def record(outcome: Any) -> Any:
            outcome = find_media_result(outcome) or outcome
            output = outcome.output if isinstance(outcome, ToolResult) else outcome
            if isinstance(outcome, Exception) or _is_json(output):
                recording = _build_tool_recording(
                    name, verify=verify, arguments=arguments, outcome=outcome, redactor=self._redactor
                )
                self._new.append((number, recording))
            else:
                problem = (
                    f"{name!r} returned a {type(output).__name__}, which is not a JSON value and cannot be recorded."
                )
                self._problems.append(problem)
            return outcome

        try:
            yield record
        except Exception as error:
            record(error)
            raise
        except BaseException:
            self._problems.append(f"{name!r} was cancelled before it returned: there is nothing to record.")
            raise

    def _find_result(self, tool: Tool[..., Any], arguments: dict[str, Any], *, verify: bool) -> ToolRecording:
        known = [
            recording
            for recording in self._recordings.tools
            if (recording.tool, recording.verify) == (tool.name, verify)
        ]
        expected = canonical_json(arguments)
        same = [recording for recording in known if canonical_json(recording.arguments) == expected]
        # A read can be replayed any number of times; a consequential call only as often as it was recorded.
        recording = self._use_next(same, can_repeat=tool.read_only or verify)
        if recording is None:
            what = f"verify of {tool.name!r}" if verify else repr(tool.name)
            self.fail(f"{what} was called with {shorten(expected, 400)}", same, known or self._recordings.tools)
        return recording

    # Recordings.

    def _use_next(self, recordings: list[R], *, can_repeat: bool) -> R | None:
        self._require_open()
        with self._lock:
            recording = next((recording for recording in recordings if id(recording) not in self._used), None)
            if recording is not None:
                self._used.add(id(recording))
        return recordings[-1] if recording is None and can_repeat and recordings else recording

    def _require_open(self) -> None:
        if self._closed:
            raise AssertionError(f"the cassette {self.path} is closed: its test is over.")

    def _list_recordings(self) -> list[ToolRecording | ModelRecording]:
        return [*self._recordings.tools, *self._recordings.models]

    def _build_recordings(self) -> Recordings:
        ordered = sorted(self._new, key=lambda numbered: numbered[0])
        tools = [one for _, one in ordered if isinstance(one, ToolRecording)]
        tools.sort(key=lambda recording: (recording.tool, recording.verify, canonical_json(recording.arguments)))
        return Recordings(
            tools=tuple(tools), models=tuple(one for _, one in ordered if isinstance(one, ModelRecording))
        )


class _RecordingProvider:
    """Asks a provider and records its responses."""

    def __init__(self, cassette: Cassette, provider: Provider) -> None:
        self._cassette = cassette
        self._provider = provider

    @property
    def name(self) -> str:
        return self._provider.name

    async def ask(self, request: ModelRequest) -> ModelResponse:
        number, summary = self._cassette.start_recording(), self._cassette.summarize(request)
        try:
            response = await self._provider.ask(request)
        except ProviderError as error:
            self._cassette.record_response(number, self.name, summary, [], error)
            raise
        self._cassette.record_response(number, self.name, summary, [], response)
        return response

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        number, summary = self._cassette.start_recording(), self._cassette.summarize(request)
        deltas: list[str] = []
        outcome: RecordedOutcome = None
        stream = self._provider.stream(request)
        try:
            async for event in stream:
                if isinstance(event, TextDelta):
                    deltas.append(event.text)
                else:
                    outcome = event
                yield event
        except ProviderError as error:
            outcome = error
            raise
        finally:
            self._cassette.record_response(number, self.name, summary, deltas, outcome)
            if isinstance(stream, AsyncGenerator):  # The caller may have stopped reading.
                await cast(AsyncGenerator[StreamEvent], stream).aclose()


class _ReplayProvider:
    """Replays responses from a cassette."""

    def __init__(self, cassette: Cassette, name: str) -> None:
        self._cassette = cassette
        self.name = name

    async def ask(self, request: ModelRequest) -> ModelResponse:
        *_, response = [event async for event in self.stream(request)]
        return cast(ModelResponse, response)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        summary = self._cassette.summarize(request)
        recording = self._cassette.find_response(summary)
        response = recording.response
        for text in recording.deltas or ((response.text,) if response is not None and response.text else ()):
            yield TextDelta(text=text)
        if recording.error is not None:
            raise _build_provider_error(recording.error)
        if response is None:
            what = f"the whole response to {_format_request(summary)} was read"
            self._cassette.fail(f"{what}, and only a part of it is recorded", [], [])
        yield response


def _build_tool_recording(
    tool: str, *, verify: bool, arguments: Mapping[str, Any], outcome: Any, redactor: Redactor
) -> ToolRecording:
    """Build the recording of what a handler returned or raised, redacted."""
    if isinstance(outcome, ToolError):
        outcome = ToolResult(
            error=Failure(code=outcome.code, message=outcome.message, retryable=bool(outcome.retryable))
        )
    elif isinstance(outcome, BaseException):
        raised = redactor.text(f"{type(outcome).__name__}: {outcome}")
        return ToolRecording(tool=tool, verify=verify, arguments=dict(arguments), raised=raised)
    if not isinstance(outcome, ToolResult):
        return ToolRecording(tool=tool, verify=verify, arguments=dict(arguments), output=redactor.value(outcome))
    error = outcome.error
    if error is not None:
        error = Failure(code=error.code, message=redactor.text(error.message), retryable=error.retryable)
    metadata = redactor.value(outcome.metadata)
    return ToolRecording(
        tool=tool,
        verify=verify,
        arguments=dict(arguments),
        output=UNSET if error is not None and outcome.output is None else redactor.value(outcome.output),
        error=error,
        metadata=cast(dict[str, Any], metadata) if isinstance(metadata, dict) else {},
        control=outcome.control,
        media=tuple(outcome.media),
    )


def _return_recorded(recording: ToolRecording) -> Any:
    """Return what the handler returned, or raise what it raised."""
    if recording.raised is not None:
        raise RuntimeError(f"{recording.raised} (as recorded)")
    output = (
        None if recording.output is UNSET else json.loads(json.dumps(recording.output))
    )  # A copy: the caller may change it.
    if recording.error is not None and output is None and not recording.metadata and recording.control is None:
        raise ToolError(recording.error.message, code=recording.error.code, retryable=recording.error.retryable)
    if recording.error is None and not recording.metadata and recording.control is None and not recording.media:
        return output
    return ToolResult(
        output=output,
        error=recording.error,
        metadata=recording.metadata,
        control=recording.control,
        media=recording.media,
    )


def _build_model_recording(
    provider: str,
    request: RequestSummary,
    *,
    deltas: Sequence[str],
    outcome: ModelResponse | ProviderError | None,
    redactor: Redactor,
) -> ModelRecording:
    """Build the recording of a model's response or error, redacted."""
    text = "".join(deltas)
    redacted = redactor.text(text)
    # A secret may be spread over several deltas.
    recorded_deltas = tuple(deltas) if redacted == text else (redacted,)
    if isinstance(outcome, ProviderError):
        failure = ProviderFailure(
            kind=next(kind.__name__ for kind in type(outcome).__mro__ if kind.__name__ in PROVIDER_ERRORS),
            message=redactor.text(outcome.message),
            code=outcome.code,
            status=outcome.status,
            after=outcome.after,
        )
        return ModelRecording(provider=provider, request=request, deltas=recorded_deltas, error=failure)
    response = None if outcome is None else msgspec.convert(redactor.value(outcome), ModelResponse)
    return ModelRecording(provider=provider, request=request, deltas=recorded_deltas, response=response)


def _build_provider_error(failure: ProviderFailure) -> ProviderError:
    """Build the recorded error."""
    kind = PROVIDER_ERRORS[failure.kind]
    return kind(failure.message, code=failure.code, status=failure.status, after=failure.after)


def _is_json(value: Any) -> bool:
    if isinstance(value, Iterator | AsyncIterator) or inspect.isawaitable(value):
        return False  # Encoding would consume it.
    try:
        compact_json(value)
    except ValueError:
        return False
    return True


def _format_list(recordings: Iterable[ToolRecording | ModelRecording]) -> str:
    names = list(dict.fromkeys(map(_format_recording, recordings)))
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _format_recording(recording: ToolRecording | ModelRecording) -> str:
    if isinstance(recording, ModelRecording):
        return _format_request(recording.request)
    arguments = shorten(canonical_json(recording.arguments), 200)
    return f"{recording.tool}({'verify: ' if recording.verify else ''}{arguments})"


def _format_request(summary: RequestSummary) -> str:
    return f"{shorten(summary.last)!r} (message {summary.messages}; {summary.digest[:8]})"
