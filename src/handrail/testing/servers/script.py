"""The script of a local server: replies in a form that is the same for every API."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedUsage:
    """The tokens that a reply claims to have used."""

    input: int = 10
    output: int = 5
    cached: int = 0
    """The input tokens that came from the prompt cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A tool call that the model asks for."""

    name: str
    arguments: str
    """JSON text, or any other text that the model wrote."""
    id: str | None = None
    """None: the server builds one from the number of the reply and the position of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """An error response."""

    status: int
    code: str | None = None
    """OpenAI's `code`, Anthropic's `type` (or `details.error_code`), Gemini's `status`. None: that of the status."""
    message: str = "The script asked for this error."
    kind: str | None = None
    """OpenAI's `type`; the others have no such field."""
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One response of the model."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    refusal: str | None = None
    truncated: bool = False
    """The response ends because the token limit was reached."""
    stop: str | None = None
    """The API's own stop reason, if it is not the one that follows from the other fields."""
    id: str | None = None
    usage: ScriptedUsage = field(default_factory=ScriptedUsage)
    cut_after: int | None = None
    """The number of events after which the stream is cut; a response without a stream is cut before its first byte."""
    cut_by: Literal["drop", "end"] | Error = "drop"
    """How the stream is cut: the connection closes, the stream ends normally, or an error event is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A response in the API's own format, for what a `Reply` cannot express."""

    body: Mapping[str, object]


class Options(TypedDict, total=False):
    """The options of every reply."""

    stop: str
    id: str
    usage: ScriptedUsage
    cut_after: int
    cut_by: Literal["drop", "end"] | Error


ScriptedArguments: TypeAlias = Mapping[str, object] | str
CallLike: TypeAlias = ScriptedCall | tuple[str, ScriptedArguments] | tuple[str, ScriptedArguments, str]
ServerResponse: TypeAlias = Reply | Raw | Error
ScriptedResponse: TypeAlias = ServerResponse | Callable[[dict[str, Any]], ServerResponse]


def text(content: str, **options: Unpack[Options]) -> Reply:
    """A response with text."""
    return Reply(text=content, **options)


def tool_calls(*calls: CallLike, **options: Unpack[Options]) -> Reply:
    """A response with tool calls, as `(name, arguments)` or `(name, arguments, id)`; arguments may be JSON text."""
    return Reply(calls=_calls(calls), **options)


def text_and_calls(content: str, *calls: CallLike, **options: Unpack[Options]) -> Reply:
    """A response with text and tool calls."""
    return Reply(text=content, calls=_calls(calls), **options)


def refusal(content: str, **options: Unpack[Options]) -> Reply:
    """A response in which the model refuses."""
    return Reply(refusal=content, **options)


def truncated(content: str = "", *calls: CallLike, **options: Unpack[Options]) -> Reply:
    """A response that the token limit cut, possibly in the middle of a call's arguments."""
    return Reply(text=content, calls=_calls(calls), truncated=True, **options)


def raw(body: Mapping[str, object]) -> Raw:
    """A response with this body. It cannot be streamed, and the server does not store its items."""
    return Raw(body=body)


def error(
    status: int,
    code: str | None = None,
    message: str = "The script asked for this error.",
    *,
    kind: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Error:
    """An error response; the default `code` follows from the status."""
    return Error(status=status, code=code, message=message, kind=kind, param=param, headers=headers or {})


def pieces(content: str, size: int) -> list[str]:
    """Split a text into chunks of at most `size` characters."""
    return [content[start : start + size] for start in range(0, len(content), size)]


def parse_arguments(call: ScriptedCall) -> dict[str, object] | None:
    """Parse the arguments of a call; None if they are not an object."""
    try:
        value: object = json.loads(call.arguments or "{}")
    except ValueError:
        return None
    return cast(dict[str, object], value) if isinstance(value, dict) else None


def _calls(calls: tuple[CallLike, ...]) -> tuple[ScriptedCall, ...]:
    return tuple(_call(call) for call in calls)


def _call(call: CallLike) -> ScriptedCall:
    if isinstance(call, ScriptedCall):
        return call
    name, arguments = call[0], call[1]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return ScriptedCall(name=name, arguments=arguments, id=call[2] if len(call) == 3 else None)
