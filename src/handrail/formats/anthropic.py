"""Anthropic Messages."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.formats.definitions import (
    Definitions,
    Diagnostic,
    Mode,
    Wired,
    assemble,
    decoded,
    fitted_name,
    plain_object,
    read,
    unfinished,
    wanted,
)
from handrail.schema import strict
from handrail.schema.tidy import subschemas

if TYPE_CHECKING:
    from anthropic.types import MessageParam, ToolChoiceParam, ToolParam, ToolResultBlockParam

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_CUT: Final = ("max_tokens", "model_context_window_exceeded")
_MOST_STRICT = {"strict tools": 20, "optional parameters": 24, "parameters with unions": 16}


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[ToolParam]":
    """Definitions for `tools=`. A request has a budget for strictness; tools beyond it go out non-strict."""
    definitions = assemble(pool, dialect="anthropic", wire=_wire)
    spent = dict.fromkeys(_MOST_STRICT, 0)
    for position, definition in enumerate(definitions):
        if not definition.get("strict"):
            continue
        cost = _cost(definition["input_schema"])
        over = [what for what, most in _MOST_STRICT.items() if spent[what] + cost[what] > most]
        if over:
            definitions[position] = {key: value for key, value in definition.items() if key != "strict"}
            text = f"goes out non-strict: a request takes at most {_MOST_STRICT[over[0]]} {over[0]}"
            definitions.notes += (Diagnostic(tool=definition["name"], text=text),)
        else:
            spent = {what: spent[what] + cost[what] for what in spent}
    return definitions


def _wire(tool: Tool[..., Any]) -> Wired:
    name, notes = fitted_name(tool.name, allowed=_NAME, limit=128)
    schema = plain_object(tool)
    definition: dict[str, Any] = {"name": name, "description": tool.description, "input_schema": schema}
    if tool.strict:
        try:
            lowered = strict.lower(schema, strict.ANTHROPIC)
        except strict.NotRepresentable as reason:
            notes += (f"goes out non-strict: {reason}",)
        else:
            definition |= {"input_schema": lowered.schema, "strict": True}
            notes += tuple(f"checked here only: {one}" for one in lowered.lost)
    if tool.examples:
        definition["input_examples"] = [dict(example) for example in tool.examples]
    return Wired(name=name, definition=definition, notes=notes)


def _cost(schema: dict[str, Any]) -> dict[str, int]:
    every = [schema, *(child for _, child in subschemas(schema))]
    optional = sum(len(one.get("properties", {})) - len(one.get("required", [])) for one in every)
    unions = sum("anyOf" in one or isinstance(one.get("type"), list) for one in every)
    return {"strict tools": 1, "optional parameters": optional, "parameters with unions": unions}


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a message, or in the collected events of a stream."""
    if isinstance(response, list | tuple):
        return decoded(_from_events(cast(Sequence[Any], response)), definitions)
    blocks = read(response, "content") or ()
    cut = read(response, "stop_reason") in _CUT
    found: list[ToolCall] = []
    for position, block in enumerate(blocks, start=1):
        if read(block, "type") == "tool_use":
            text = compact_json(read(block, "input") or {})
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
        index: int = read(event, "index", 0)
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
            text = texts.get(index) or compact_json(read(block, "input") or {})
            last = index == max(blocks)
            whole = index in stopped and not (last and (stop_reason is None or stop_reason in _CUT))
            found.append(_call(block, text if whole else unfinished(text), response_id))
    return found


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> "list[MessageParam]":
    """The answers, all in one `user` message, failures marked as such."""
    blocks: list[ToolResultBlockParam] = []
    for one in results:
        block: ToolResultBlockParam = {"type": "tool_result", "tool_use_id": one.call_id, "content": one.for_model()}
        if not one.ok:
            block["is_error"] = True
        blocks.append(block)
    return [{"role": "user", "content": blocks}] if blocks else []


def choice(
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
