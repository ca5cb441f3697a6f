"""What is in the file of a cassette: what tools and models answered, readable, and without what must stay secret."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from handrail import errors
from handrail.core.redact import Redactor
from handrail.core.text import canonical_json
from handrail.core.values import Control, Failure, ToolResult
from handrail.errors import ConfigError, ProviderError, ToolError, shorten
from handrail.providers.messages import AssistantMessage, Message, ToolMessage
from handrail.providers.provider import ModelRequest, ModelResponse

VERSION: Final = 1
_PASSES: Final = 5

PROVIDER_ERRORS: Final = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ProviderError)
}
"""The kinds of failure that a file can name."""


class ToolTake(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a tool answered once."""

    tool: str
    verify: bool = False
    """Whether it was asked what became of a call, not to run."""
    arguments: dict[str, Any]
    """With their defaults, redacted: what the next call is compared with."""
    output: Any | UnsetType = UNSET
    error: Failure | None = None
    raised: str | None = None
    """An exception that says nothing to a model."""
    metadata: dict[str, Any] = {}
    control: Control | None = None


class Asked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to a model, in so far as it tells requests apart."""

    digest: str
    """Of all of it, redacted."""
    messages: int
    last: str
    """The end of the conversation, for people."""
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
            raise ValueError(f"`{shorten(self.kind)}` is no kind of ProviderError")


class ModelTake(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a model answered once. With neither a reply nor an error it was broken off by the test."""

    provider: str = ""
    request: Asked
    pieces: tuple[str, ...] = ()
    """The words as they came, where they came one by one."""
    reply: ModelResponse | None = None
    error: ProviderFailure | None = None


class Tape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that one test recorded."""

    version: int = VERSION
    tools: tuple[ToolTake, ...] = ()
    """By name and arguments; equal calls in the order in which they were made."""
    models: tuple[ModelTake, ...] = ()
    """In the order in which they were asked."""


def load(path: Path) -> Tape:
    """What a file holds; an empty tape if there is none."""
    try:
        read: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Tape()
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    version = cast(dict[str, Any], read).get("version") if isinstance(read, dict) else None
    if version != VERSION:
        raise _unreadable(path, f"it has the version {shorten(repr(version))}, and this Handrail reads {VERSION}")
    try:
        return msgspec.convert(read, Tape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error


def save(path: Path, tape: Tape) -> None:
    """Replace a file in one step: who reads it meanwhile reads the old one or the new one."""
    text = json.dumps(msgspec.to_builtins(tape), indent=2, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(f"{text}\n", encoding="utf-8", newline="\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _unreadable(path: Path, problem: str) -> ConfigError:
    return ConfigError(
        f"The cassette {path} cannot be read: {problem}. Repair it, or record it again: pytest --cassette=record"
    )


def comparable(value: Any, redactor: Redactor) -> Any:
    """A JSON value as it is compared: redacted, with sorted keys."""
    return json.loads(canonical_json(_steady(redactor.value, value)))


def _steady(redact: Callable[[Any], Any], value: Any) -> Any:
    """What is left when nothing more is taken out: a replay starts from what is redacted already."""
    for _ in range(_PASSES):
        before, value = value, redact(value)
        if value == before:
            break
    return value


# Tools.


def tool_take(tool: str, *, verify: bool, arguments: Mapping[str, Any], outcome: Any, redactor: Redactor) -> ToolTake:
    """What a handler returned or raised, as it may be written."""
    if isinstance(outcome, ToolError):
        outcome = ToolResult(
            error=Failure(code=outcome.code, message=outcome.message, retryable=bool(outcome.retryable))
        )
    elif isinstance(outcome, BaseException):
        raised = redactor.text(f"{type(outcome).__name__}: {outcome}")
        return ToolTake(tool=tool, verify=verify, arguments=dict(arguments), raised=raised)
    if not isinstance(outcome, ToolResult):
        return ToolTake(tool=tool, verify=verify, arguments=dict(arguments), output=redactor.value(outcome))
    error = outcome.error
    if error is not None:
        error = Failure(code=error.code, message=redactor.text(error.message), retryable=error.retryable)
    metadata = redactor.value(outcome.metadata)
    return ToolTake(
        tool=tool,
        verify=verify,
        arguments=dict(arguments),
        output=UNSET if error is not None and outcome.output is None else redactor.value(outcome.output),
        error=error,
        metadata=cast(dict[str, Any], metadata) if isinstance(metadata, dict) else {},
        control=outcome.control,
    )


def played(take: ToolTake) -> Any:
    """Answer as the handler did: return what it returned, or raise what it raised."""
    if take.raised is not None:
        raise RuntimeError(f"{take.raised} (as recorded)")
    output = None if take.output is UNSET else json.loads(json.dumps(take.output))  # A copy: who gets it may change it.
    if take.error is not None and output is None and not take.metadata and take.control is None:
        raise ToolError(take.error.message, code=take.error.code, retryable=take.error.retryable)
    if take.error is None and not take.metadata and take.control is None:
        return output
    return ToolResult(output=output, error=take.error, metadata=take.metadata, control=take.control)


# Models.


def asked(request: ModelRequest, redactor: Redactor) -> Asked:
    """What tells a request from another: the ids of calls do not, nor does what an API said in its own words."""
    messages = [_message(message, redactor) for message in request.messages]
    choice = request.tool_choice
    whole = {
        "messages": messages,
        "instructions": _steady(redactor.text, request.instructions),
        "tools": [[tool.name, redactor.value(tool.input_schema)] for tool in request.tools],
        "choice": [choice.mode, choice.tool, list(choice.allowed)],
        "schema": redactor.value(request.schema),
        "max_tokens": request.max_tokens,
    }
    return Asked(
        digest=sha256(canonical_json(whole).encode()).hexdigest()[:32],
        messages=len(messages),
        last=shorten(" ".join(map(str, messages[-1])) if messages else "", 200),
        tools=tuple(tool.name for tool in request.tools),
    )


def _message(message: Message, redactor: Redactor) -> Sequence[Any]:
    if isinstance(message, AssistantMessage):
        calls = [[call.name, _steady(redactor.text, call.arguments_json)] for call in message.calls]
        return "assistant", _steady(redactor.text, message.text), calls
    if isinstance(message, ToolMessage):
        return "tool", [[one.tool_name, _steady(redactor.text, one.for_model())] for one in message.results]
    return "user", _steady(redactor.text, message.text)


def model_take(
    provider: str,
    request: Asked,
    *,
    pieces: Sequence[str],
    outcome: ModelResponse | ProviderError | None,
    redactor: Redactor,
) -> ModelTake:
    """What a model answered, as it may be written."""
    said = "".join(pieces)
    clean = redactor.text(said)
    # What is hidden may have come in several pieces.
    shown = tuple(pieces) if clean == said else (clean,)
    if isinstance(outcome, ProviderError):
        failure = ProviderFailure(
            kind=next(kind.__name__ for kind in type(outcome).__mro__ if kind.__name__ in PROVIDER_ERRORS),
            message=redactor.text(outcome.message),
            code=outcome.code,
            status=outcome.status,
            after=outcome.after,
        )
        return ModelTake(provider=provider, request=request, pieces=shown, error=failure)
    reply = None if outcome is None else msgspec.convert(redactor.value(outcome), ModelResponse)
    return ModelTake(provider=provider, request=request, pieces=shown, reply=reply)


def provider_error(failure: ProviderFailure) -> ProviderError:
    """The error again."""
    kind = PROVIDER_ERRORS[failure.kind]
    return kind(failure.message, code=failure.code, status=failure.status, after=failure.after)
