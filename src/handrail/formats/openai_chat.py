"""OpenAI Chat Completions, and the many servers that speak it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.formats.definitions import Definitions, Mode, Wired, assemble, decoded, fitted_name, wanted
from handrail.formats.incoming import plain, read, unfinished
from handrail.formats.openai_schema import NAME, parameters
from handrail.formats.outgoing import with_examples

if TYPE_CHECKING:
    from openai.types.chat import (
        ChatCompletionFunctionToolParam,
        ChatCompletionMessageParam,
        ChatCompletionToolChoiceOptionParam,
        ChatCompletionToolMessageParam,
    )

_CUT: Final = ("length", "content_filter")


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[ChatCompletionFunctionToolParam]":
    """Definitions for `tools=`."""
    return assemble(pool, dialect="openai_chat", wire=_wire, most=128)


def _wire(tool: Tool[..., Any]) -> Wired:
    name, renamed = fitted_name(tool.name, allowed=NAME, limit=64)
    given = parameters(tool)
    function: dict[str, Any] = {"name": name, "description": with_examples(tool), "parameters": given.schema}
    if given.strict:
        function["strict"] = True
    return Wired(
        name=name,
        definition={"type": "function", "function": function},
        decode=given.decode,
        notes=renamed + given.notes,
    )


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a completion, in its message, or in the collected chunks of a stream."""
    if isinstance(response, list | tuple):
        return decoded(_from_chunks(cast(Sequence[Any], response)), definitions)
    choice = next(iter(read(response, "choices") or ()), None)
    message = response if choice is None else read(choice, "message")
    cut = choice is not None and _is_cut(read(choice, "finish_reason", "stop"))
    return decoded(_from_calls(read(message, "tool_calls") or (), cut=cut), definitions)


def _is_cut(finish_reason: str | None) -> bool:
    """Without a finish reason the answer was not complete when it was looked at."""
    return finish_reason is None or finish_reason in _CUT


def _from_calls(tool_calls: Sequence[Any], *, cut: bool) -> list[ToolCall]:
    found: list[ToolCall] = []
    for position, call in enumerate(tool_calls, start=1):
        function = read(call, "function")
        # A custom call has free text instead of JSON. No tool here takes it, but it has to be answered.
        name, text = (
            (read(function, "name"), read(function, "arguments"))
            if function is not None
            else (read(read(call, "custom"), "name"), read(read(call, "custom"), "input"))
        )
        # The last call may be half written, and one without any text may not have begun: calls come interleaved.
        text = unfinished(text or "") if cut and (position == len(tool_calls) or not text) else text
        found.append(ToolCall(id=read(call, "id") or "", name=name or "", arguments_json=text or ""))
    return found


def _from_chunks(chunks: Sequence[Any]) -> list[ToolCall]:
    """Put the pieces of a stream together; pieces belong together by their index."""
    parts: dict[int, list[dict[str, Any]]] = {}
    finish_reason: str | None = None
    for chunk in chunks:
        for choice in read(read(chunk, "chunk", chunk), "choices") or ():
            if read(choice, "index") or 0:
                continue
            finish_reason = read(choice, "finish_reason") or finish_reason
            for piece in read(read(choice, "delta"), "tool_calls") or ():
                _add(piece, parts.setdefault(read(piece, "index") or 0, []))
    return _from_calls([call for index in sorted(parts) for call in parts[index]], cut=_is_cut(finish_reason))


def _add(piece: Any, calls: list[dict[str, Any]]) -> None:
    # Some servers count no further than 0: a second id is a second call.
    if not calls or (calls[-1]["id"] and read(piece, "id") not in (None, "", calls[-1]["id"])):
        calls.append({"id": "", "function": {"name": "", "arguments": ""}})
    call, function = calls[-1], read(piece, "function")
    call["id"] = call["id"] or read(piece, "id") or ""
    call["function"]["name"] = call["function"]["name"] or read(function, "name") or ""
    call["function"]["arguments"] += read(function, "arguments") or ""


def results(
    results: Iterable[ToolResult], definitions: Sequence[Any] | None = None
) -> "list[ChatCompletionToolMessageParam]":
    """The answers, one `tool` message each."""
    return [{"role": "tool", "tool_call_id": one.call_id, "content": one.for_model()} for one in results]


def tool_choice(
    mode: Mode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "ChatCompletionToolChoiceOptionParam":
    """A value for `tool_choice=`: a mode, one tool, or a mode within the allowed tools."""
    want = wanted(mode, tool, allowed, definitions)
    if want.tool is not None:
        return {"type": "function", "function": {"name": want.tool}}
    if want.allowed and want.mode != "none":
        names: list[Mapping[str, object]] = [{"type": "function", "function": {"name": name}} for name in want.allowed]
        return cast(Any, {"type": "allowed_tools", "allowed_tools": {"mode": want.mode, "tools": names}})
    return want.mode


def assistant_messages(response: Any) -> "list[ChatCompletionMessageParam]":
    """What a completion, or the collected chunks of a stream, adds to the messages."""
    if isinstance(response, list | tuple):
        return [_message(cast(Sequence[Any], response))]
    choices = read(response, "choices")
    message = plain(response) if choices is None else plain(read(next(iter(choices), None), "message"))
    return [cast(Any, {key: value for key, value in message.items() if key != "parsed"})] if message else []


def _message(chunks: Sequence[Any]) -> Any:
    """The pieces of a stream as one message."""
    choices = [one for chunk in chunks for one in read(read(chunk, "chunk", chunk), "choices") or ()]
    deltas = [read(one, "delta") for one in choices if not read(one, "index")]
    message: dict[str, Any] = {"role": "assistant"}
    for name in ("content", "refusal"):
        if text := "".join(read(delta, name) or "" for delta in deltas):
            message[name] = text
    if calls := _from_chunks(chunks):
        message["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments_json}}
            for one in calls
        ]
    return message
