"""The file format of a cassette: the recorded results of tools and responses of models, redacted."""

import json
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from handrail import errors
from handrail.core.media import MediaPart
from handrail.core.redact import Redactor
from handrail.core.text import canonical_json
from handrail.core.values import Control, Failure
from handrail.errors import ConfigError, ProviderError, shorten
from handrail.providers.messages import AssistantMessage, Message, ToolMessage
from handrail.providers.provider import ModelRequest, ModelResponse

VERSION: Final = 1
_MAX_PASSES: Final = 5

PROVIDER_ERRORS: Final = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ProviderError)
}
"""The errors that a file can name."""


class ToolRecording(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One result of a tool."""

    tool: str
    verify: bool = False
    """Whether `verify` was called instead of the handler."""
    arguments: dict[str, Any]
    """With defaults, redacted. A call is compared with them."""
    output: Any | UnsetType = UNSET
    error: Failure | None = None
    raised: str | None = None
    """The type and message of an exception that is not a `ToolError`."""
    metadata: dict[str, Any] = {}
    control: Control | None = None
    media: tuple[MediaPart, ...] = ()
    """With its bytes, as base64 text: a replay returns them."""


class RequestSummary(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What identifies a request to a model."""

    digest: str
    """Of the whole request, redacted."""
    messages: int
    last: str
    """The last message, for people who read the file."""
    tools: tuple[str, ...] = ()


class ProviderFailure(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A `ProviderError` as data."""

    kind: str
    message: str
    code: str
    status: int | None = None
    after: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in PROVIDER_ERRORS:
            raise ValueError(f"unknown kind of ProviderError: {shorten(self.kind)!r}")


class ModelRecording(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One response of a model. Without a response or an error, the test stopped reading the stream."""

    provider: str = ""
    request: RequestSummary
    deltas: tuple[str, ...] = ()
    """The text as it was streamed, if it was."""
    response: ModelResponse | None = None
    error: ProviderFailure | None = None


class Recordings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that one test recorded."""

    version: int = VERSION
    tools: tuple[ToolRecording, ...] = ()
    """Sorted by name and arguments; equal calls in the order in which they were made."""
    models: tuple[ModelRecording, ...] = ()
    """In the order of the requests."""


def load_recordings(path: Path) -> Recordings:
    """Load a file; return no recordings if there is none."""
    try:
        content: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Recordings()
    except (OSError, ValueError, RecursionError) as error:
        raise _build_read_error(path, str(error)) from error
    version = cast(dict[str, Any], content).get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise _build_read_error(path, f"version must be {VERSION}, got {shorten(repr(version))}")
    try:
        return msgspec.convert(content, Recordings)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _build_read_error(path, str(error)) from error


def save_recordings(path: Path, recordings: Recordings) -> None:
    """Replace a file atomically."""
    text = json.dumps(msgspec.to_builtins(recordings), indent=2, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(f"{text}\n", encoding="utf-8", newline="\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _build_read_error(path: Path, problem: str) -> ConfigError:
    return ConfigError(
        f"the cassette {path} cannot be read: {problem}. Repair it, or record it again: pytest --cassette=record"
    )


def normalize(value: Any, redactor: Redactor) -> Any:
    """Return a JSON value in the form that is compared: redacted, with sorted keys."""
    return json.loads(canonical_json(_redact_fully(redactor.value, value)))


def _redact_fully(redact: Callable[[Any], Any], value: Any) -> Any:
    """Redact until nothing changes, because a replay redacts what is redacted already."""
    for _ in range(_MAX_PASSES):
        before, value = value, redact(value)
        if value == before:
            break
    return value


def summarize_request(request: ModelRequest, redactor: Redactor) -> RequestSummary:
    """Summarize what identifies a request. Call ids and an API's native messages do not."""
    messages = [_summarize_message(message, redactor) for message in request.messages]
    choice = request.tool_choice
    content = {
        "messages": messages,
        "instructions": _redact_fully(redactor.text, request.instructions),
        "tools": [[tool.name, redactor.value(tool.input_schema)] for tool in request.tools],
        "choice": [choice.mode, choice.tool, list(choice.allowed)],
        "schema": redactor.value(request.schema),
        "max_tokens": request.max_tokens,
    }
    return RequestSummary(
        digest=sha256(canonical_json(content).encode()).hexdigest()[:32],
        messages=len(messages),
        last=shorten(" ".join(map(str, messages[-1])) if messages else "", 200),
        tools=tuple(tool.name for tool in request.tools),
    )


def _summarize_message(message: Message, redactor: Redactor) -> Sequence[Any]:
    if isinstance(message, AssistantMessage):
        calls = [[call.name, _redact_fully(redactor.text, call.arguments_json)] for call in message.calls]
        return "assistant", _redact_fully(redactor.text, message.text), calls
    if isinstance(message, ToolMessage):
        return "tool", [
            [
                result.tool_name,
                _redact_fully(redactor.text, result.for_model()),
                *(part.describe() for part in result.media),
            ]
            for result in message.results
        ]
    return "user", _redact_fully(redactor.text, message.text)
