"""Anthropic Messages."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import to_builtins

from handrail.core.media import MediaPart
from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError, InvalidArgumentsError, ToolDefinitionError, shorten
from handrail.formats import names
from handrail.formats.call_parsing import (
    build_call,
    decode_calls,
    get_field,
    get_index,
    get_items,
    get_text,
    parse_object,
    to_json_text,
    to_plain,
)
from handrail.formats.definition_parts import PDF, add_properties, get_object_schema, render_result, select_media
from handrail.formats.definitions import (
    Definitions,
    Diagnostic,
    RenderedTool,
    ToolChoiceMode,
    build_definitions,
    check_tool_choice,
)
from handrail.schema import strict_schema
from handrail.schema.json_schema_arguments import RawSchema
from handrail.schema.subschemas import iter_subschemas

if TYPE_CHECKING:
    from anthropic.types import MessageParam, ToolChoiceParam, ToolParam, ToolResultBlockParam

_COMPLETE_STOP_REASONS: Final = ("tool_use", "end_turn", "pause_turn")
"""The stop reasons of a message whose last block is complete."""
_IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
STRICT_LIMITS: Final = {"strict tools": 20, "optional parameters": 24, "parameters with unions": 16}
_LOCAL_CHECK_NOTE: Final = "checked here only: "


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[ToolParam]":
    """Definitions for `tools=`. A request has a budget for strictness; tools beyond it go out non-strict."""
    definitions = build_definitions(pool, dialect="anthropic", render=_render_tool)
    spent = dict.fromkeys(STRICT_LIMITS, 0)
    for position, definition in enumerate(definitions):
        tool, wired = definitions.get_rendered(definition["name"])
        if wired.non_strict_definition is None:
            continue
        price = count_strict_cost(definition["input_schema"])
        over = [what for what, most in STRICT_LIMITS.items() if spent[what] + price[what] > most]
        if over:
            definitions[position] = to_builtins(wired.non_strict_definition)
            text = f"is sent without strict mode: a request takes at most {STRICT_LIMITS[over[0]]} {over[0]}"
            true_still = [
                note
                for note in definitions.notes
                if note.tool != tool or not note.text.startswith((_LOCAL_CHECK_NOTE, strict_schema.CLOSED_NOTE))
            ]
            definitions.notes = (*true_still, Diagnostic(tool=tool, text=text))
        else:
            spent = {what: spent[what] + price[what] for what in spent}
    return definitions


def _render_tool(tool: Tool[..., Any]) -> RenderedTool:
    name, notes = names.fit_name(tool.name, names.ANTHROPIC)
    schema = get_object_schema(tool)
    loose = names.fit_parameters(add_properties(schema), names.ANTHROPIC_PARAMETER)
    definition, left_out = _build_definition(tool, name, loose)
    notes += loose.notes
    if tool.strict:
        try:
            lowered = strict_schema.lower(schema, strict_schema.ANTHROPIC)
        except strict_schema.NotRepresentable as reason:
            notes += (f"is sent without strict mode: {reason}",)
        else:
            tight = names.fit_parameters(lowered.schema, names.ANTHROPIC_PARAMETER)
            strictly, left_out = _build_definition(tool, name, tight)
            return RenderedTool(
                name=name,
                definition={**strictly, "strict": True},
                non_strict_definition=definition,
                decode_arguments=tight.build_decoder(lowered.decode),
                notes=(
                    *notes,
                    *left_out,
                    *(f"{_LOCAL_CHECK_NOTE}{constraint}" for constraint in lowered.lost),
                    *lowered.closed_notes,
                ),
            )
    return RenderedTool(
        name=name, definition=definition, decode_arguments=loose.build_decoder(None), notes=notes + left_out
    )


def _build_definition(
    tool: Tool[..., Any], name: str, renamed: names.FittedParameters
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The definition around a schema, and what was left out of it: the API refuses an example that does not fit."""
    definition: dict[str, Any] = {"name": name, "description": tool.description, "input_schema": renamed.schema}
    examples: list[Any] = []
    left_out: tuple[str, ...] = ()
    for text in map(compact_json, tool.examples):
        example = renamed.encode(json.loads(text))
        try:
            RawSchema(renamed.schema).check(example)
            examples.append(example)
        except (InvalidArgumentsError, ToolDefinitionError):
            left_out += (f"the example {shorten(text)} is left out: it does not fit the schema",)
    return definition | ({"input_examples": examples} if examples else {}), left_out


def count_strict_cost(schema: dict[str, Any]) -> dict[str, int]:
    """What a strict schema takes of a request's budget."""
    every = [schema, *(child for _, child in iter_subschemas(schema))]
    optional = sum(len(node.get("properties", {})) - len(node.get("required", [])) for node in every)
    unions = sum("anyOf" in node or isinstance(node.get("type"), list) for node in every)
    return {"strict tools": 1, "optional parameters": optional, "parameters with unions": unions}


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a message, or in the collected events of a stream."""
    if isinstance(response, list | tuple):
        return decode_calls(_calls_from_events(cast(Sequence[Any], response)), definitions)
    blocks = get_items(response, "content")
    is_cut = get_field(response, "stop_reason", "tool_use") not in _COMPLETE_STOP_REASONS
    found = [
        _build_call(
            block,
            to_json_text(get_field(block, "input")),
            get_field(response, "id"),
            is_complete=not (is_cut and position == len(blocks)),
        )
        for position, block in enumerate(blocks, start=1)
        if get_field(block, "type") == "tool_use"
    ]
    return decode_calls(found, definitions)


def _build_call(block: Any, arguments: str, response_id: Any, *, is_complete: bool) -> ToolCall:
    return build_call(
        id=get_field(block, "id"),
        name=get_field(block, "name"),
        arguments=arguments,
        response_id=response_id,
        is_complete=is_complete,
    )


def _calls_from_events(events: Sequence[Any]) -> list[ToolCall]:
    """The calls in the events of a stream; deltas belong to a block by its index."""
    blocks: list[Any] = []
    texts: dict[int, list[str]] = {}
    stopped: set[int] = set()
    positions: dict[int, int] = {}
    """The position of the last block that was started under an index."""
    response_id: Any = None
    stop_reason: Any = None
    for event in events:
        index = get_index(event, "index")
        match get_field(event, "type"):
            case "message_start":
                response_id = get_field(get_field(event, "message"), "id")
            case "content_block_start":
                positions[index] = len(blocks)
                blocks.append(get_field(event, "content_block"))
            case "content_block_delta" if index in positions:
                text = get_text(get_field(event, "delta"), "partial_json")
                texts.setdefault(positions[index], []).append(text)
            case "content_block_stop" if index in positions:
                stopped.add(positions[index])
            case "message_delta":
                stop_reason = get_field(get_field(event, "delta"), "stop_reason") or stop_reason
            case _:
                pass
    found: list[ToolCall] = []
    for position, block in enumerate(blocks):
        if get_field(block, "type") == "tool_use":
            is_last = position == len(blocks) - 1
            is_complete = position in stopped and not (is_last and stop_reason not in _COMPLETE_STOP_REASONS)
            arguments = "".join(texts.get(position, ())) or to_json_text(get_field(block, "input"))
            found.append(_build_call(block, arguments, response_id, is_complete=is_complete))
    return found


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> "list[MessageParam]":
    """Render results as one `user` message, with failures marked."""
    blocks: list[ToolResultBlockParam] = []
    for result in results:
        media = select_media(result, images=_IMAGE_TYPES, files=(PDF,), with_uri=True) if result.media else ()
        text, failed = render_result(result, media)
        block: ToolResultBlockParam = {"type": "tool_result", "tool_use_id": result.wire_id, "content": text}
        if media and not failed:
            texts = [{"type": "text", "text": text}] if text else []
            block["content"] = cast(Any, [*texts, *map(_render_media, media)])
        if failed:
            block["is_error"] = True
        blocks.append(block)
    return [{"role": "user", "content": blocks}] if blocks else []


def _render_media(part: MediaPart) -> dict[str, Any]:
    source: dict[str, str] = {"type": "url", "url": part.uri or ""}
    if part.data is not None:
        source = {"type": "base64", "media_type": part.mime_type.lower(), "data": part.base64}
    block: dict[str, Any] = {"type": "image" if part.kind == "image" else "document", "source": source}
    return {**block, "title": part.name} if part.name and part.kind != "image" else block


def tool_choice(
    mode: ToolChoiceMode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "ToolChoiceParam":
    """A value for `tool_choice=`: a mode or one tool."""
    want = check_tool_choice(mode, tool, allowed, definitions)
    if want.allowed:
        raise ConfigError("Anthropic cannot limit a choice to some tools; send only those tools instead.")
    if want.tool is not None:
        return {"type": "tool", "name": want.tool}
    if want.mode == "required":
        return {"type": "any"}
    return {"type": "none"} if want.mode == "none" else {"type": "auto"}


def assistant_messages(response: Any) -> "list[MessageParam]":
    """What a message, or the collected events of a stream, adds to the messages."""
    if isinstance(response, list | tuple):
        content = _content_from_events(cast(Sequence[Any], response))
    else:
        content = [to_plain(block) for block in get_field(response, "content") or ()]
    return [{"role": "assistant", "content": content}] if content else []


def _content_from_events(events: Sequence[Any]) -> list[Any]:
    """The pieces of a stream as blocks."""
    blocks: dict[int, dict[str, Any]] = {}
    pieces: dict[tuple[int, str], list[str]] = {}
    for event in events:
        index: int = get_field(event, "index") or 0
        delta = get_field(event, "delta")
        if get_field(event, "type") == "content_block_start":
            blocks[index] = dict(to_plain(get_field(event, "content_block")))
        elif get_field(event, "type") == "content_block_delta" and index in blocks:
            for name in ("partial_json", "text", "thinking", "signature"):
                if (piece := get_field(delta, name)) is not None:
                    pieces.setdefault((index, name), []).append(piece)
    for (index, name), texts in pieces.items():
        block = blocks[index]
        if name != "partial_json":
            block[name] = "".join((block.get(name) or "", *texts))
        elif str(block.get("type")).endswith("tool_use") and (text := "".join(texts)):  # Also a server's own.
            block["input"] = parse_object(text)
    return [block for _, block in sorted(blocks.items())]
