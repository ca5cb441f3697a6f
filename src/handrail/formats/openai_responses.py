"""OpenAI Responses."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from handrail.core.media import MediaPart
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.formats import names
from handrail.formats.call_parsing import build_call, decode_calls, get_field, get_index, get_items, get_text, to_plain
from handrail.formats.definition_parts import PDF, render_description, select_media
from handrail.formats.definitions import Definitions, RenderedTool, ToolChoiceMode, build_definitions, check_tool_choice
from handrail.formats.openai_chat import build_parameters

if TYPE_CHECKING:
    from openai.types.responses import FunctionToolParam, ResponseInputItemParam
    from openai.types.responses.response_create_params import ToolChoice
    from openai.types.responses.response_input_param import FunctionCallOutput

FINAL_EVENTS: Final = (
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
    "response.done",
)
"""The stream events that hold the complete response."""
_IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")
_CUT_STATUSES: Final = ("incomplete", "failed", "cancelled", "in_progress")


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[FunctionToolParam]":
    """Definitions for `tools=`."""
    return build_definitions(pool, dialect="openai_responses", render=_render_tool)


def _render_tool(tool: Tool[..., Any]) -> RenderedTool:
    name, renamed = names.fit_name(tool.name, names.OPENAI_RESPONSES)
    given = build_parameters(tool)
    return RenderedTool(
        name=name,
        definition={
            "type": "function",
            "name": name,
            "description": render_description(tool),
            "parameters": given.schema,
            # Left out, it means "strict if possible", and the API would change the schema by itself.
            "strict": given.strict,
        },
        decode_arguments=given.decode,
        notes=renamed + given.notes,
    )


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a response, in its output items, or in the collected events of a stream."""
    if isinstance(response, list | tuple):
        items, response_id = _items_from_events(cast(Sequence[Any], response))
    else:
        items, response_id = _read_output(response), get_field(response, "id")
    found = [call_from_item(item, response_id) for item in items if get_field(item, "type") == "function_call"]
    return decode_calls(found, definitions)


def _read_output(response: Any) -> Sequence[Any]:
    """The items of a response. The last item of a response that was cut is incomplete, also if it has no status."""
    items = get_items(response, "output")
    if items and get_field(response, "status") in _CUT_STATUSES and get_field(items[-1], "status") is None:
        return [*items[:-1], _build_open_item(items[-1], get_field(items[-1], "arguments"))]
    return items


def _items_from_events(events: Sequence[Any]) -> tuple[Sequence[Any], Any]:
    """The output items in the events of a stream, or the items themselves."""
    items: list[Any] = []
    deltas: dict[int, list[str]] = {}
    """The arguments of items that are not done yet, by position; what comes after an item is done is ignored."""
    positions: dict[int, int] = {}
    """The position of the last item that was added under an output index."""
    response_id: Any = None
    for event in events:
        kind, index = get_field(event, "type"), get_index(event, "output_index", -1)
        if kind in FINAL_EVENTS:
            response = get_field(event, "response")
            if get_items(response, "output"):
                return _read_output(response), get_field(response, "id")
        elif kind == "response.created":
            response_id = get_field(get_field(event, "response"), "id")
        elif kind == "response.output_item.added":
            positions[index] = len(items)
            deltas[len(items)] = []
            items.append(_build_open_item(get_field(event, "item"), ""))
        elif kind == "response.function_call_arguments.delta" and positions.get(index) in deltas:
            deltas[positions[index]].append(get_text(event, "delta"))
        elif kind == "response.output_item.done":
            response_id = get_field(event, "response_id") or response_id
            item, position = get_field(event, "item"), positions.get(index)
            if position is not None and index != -1 and _is_same_item(items[position], item):
                items[position] = item
                deltas.pop(position, None)
            else:
                positions[index] = len(items)
                items.append(item)
        elif kind == "function_call":
            items.append(event)
    for position, texts in deltas.items():
        items[position]["arguments"] = "".join(texts)
    return items, response_id


def _is_same_item(known: Any, item: Any) -> bool:
    """Whether two items are one: equal ids, or no ids to compare."""
    pairs = [(get_field(known, name), get_field(item, name)) for name in ("id", "call_id")]
    return all(pair == other for pair, other in pairs if pair is not None and other is not None)


def _build_open_item(item: Any, arguments: Any) -> dict[str, Any]:
    """An item that has begun and is not known to be complete."""
    fields = {name: get_field(item, name) for name in ("type", "id", "call_id", "name")}
    return {**fields, "arguments": arguments, "status": "in_progress"}


def call_from_item(item: Any, response_id: Any) -> ToolCall:
    """The call in a `function_call` item. An incomplete one needs a result, and must not run."""
    return build_call(
        id=get_field(item, "call_id"),
        name=get_field(item, "name"),
        arguments=get_field(item, "arguments"),
        response_id=response_id,
        item_id=get_field(item, "id"),
        is_complete=get_field(item, "status") in (None, "completed"),
    )


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> "list[FunctionCallOutput]":
    """Render each result as a `function_call_output` item, with images and PDFs as parts of its output."""
    return [
        {
            "type": "function_call_output",
            "call_id": result.wire_id,
            "output": _render_parts(result) if result.media else result.for_model(),
        }
        for result in results
    ]


def _render_parts(result: ToolResult) -> Any:
    media = select_media(result, images=_IMAGE_TYPES, files=(PDF,), with_uri=True)
    text = result.for_model(attached=media)
    if not media:
        return text
    texts = [{"type": "input_text", "text": text}] if text else []
    return [*texts, *map(_render_media, media)]


def _render_media(part: MediaPart) -> dict[str, Any]:
    if part.kind == "image":
        url = part.data_url if part.data is not None else part.uri
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if part.data is None:
        return {"type": "input_file", "file_url": part.uri}
    return {"type": "input_file", "filename": part.name or "file.pdf", "file_data": part.data_url}


def tool_choice(
    mode: ToolChoiceMode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "ToolChoice":
    """A value for `tool_choice=`: a mode, one tool, or a mode within the allowed tools."""
    want = check_tool_choice(mode, tool, allowed, definitions)
    if want.tool is not None:
        return {"type": "function", "name": want.tool}
    if want.allowed and want.mode != "none":
        allowed_tools: list[dict[str, object]] = [{"type": "function", "name": name} for name in want.allowed]
        return {"type": "allowed_tools", "mode": want.mode, "tools": allowed_tools}
    return want.mode


def assistant_messages(response: Any) -> "list[ResponseInputItemParam]":
    """What a response, or the collected events of a stream, adds to the input: its output items."""
    given = cast(Sequence[Any], response)
    items = _items_from_events(given)[0] if isinstance(response, list | tuple) else get_field(response, "output") or ()
    return [_remove_sdk_fields(to_plain(item)) for item in items]


def _remove_sdk_fields(item: Any) -> Any:
    """Remove the fields that the SDK adds to those of the API."""
    if isinstance(item, dict):
        added = ("parsed", "parsed_arguments")
        return {key: _remove_sdk_fields(value) for key, value in cast(dict[str, Any], item).items() if key not in added}
    return [_remove_sdk_fields(member) for member in cast(list[Any], item)] if isinstance(item, list) else item
