"""OpenAI Chat Completions, and the many servers that speak it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.formats import names
from handrail.formats.definitions import Definitions, RenderedTool, ToolChoiceMode, build_definitions, check_tool_choice
from handrail.formats.openai_schema import build_parameters
from handrail.formats.parse import get_field, make_unparsable, to_plain
from handrail.formats.render import render_description

if TYPE_CHECKING:
    from openai.types.chat import (
        ChatCompletionFunctionToolParam,
        ChatCompletionMessageParam,
        ChatCompletionToolChoiceOptionParam,
        ChatCompletionToolMessageParam,
    )

_CUT_FINISH_REASONS: Final = ("length", "content_filter")


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[ChatCompletionFunctionToolParam]":
    """Definitions for `tools=`."""
    return build_definitions(pool, dialect="openai_chat", render=_render_tool, max_tools=128)


def _render_tool(tool: Tool[..., Any]) -> RenderedTool:
    name, renamed = names.fit_name(tool.name, names.OPENAI_CHAT)
    given = build_parameters(tool)
    function: dict[str, Any] = {"name": name, "description": render_description(tool), "parameters": given.schema}
    if given.strict:
        function["strict"] = True
    return RenderedTool(
        name=name,
        definition={"type": "function", "function": function},
        decode_arguments=given.decode,
        notes=renamed + given.notes,
    )


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a completion, in its message, or in the collected chunks of a stream."""
    if isinstance(response, list | tuple):
        return names.decode_calls(_calls_from_chunks(cast(Sequence[Any], response)), definitions)
    choice = next(iter(get_field(response, "choices") or ()), None)
    message = response if choice is None else get_field(choice, "message")
    cut = choice is not None and _is_cut(get_field(choice, "finish_reason", "stop"))
    return names.decode_calls(_build_calls(get_field(message, "tool_calls") or (), cut=cut), definitions)


def _is_cut(finish_reason: str | None) -> bool:
    """Without a finish reason the answer was not complete when it was looked at."""
    return finish_reason is None or finish_reason in _CUT_FINISH_REASONS


def _build_calls(tool_calls: Sequence[Any], *, cut: bool) -> list[ToolCall]:
    found: list[ToolCall] = []
    for position, call in enumerate(tool_calls, start=1):
        function = get_field(call, "function")
        # A custom call has free text instead of JSON. No tool here takes it, but it has to be answered.
        name, text = (
            (get_field(function, "name"), get_field(function, "arguments"))
            if function is not None
            else (get_field(get_field(call, "custom"), "name"), get_field(get_field(call, "custom"), "input"))
        )
        # The last call may be half written, and one without any text may not have begun: calls come interleaved.
        text = make_unparsable(text or "") if cut and (position == len(tool_calls) or not text) else text
        found.append(ToolCall(id=get_field(call, "id") or "", name=name or "", arguments_json=text or ""))
    return found


def _calls_from_chunks(chunks: Sequence[Any]) -> list[ToolCall]:
    """Put the pieces of a stream together; pieces belong together by their index."""
    parts: dict[int, list[dict[str, Any]]] = {}
    finish_reason: str | None = None
    for chunk in chunks:
        for choice in get_field(get_field(chunk, "chunk", chunk), "choices") or ():
            if get_field(choice, "index") or 0:
                continue
            finish_reason = get_field(choice, "finish_reason") or finish_reason
            for piece in get_field(get_field(choice, "delta"), "tool_calls") or ():
                _add_delta(piece, parts.setdefault(get_field(piece, "index") or 0, []))
    return _build_calls([call for index in sorted(parts) for call in parts[index]], cut=_is_cut(finish_reason))


def _add_delta(piece: Any, calls: list[dict[str, Any]]) -> None:
    # Some servers count no further than 0: a second id is a second call.
    if not calls or (calls[-1]["id"] and get_field(piece, "id") not in (None, "", calls[-1]["id"])):
        calls.append({"id": "", "function": {"name": "", "arguments": ""}})
    call, function = calls[-1], get_field(piece, "function")
    call["id"] = call["id"] or get_field(piece, "id") or ""
    call["function"]["name"] = call["function"]["name"] or get_field(function, "name") or ""
    call["function"]["arguments"] += get_field(function, "arguments") or ""


def results(
    results: Iterable[ToolResult], definitions: Sequence[Any] | None = None
) -> "list[ChatCompletionToolMessageParam]":
    """The answers, one `tool` message each."""
    return [{"role": "tool", "tool_call_id": one.call_id, "content": one.for_model()} for one in results]


def tool_choice(
    mode: ToolChoiceMode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "ChatCompletionToolChoiceOptionParam":
    """A value for `tool_choice=`: a mode, one tool, or a mode within the allowed tools."""
    want = check_tool_choice(mode, tool, allowed, definitions)
    if want.tool is not None:
        return {"type": "function", "function": {"name": want.tool}}
    if want.allowed and want.mode != "none":
        allowed_tools: list[Mapping[str, object]] = [
            {"type": "function", "function": {"name": name}} for name in want.allowed
        ]
        return cast(Any, {"type": "allowed_tools", "allowed_tools": {"mode": want.mode, "tools": allowed_tools}})
    return want.mode


def assistant_messages(response: Any) -> "list[ChatCompletionMessageParam]":
    """What a completion, or the collected chunks of a stream, adds to the messages."""
    if isinstance(response, list | tuple):
        return [_message_from_chunks(cast(Sequence[Any], response))]
    choices = get_field(response, "choices")
    message = to_plain(response) if choices is None else to_plain(get_field(next(iter(choices), None), "message"))
    return [cast(Any, {key: value for key, value in message.items() if key != "parsed"})] if message else []


def _message_from_chunks(chunks: Sequence[Any]) -> Any:
    """The pieces of a stream as one message."""
    choices = [one for chunk in chunks for one in get_field(get_field(chunk, "chunk", chunk), "choices") or ()]
    deltas = [get_field(one, "delta") for one in choices if not get_field(one, "index")]
    message: dict[str, Any] = {"role": "assistant"}
    for name in ("content", "refusal"):
        if text := "".join(get_field(delta, name) or "" for delta in deltas):
            message[name] = text
    if calls := _calls_from_chunks(chunks):
        message["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments_json}}
            for one in calls
        ]
    return message
