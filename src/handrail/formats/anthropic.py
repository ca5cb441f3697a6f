"""Anthropic Messages."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError, InvalidArgumentsError, ToolDefinitionError, shorten
from handrail.formats.definitions import Definitions, Diagnostic, Mode, Wired, assemble, decoded, fitted_name, wanted
from handrail.formats.incoming import object_of, plain, read, text_of, unfinished
from handrail.formats.outgoing import Renamed, fitted_parameters, plain_object, rendered, with_properties
from handrail.schema import strict
from handrail.schema.raw import RawSchema
from handrail.schema.tidy import subschemas

if TYPE_CHECKING:
    from anthropic.types import MessageParam, ToolChoiceParam, ToolParam, ToolResultBlockParam

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_PARAMETER: Final = re.compile(r"[a-zA-Z0-9_.-]+")
_WHOLE: Final = ("tool_use", "end_turn", "pause_turn")
"""The stop reasons of a message whose last block is complete."""
MOST_STRICT: Final = {"strict tools": 20, "optional parameters": 24, "parameters with unions": 16}
_LOST: Final = "checked here only: "


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[ToolParam]":
    """Definitions for `tools=`. A request has a budget for strictness; tools beyond it go out non-strict."""
    definitions = assemble(pool, dialect="anthropic", wire=_wire)
    spent = dict.fromkeys(MOST_STRICT, 0)
    for position, definition in enumerate(definitions):
        tool, wired = definitions.behind(definition["name"])
        if wired.loose is None:
            continue
        price = cost(definition["input_schema"])
        over = [what for what, most in MOST_STRICT.items() if spent[what] + price[what] > most]
        if over:
            definitions[position] = {**wired.loose}
            text = f"goes out non-strict: a request takes at most {MOST_STRICT[over[0]]} {over[0]}"
            true_still = [one for one in definitions.notes if one.tool != tool or not one.text.startswith(_LOST)]
            definitions.notes = (*true_still, Diagnostic(tool=tool, text=text))
        else:
            spent = {what: spent[what] + price[what] for what in spent}
    return definitions


def _wire(tool: Tool[..., Any]) -> Wired:
    name, notes = fitted_name(tool.name, allowed=_NAME, limit=128)
    schema = plain_object(tool)
    loose = fitted_parameters(with_properties(schema), allowed=_PARAMETER, limit=64)
    definition, left_out = _definition(tool, name, loose)
    notes += loose.notes
    if tool.strict:
        try:
            lowered = strict.lower(schema, strict.ANTHROPIC)
        except strict.NotRepresentable as reason:
            notes += (f"goes out non-strict: {reason}",)
        else:
            tight = fitted_parameters(lowered.schema, allowed=_PARAMETER, limit=64)
            strictly, left_out = _definition(tool, name, tight)
            return Wired(
                name=name,
                definition={**strictly, "strict": True},
                loose=definition,
                decode=tight.back(lowered.decode),
                notes=(*notes, *left_out, *(f"{_LOST}{one}" for one in lowered.lost)),
            )
    return Wired(name=name, definition=definition, decode=loose.back(None), notes=notes + left_out)


def _definition(tool: Tool[..., Any], name: str, renamed: Renamed) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The definition around a schema, and what was left out of it: the API refuses an example that does not fit."""
    definition: dict[str, Any] = {"name": name, "description": tool.description, "input_schema": renamed.schema}
    examples: list[Any] = []
    left_out: tuple[str, ...] = ()
    for text in map(compact_json, tool.examples):
        example = renamed.forth(json.loads(text))
        try:
            RawSchema(renamed.schema).check(example)
            examples.append(example)
        except (InvalidArgumentsError, ToolDefinitionError):
            left_out += (f"the example {shorten(text)} is left out: it does not fit the schema",)
    return definition | ({"input_examples": examples} if examples else {}), left_out


def cost(schema: dict[str, Any]) -> dict[str, int]:
    """What a strict schema takes of a request's budget."""
    every = [schema, *(child for _, child in subschemas(schema))]
    optional = sum(len(one.get("properties", {})) - len(one.get("required", [])) for one in every)
    unions = sum("anyOf" in one or isinstance(one.get("type"), list) for one in every)
    return {"strict tools": 1, "optional parameters": optional, "parameters with unions": unions}


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a message, or in the collected events of a stream."""
    if isinstance(response, list | tuple):
        return decoded(_from_events(cast(Sequence[Any], response)), definitions)
    blocks = read(response, "content") or ()
    cut = read(response, "stop_reason", "tool_use") not in _WHOLE
    found: list[ToolCall] = []
    for position, block in enumerate(blocks, start=1):
        if read(block, "type") == "tool_use":
            text = text_of(read(block, "input"))
            text = unfinished(text) if cut and position == len(blocks) else text
            found.append(_call(block, text, read(response, "id")))
    return decoded(found, definitions)


def _call(block: Any, text: str, response_id: str | None) -> ToolCall:
    return ToolCall(
        id=read(block, "id") or "", name=read(block, "name") or "", arguments_json=text, response_id=response_id
    )


def _from_events(events: Sequence[Any]) -> list[ToolCall]:
    """Put the pieces of a stream together; pieces belong together by the index of their block."""
    blocks: dict[int, Any] = {}
    texts: dict[int, str] = {}
    stopped: set[int] = set()
    response_id: str | None = None
    stop_reason: str | None = None
    for event in events:
        index: int = read(event, "index") or 0
        match read(event, "type"):
            case "message_start":
                response_id = read(read(event, "message"), "id")
            case "content_block_start":
                blocks[index] = read(event, "content_block")
            case "content_block_delta":
                texts[index] = texts.get(index, "") + (read(read(event, "delta"), "partial_json") or "")
            case "content_block_stop":
                stopped.add(index)
            case "message_delta":
                stop_reason = read(read(event, "delta"), "stop_reason") or stop_reason
            case _:
                pass
    found: list[ToolCall] = []
    for index, block in sorted(blocks.items()):
        if read(block, "type") == "tool_use":
            text = texts.get(index) or text_of(read(block, "input"))
            last = index == max(blocks)
            whole = index in stopped and not (last and stop_reason not in _WHOLE)
            found.append(_call(block, text if whole else unfinished(text), response_id))
    return found


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> "list[MessageParam]":
    """The answers, all in one `user` message, failures marked as such."""
    blocks: list[ToolResultBlockParam] = []
    for one in results:
        text, failed = rendered(one)
        block: ToolResultBlockParam = {"type": "tool_result", "tool_use_id": one.call_id, "content": text}
        if failed:
            block["is_error"] = True
        blocks.append(block)
    return [{"role": "user", "content": blocks}] if blocks else []


def tool_choice(
    mode: Mode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "ToolChoiceParam":
    """A value for `tool_choice=`: a mode or one tool."""
    want = wanted(mode, tool, allowed, definitions)
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
        content = _content(cast(Sequence[Any], response))
    else:
        content = [plain(block) for block in read(response, "content") or ()]
    return [{"role": "assistant", "content": content}] if content else []


def _content(events: Sequence[Any]) -> list[Any]:
    """The pieces of a stream as blocks."""
    blocks: dict[int, dict[str, Any]] = {}
    texts: dict[int, str] = {}
    for event in events:
        index: int = read(event, "index") or 0
        delta = read(event, "delta")
        if read(event, "type") == "content_block_start":
            blocks[index] = dict(plain(read(event, "content_block")))
        elif read(event, "type") == "content_block_delta" and index in blocks:
            texts[index] = texts.get(index, "") + (read(delta, "partial_json") or "")
            for name in ("text", "thinking", "signature"):
                if (piece := read(delta, name)) is not None:
                    blocks[index][name] = (blocks[index].get(name) or "") + piece
    for index, text in texts.items():
        if str(blocks[index].get("type")).endswith("tool_use") and text:  # Also a server's own.
            blocks[index]["input"] = object_of(text)
    return [block for _, block in sorted(blocks.items())]
