"""OpenAI Realtime: tools of a spoken session."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import structs

from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.formats import names
from handrail.formats.call_parsing import decode_calls, get_field, get_items, get_text
from handrail.formats.definition_parts import get_object_schema, render_description
from handrail.formats.definitions import Definitions, RenderedTool, ToolChoiceMode, build_definitions, check_tool_choice
from handrail.formats.openai_chat import to_non_strict
from handrail.formats.openai_responses import call_from_item

if TYPE_CHECKING:
    from openai.types.realtime import ConversationItemCreateEventParam, RealtimeFunctionToolParam
    from openai.types.realtime.realtime_tool_choice_config_param import RealtimeToolChoiceConfigParam


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[RealtimeFunctionToolParam]":
    """Definitions for the `tools` of a session or of one response. This API has no strict mode."""
    return build_definitions(pool, dialect="openai_realtime", render=_render_tool)


def _render_tool(tool: Tool[..., Any]) -> RenderedTool:
    name, renamed = names.fit_name(tool.name, names.OPENAI_RESPONSES)
    unstrict = ("is sent without strict mode: Realtime has no strict mode",) if tool.strict else ()
    return RenderedTool(
        name=name,
        definition={
            "type": "function",
            "name": name,
            "description": render_description(tool),
            "parameters": to_non_strict(get_object_schema(tool)),
        },
        notes=renamed + unstrict,
    )


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The completed calls in server events: one event or many, `response.output_item.done` or `response.done`.

    Arguments that are "done" also arrive for responses that were cancelled, so that only a completed item is a call.
    """
    events = cast(Sequence[Any], response) if isinstance(response, list | tuple) else (response,)
    item_names: dict[str, str] = {}
    found: dict[tuple[str, str], ToolCall] = {}
    for event in events:
        kind = get_field(event, "type")
        item = get_field(event, "item")
        if kind == "response.output_item.added" and get_field(item, "type") == "function_call":
            item_names[get_text(item, "id")] = get_text(item, "name")
        elif kind == "response.output_item.done":
            _add_call(found, item, get_field(event, "response_id"), item_names)
        elif kind == "response.done":
            whole = get_field(event, "response")
            for member in get_items(whole, "output"):
                _add_call(found, member, get_field(whole, "id"), item_names)
    return decode_calls(found.values(), definitions)


def _add_call(found: dict[tuple[str, str], ToolCall], item: Any, response_id: Any, item_names: dict[str, str]) -> None:
    if get_field(item, "type") != "function_call" or get_field(item, "status") != "completed":
        return
    call = call_from_item(item, response_id)
    if not call.name:
        # Older servers send the name only when the item is added.
        call = structs.replace(call, name=item_names.get(call.item_id or "", ""))
    # One item arrives twice, alone and in its response; without any id it cannot be recognised, and gets two results.
    key = (call.id, call.item_id or "") if call.id or call.item_id else ("", f"#{len(found)}")
    found.setdefault(key, call)


def results(
    results: Iterable[ToolResult], definitions: Sequence[Any] | None = None
) -> "list[ConversationItemCreateEventParam]":
    """Render each result as a client event. The session requests the response."""
    return [
        {
            "type": "conversation.item.create",
            "item": {"type": "function_call_output", "call_id": result.wire_id, "output": result.for_model()},
        }
        for result in results
    ]


def tool_choice(
    mode: ToolChoiceMode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "RealtimeToolChoiceConfigParam":
    """A value for `tool_choice`: a mode or one tool."""
    want = check_tool_choice(mode, tool, allowed, definitions)
    if want.allowed:
        raise ConfigError("Realtime cannot limit a choice to some tools; send only those tools instead.")
    if want.tool is not None:
        return {"type": "function", "name": want.tool}
    return want.mode


def assistant_messages(response: Any) -> list[dict[str, Any]]:
    """Return nothing: the session keeps the history."""
    return []
