"""OpenAI Realtime: tools of a spoken session."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import structs

from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ConfigError
from handrail.formats.definitions import Definitions, Mode, Wired, assemble, decoded, fitted_name, wanted
from handrail.formats.incoming import read
from handrail.formats.openai_responses import call_of
from handrail.formats.openai_schema import NAME, loose
from handrail.formats.outgoing import plain_object, with_examples

if TYPE_CHECKING:
    from openai.types.realtime import ConversationItemCreateEventParam, RealtimeFunctionToolParam
    from openai.types.realtime.realtime_tool_choice_config_param import RealtimeToolChoiceConfigParam


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[RealtimeFunctionToolParam]":
    """Definitions for the `tools` of a session or of one response. This API has no strict mode."""
    return assemble(pool, dialect="openai_realtime", wire=_wire)


def _wire(tool: Tool[..., Any]) -> Wired:
    name, renamed = fitted_name(tool.name, allowed=NAME, limit=128)
    unstrict = ("goes out non-strict: Realtime has no strict mode",) if tool.strict else ()
    return Wired(
        name=name,
        definition={
            "type": "function",
            "name": name,
            "description": with_examples(tool),
            "parameters": loose(plain_object(tool)),
        },
        notes=renamed + unstrict,
    )


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The completed calls in server events: one event or many, `response.output_item.done` or `response.done`.

    Arguments that are "done" also arrive for responses that were cancelled, so that only a completed item is a call.
    """
    events = cast(Sequence[Any], response) if isinstance(response, list | tuple) else (response,)
    names: dict[str, str] = {}
    found: dict[str, ToolCall] = {}
    for event in events:
        kind = read(event, "type")
        item = read(event, "item")
        if kind == "response.output_item.added" and read(item, "type") == "function_call":
            names[read(item, "id") or ""] = read(item, "name") or ""
        elif kind == "response.output_item.done":
            _note(found, item, read(event, "response_id"), names)
        elif kind == "response.done":
            whole = read(event, "response")
            for one in read(whole, "output") or ():
                _note(found, one, read(whole, "id"), names)
    return decoded(found.values(), definitions)


def _note(found: dict[str, ToolCall], item: Any, response_id: str | None, names: dict[str, str]) -> None:
    if read(item, "type") != "function_call" or read(item, "status") != "completed":
        return
    call = call_of(item, response_id)
    if not call.name:
        # Older servers leave the name out; it was said when the item was added.
        call = structs.replace(call, name=names.get(call.item_id or "", ""))
    found.setdefault(call.id, call)


def results(
    results: Iterable[ToolResult], definitions: Sequence[Any] | None = None
) -> "list[ConversationItemCreateEventParam]":
    """The answers, one client event each. Asking for a response is the session's business."""
    return [
        {
            "type": "conversation.item.create",
            "item": {"type": "function_call_output", "call_id": one.call_id, "output": one.for_model()},
        }
        for one in results
    ]


def tool_choice(
    mode: Mode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "RealtimeToolChoiceConfigParam":
    """A value for `tool_choice`: a mode or one tool."""
    want = wanted(mode, tool, allowed, definitions)
    if want.allowed:
        raise ConfigError("Realtime cannot limit a choice to some tools; send only those tools instead.")
    if want.tool is not None:
        return {"type": "function", "name": want.tool}
    return want.mode


def assistant_messages(response: Any) -> list[dict[str, Any]]:
    """Nothing: the session keeps what was said."""
    return []
