"""OpenAI Chat Completions, and the many servers that speak it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.formats import names
from handrail.formats.call_parsing import build_call, decode_calls, get_field, get_index, get_items, get_text, to_plain
from handrail.formats.definition_parts import add_properties, get_object_schema, render_description
from handrail.formats.definitions import Definitions, RenderedTool, ToolChoiceMode, build_definitions, check_tool_choice
from handrail.formats.names import Decode
from handrail.schema import strict_schema
from handrail.schema.schema_nodes import get_types
from handrail.schema.subschemas import map_children

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
        return decode_calls(_calls_from_chunks(cast(Sequence[Any], response)), definitions)
    choice = next(iter(get_items(response, "choices")), None)
    message = response if choice is None else get_field(choice, "message")
    is_cut = choice is not None and _is_cut(get_field(choice, "finish_reason", "stop"))
    response_id = None if choice is None else get_field(response, "id")
    found = _build_calls(get_items(message, "tool_calls"), response_id=response_id, is_cut=is_cut)
    return decode_calls(found, definitions)


def _is_cut(finish_reason: Any) -> bool:
    """Whether the response is incomplete: it has no finish reason, or one that says so."""
    return finish_reason is None or finish_reason in _CUT_FINISH_REASONS


def _build_calls(tool_calls: Sequence[Any], *, response_id: Any, is_cut: bool) -> list[ToolCall]:
    found: list[ToolCall] = []
    for position, call in enumerate(tool_calls, start=1):
        function, custom = get_field(call, "function"), get_field(call, "custom")
        # A custom call has free text instead of JSON. No tool here accepts it, but it needs a result.
        source, field = (custom, "input") if function is None and custom is not None else (function, "arguments")
        arguments = get_field(source, field)
        found.append(
            build_call(
                id=get_field(call, "id"),
                name=get_field(source, "name"),
                arguments=arguments,
                response_id=response_id,
                # The last call may be half written, and one without text may not have begun: calls come interleaved.
                is_complete=not (is_cut and (position == len(tool_calls) or not arguments)),
            )
        )
    return found


def _calls_from_chunks(chunks: Sequence[Any]) -> list[ToolCall]:
    """The calls in the chunks of a stream; deltas belong to a call by its index."""
    parts: dict[int, list[dict[str, Any]]] = {}
    finish_reason: Any = None
    response_id: Any = None
    for chunk in chunks:
        chunk = get_field(chunk, "chunk", chunk)
        response_id = response_id or get_field(chunk, "id")
        for choice in get_items(chunk, "choices"):
            if get_index(choice, "index"):
                continue
            finish_reason = get_field(choice, "finish_reason") or finish_reason
            for delta in get_items(get_field(choice, "delta"), "tool_calls"):
                _add_delta(delta, parts.setdefault(get_index(delta, "index"), []))
    tool_calls = [call for index in sorted(parts) for call in parts[index]]
    for call in tool_calls:
        call["function"]["arguments"] = "".join(call["function"]["arguments"])
    return _build_calls(tool_calls, response_id=response_id, is_cut=_is_cut(finish_reason))


def _add_delta(delta: Any, calls: list[dict[str, Any]]) -> None:
    id_ = get_text(delta, "id")
    # Some servers send index 0 for every call: a second id is a second call.
    if not calls or (calls[-1]["id"] and id_ not in ("", calls[-1]["id"])):
        calls.append({"id": "", "function": {"name": "", "arguments": list[str]()}})
    call, function = calls[-1], get_field(delta, "function")
    call["id"] = call["id"] or id_
    call["function"]["name"] = call["function"]["name"] or get_text(function, "name")
    call["function"]["arguments"].append(get_text(function, "arguments"))


def results(
    results: Iterable[ToolResult], definitions: Sequence[Any] | None = None
) -> "list[ChatCompletionToolMessageParam]":
    """Render each result as a `tool` message."""
    return [{"role": "tool", "tool_call_id": result.wire_id, "content": result.for_model()} for result in results]


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
    choices = [item for chunk in chunks for item in get_field(get_field(chunk, "chunk", chunk), "choices") or ()]
    deltas = [get_field(choice, "delta") for choice in choices if not get_field(choice, "index")]
    message: dict[str, Any] = {"role": "assistant"}
    for name in ("content", "refusal"):
        if text := "".join(get_field(delta, name) or "" for delta in deltas):
            message[name] = text
    if calls := _calls_from_chunks(chunks):
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in calls
        ]
    return message


class Parameters(Struct, frozen=True, kw_only=True):
    """A tool's schema, rendered for OpenAI."""

    schema: dict[str, Any]
    strict: bool
    decode: Decode | None = None
    notes: tuple[str, ...] = ()


def build_parameters(tool: Tool[..., Any]) -> Parameters:
    """Render the schema, in strict mode if the tool asks for it and strict mode can represent the schema."""
    schema = get_object_schema(tool)
    if not tool.strict:
        return Parameters(schema=to_non_strict(schema), strict=False)
    try:
        lowered = strict_schema.lower(schema, strict_schema.OPENAI)
    except strict_schema.NotRepresentable as reason:
        return Parameters(schema=to_non_strict(schema), strict=False, notes=(f"is sent without strict mode: {reason}",))
    return Parameters(
        schema=lowered.schema,
        strict=True,
        decode=lowered.decode,
        notes=(*(f"checked here only: {constraint}" for constraint in lowered.lost), *lowered.closed_notes),
    )


def to_non_strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a non-strict tool. Every array gets `items`, which the API requires."""

    def add_items(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        copy = map_children(cast(dict[str, Any], node), lambda _, child: add_items(child))
        return {**copy, "items": {}} if "items" not in copy and "array" in (get_types(copy) or ()) else copy

    return add_properties(add_items(schema))
