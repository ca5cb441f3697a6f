"""Google Gemini: generateContent."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from msgspec import structs

from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.formats import names
from handrail.formats.definitions import Definitions, RenderedTool, ToolChoiceMode, build_definitions, check_tool_choice
from handrail.formats.gemini_stream import PartialCall, get_camel_field
from handrail.formats.parse import get_field, make_unparsable, parse_object, to_plain
from handrail.formats.render import add_properties, get_object_schema, render_description, render_result
from handrail.schema.subschemas import map_children

if TYPE_CHECKING:
    from google.genai.types import ContentDict, ToolConfigDict, ToolDict

_GENERATED_ID_PREFIX: Final = "handrail-"
"""How ids begin that this module made up, because the API gave none; they are not sent back."""


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[ToolDict]":
    """Definitions for `tools` in the configuration: one entry that declares every function."""
    declared = build_definitions(pool, dialect="gemini", render=_render_tool, max_tools=512)
    return declared.wrap_in({"function_declarations": list(declared)} if declared else None)


def _render_tool(tool: Tool[..., Any]) -> RenderedTool:
    name, notes = names.fit_name(tool.name, names.GEMINI)
    schema = replace_const(add_properties(get_object_schema(tool)))
    renamed = names.fit_parameters(schema, names.GEMINI_PARAMETER)
    definition: dict[str, Any] = {"name": name, "description": render_description(tool)}
    if schema["properties"]:
        definition["parameters_json_schema"] = renamed.schema
    unstrict = ("goes out non-strict: Gemini has no strict mode per tool",) if tool.strict else ()
    return RenderedTool(
        name=name,
        definition=definition,
        decode_arguments=renamed.build_decoder(None),
        notes=notes + renamed.notes + unstrict,
    )


def replace_const(node: Any) -> Any:
    """Gemini knows `enum`, but not `const`."""
    if not isinstance(node, dict):
        return node
    copy = map_children(cast(dict[str, Any], node), lambda _, child: replace_const(child))
    if "const" in copy:
        copy["enum"] = [copy.pop("const")]
    return copy


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a response, or in the collected responses of a stream."""
    responses = cast(Sequence[Any], response) if isinstance(response, list | tuple) else (response,)
    found: list[PartialCall] = []
    cut = False
    for one in responses:
        response_id = get_camel_field(one, "response_id")
        candidate = next(iter(get_field(one, "candidates") or ()), None)
        reason = get_camel_field(candidate, "finish_reason")
        cut = cut or str(getattr(reason, "value", reason)) == "MAX_TOKENS"
        for part in get_field(get_field(candidate, "content"), "parts") or ():
            if (call := get_camel_field(part, "function_call")) is not None:
                begun = [known for known in found if known.is_continued_by(call)]
                if not begun:
                    begun = [PartialCall(response_id)]
                    found += begun
                begun[-1].add(call)
    known = [_build_call(one, position) for position, one in enumerate(found)]
    if cut and known:
        known[-1] = structs.replace(known[-1], arguments_json=make_unparsable(known[-1].arguments_json))
    return names.decode_calls(known, definitions)


def _build_call(call: PartialCall, position: int) -> ToolCall:
    # The id must be new in every response, or a second call would be taken for the first one again.
    response_id = call.response_id
    own_id = (
        f"{_GENERATED_ID_PREFIX}{response_id}-{position}" if response_id else f"{_GENERATED_ID_PREFIX}{uuid4().hex}"
    )
    return ToolCall(
        id=call.id or own_id, name=call.name, arguments_json=call.render_arguments(), response_id=response_id
    )


def is_generated_id(call_id: str) -> bool:
    """Whether this module made the id up, because the API gave none."""
    return call_id.startswith(_GENERATED_ID_PREFIX)


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> "list[ContentDict]":
    """The answers, all in one content; give the definitions if a name had to be changed on the way out."""
    parts: list[Any] = []
    for one in results:
        name = definitions.names.get_wire_name(one.tool_name) if isinstance(definitions, Definitions) else one.tool_name
        text, failed = render_result(one)
        answer: dict[str, Any] = {"name": name, "response": {"error" if failed else "output": text}}
        if not is_generated_id(one.call_id):
            answer["id"] = one.call_id
        parts.append({"function_response": answer})
    return [{"role": "user", "parts": parts}] if parts else []


def tool_choice(
    mode: ToolChoiceMode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "ToolConfigDict":
    """A value for `tool_config`: a mode, one tool, or the allowed tools."""
    want = check_tool_choice(mode, tool, allowed, definitions)
    allowed_names = [want.tool] if want.tool is not None else list(want.allowed)
    modes: Mapping[str, str] = {"auto": "VALIDATED" if allowed_names else "AUTO", "none": "NONE", "required": "ANY"}
    config: dict[str, Any] = {"mode": "ANY" if want.tool is not None else modes[want.mode]}
    if allowed_names and want.mode != "none":
        config["allowed_function_names"] = allowed_names
    return cast(Any, {"function_calling_config": config})


def assistant_messages(response: Any) -> "list[ContentDict]":
    """What a response, or the collected responses of a stream, adds to the contents."""
    responses = cast(Sequence[Any], response) if isinstance(response, list | tuple) else (response,)
    parts: list[dict[str, Any]] = []
    begun: list[tuple[PartialCall, dict[str, Any]]] = []
    for one in responses:
        candidate = next(iter(get_field(one, "candidates") or ()), None)
        for part in get_field(get_field(candidate, "content"), "parts") or ():
            call = get_camel_field(part, "function_call")
            known = [one for one in begun if call is not None and one[0].is_continued_by(call)]
            if not known:
                parts.append(dict(to_plain(part)))
                known = [(PartialCall(None), parts[-1])]
                begun += known if call is not None else []
            if call is not None:
                _add_to_part(call, *known[-1])
    return [cast(Any, {"role": "model", "parts": parts})] if parts else []


def _add_to_part(call: Any, pieces: PartialCall, part: dict[str, Any]) -> None:
    """A call that arrives at once is sent back as it is; one that arrives in pieces, put together."""
    at_once = not pieces.name and not get_camel_field(call, "will_continue")
    pieces.add(call)
    if not at_once:
        part.pop("functionCall", None)
        whole = {"id": pieces.id, "name": pieces.name, "args": parse_object(pieces.render_arguments())}
        part["function_call"] = {key: value for key, value in whole.items() if value is not None}
