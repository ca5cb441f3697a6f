"""OpenAI Responses."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.formats.definitions import Definitions, Mode, Wired, assemble, decoded, fitted_name, wanted
from handrail.formats.incoming import plain, read, unfinished
from handrail.formats.openai_schema import NAME, parameters
from handrail.formats.outgoing import with_examples

if TYPE_CHECKING:
    from openai.types.responses import FunctionToolParam, ResponseInputItemParam
    from openai.types.responses.response_create_params import ToolChoice
    from openai.types.responses.response_input_param import FunctionCallOutput

_ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "response.done")
_CUT: Final = ("incomplete", "failed", "cancelled", "in_progress")


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[FunctionToolParam]":
    """Definitions for `tools=`."""
    return assemble(pool, dialect="openai_responses", wire=_wire)


def _wire(tool: Tool[..., Any]) -> Wired:
    name, renamed = fitted_name(tool.name, allowed=NAME, limit=128)
    given = parameters(tool)
    return Wired(
        name=name,
        definition={
            "type": "function",
            "name": name,
            "description": with_examples(tool),
            "parameters": given.schema,
            # Left out, it means "strict if possible", and the API would change the schema by itself.
            "strict": given.strict,
        },
        decode=given.decode,
        notes=renamed + given.notes,
    )


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a response, in its output items, or in the collected events of a stream."""
    if isinstance(response, list | tuple):
        items, response_id = _items(cast(Sequence[Any], response))
    else:
        items, response_id = _output(response), read(response, "id")
    found = [call_of(item, response_id) for item in items if read(item, "type") == "function_call"]
    return decoded(found, definitions)


def _output(response: Any) -> Sequence[Any]:
    """The items of a response. The last one of a response that was cut is not complete, also if it does not say so."""
    items: Sequence[Any] = read(response, "output") or ()
    if items and read(response, "status") in _CUT and read(items[-1], "status") is None:
        return [*items[:-1], _open_item(items[-1], read(items[-1], "arguments"))]
    return items


def _items(events: Sequence[Any]) -> tuple[Sequence[Any], str | None]:
    """The output items in the events of a stream, or the items themselves."""
    items: dict[object, Any] = {}
    response_id: str | None = None
    for position, event in enumerate(events):
        kind = read(event, "type")
        place = read(event, "output_index", position)
        if kind in _ENDS:
            response = read(event, "response")
            if read(response, "output"):
                return _output(response), read(response, "id")
        elif kind == "response.created":
            response_id = read(read(event, "response"), "id")
        elif kind == "response.output_item.added":
            items[place] = _open_item(read(event, "item"), "")
        elif kind == "response.function_call_arguments.delta" and place in items:
            items[place]["arguments"] += read(event, "delta") or ""
        elif kind == "response.output_item.done":
            response_id = read(event, "response_id") or response_id
            items[place] = read(event, "item")
        elif kind == "function_call":
            items[place] = event
    return list(items.values()), response_id


def _open_item(item: Any, arguments: Any) -> dict[str, Any]:
    """An item that has begun, and that nobody has said is complete."""
    fields = {name: read(item, name) for name in ("type", "id", "call_id", "name")}
    return {**fields, "arguments": arguments, "status": "in_progress"}


def call_of(item: Any, response_id: str | None) -> ToolCall:
    """One `function_call` item. An incomplete one has to be answered, and must not run."""
    text = read(item, "arguments") or ""
    complete = read(item, "status") in (None, "completed")
    return ToolCall(
        id=read(item, "call_id") or "",
        name=read(item, "name") or "",
        arguments_json=text if complete else unfinished(text),
        response_id=response_id,
        item_id=read(item, "id"),
    )


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> "list[FunctionCallOutput]":
    """The answers, one `function_call_output` item each."""
    return [{"type": "function_call_output", "call_id": one.call_id, "output": one.for_model()} for one in results]


def tool_choice(
    mode: Mode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "ToolChoice":
    """A value for `tool_choice=`: a mode, one tool, or a mode within the allowed tools."""
    want = wanted(mode, tool, allowed, definitions)
    if want.tool is not None:
        return {"type": "function", "name": want.tool}
    if want.allowed and want.mode != "none":
        names: list[dict[str, object]] = [{"type": "function", "name": name} for name in want.allowed]
        return {"type": "allowed_tools", "mode": want.mode, "tools": names}
    return want.mode


def assistant_messages(response: Any) -> "list[ResponseInputItemParam]":
    """What a response, or the collected events of a stream, adds to the input: its output items."""
    given = cast(Sequence[Any], response)
    items = _items(given)[0] if isinstance(response, list | tuple) else read(response, "output") or ()
    return [_sendable(plain(item)) for item in items]


def _sendable(item: Any) -> Any:
    """Without what the SDK has added to what the API said."""
    if isinstance(item, dict):
        added = ("parsed", "parsed_arguments")
        return {key: _sendable(one) for key, one in cast(dict[str, Any], item).items() if key not in added}
    return [_sendable(one) for one in cast(list[Any], item)] if isinstance(item, list) else item
