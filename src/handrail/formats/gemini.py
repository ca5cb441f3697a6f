"""Google Gemini: generateContent."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from msgspec import structs

from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.formats import names
from handrail.formats.call_parsing import (
    decode_calls,
    get_field,
    get_items,
    get_text,
    make_unparsable,
    parse_object,
    to_json_text,
    to_plain,
)
from handrail.formats.definition_parts import (
    PDF,
    add_properties,
    get_object_schema,
    render_description,
    render_result,
    select_media,
)
from handrail.formats.definitions import Definitions, RenderedTool, ToolChoiceMode, build_definitions, check_tool_choice
from handrail.schema.subschemas import map_children

if TYPE_CHECKING:
    from google.genai.types import ContentDict, ToolConfigDict, ToolDict

_STEP: Final = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_KINDS: Final = ("string_value", "number_value", "bool_value", "null_value")


class PartialCall:
    """One call, whose arguments arrive at once or in pieces."""

    def __init__(self, response_id: str | None) -> None:
        self.response_id = response_id
        self.id: str | None = None
        self.name = ""
        self.is_complete = False
        """Whether the last piece has arrived."""
        self._arguments: Any = {}
        self._open_paths: dict[str, tuple[list[str | int], list[str]]] = {}
        """The paths whose text goes on, with their steps and the pieces so far: they are joined once."""
        self._is_broken = False

    def add(self, call: Any) -> None:
        """Take a piece."""
        self.id = self.id or get_text(call, "id") or None
        self.name = self.name or get_text(call, "name")
        if (given := get_field(call, "args")) is not None:
            known = self._arguments
            both = isinstance(known, dict) and isinstance(given, dict)
            self._arguments = cast(dict[str, Any], known) | cast(dict[str, Any], given) if both else given
        partial = get_camel_field(call, "partial_args")
        for piece in cast(list[Any], partial) if isinstance(partial, list | tuple) else ():
            self._add_partial(piece)
        self.is_complete = not get_camel_field(call, "will_continue")

    def render_arguments(self) -> str:
        """The arguments. A call that was cut off, or whose pieces make no sense, must not run."""
        for steps, pieces in self._open_paths.values():
            self._set(steps, "".join(pieces))
        text = to_json_text(self._arguments)
        return text if self.is_complete and not self._open_paths and not self._is_broken else make_unparsable(text)

    def _add_partial(self, piece: Any) -> None:
        path: Any = get_camel_field(piece, "json_path") or ""
        if not isinstance(path, str):
            self._is_broken = True
            return
        steps = [_parse_step(match) for match in _STEP.finditer(path)]
        if not steps or "$" + "".join(match[0] for match in _STEP.finditer(path)) != path:
            self._is_broken = True
            return
        value = next((value for kind in _KINDS if (value := get_camel_field(piece, kind)) is not None), None)
        value = None if value == "NULL_VALUE" and get_camel_field(piece, "null_value") is not None else value
        will_continue = get_camel_field(piece, "will_continue")
        if path in self._open_paths or will_continue:
            if not isinstance(value, str):
                self._is_broken = True
                return
            _, pieces = self._open_paths.setdefault(path, (steps, []))
            pieces.append(value)
            if will_continue and len(pieces) > 1:
                return
            value = "".join(pieces)
        self._set(steps, value)
        if not will_continue:
            self._open_paths.pop(path, None)

    def _set(self, steps: list[str | int], value: Any) -> None:
        try:
            _set_path(self._arguments, steps, value)
        except (KeyError, IndexError, TypeError, AttributeError, RecursionError):
            self._is_broken = True


class CallAssembler:
    """Assigns the pieces of a stream to calls: by id, else to the last open call of the name, or of any name."""

    def __init__(self) -> None:
        self.calls: list[PartialCall] = []
        self._open: dict[int, PartialCall] = {}
        self._by_id: dict[str, PartialCall] = {}
        self._by_name: dict[str, list[PartialCall]] = {}

    def find(self, call: Any) -> PartialCall | None:
        """The open call that a piece continues."""
        if id_ := get_text(call, "id"):
            found = self._by_id.get(id_)
            return None if found is None or found.is_complete else found
        if name := get_text(call, "name"):
            named = self._by_name.get(name, [])
            while named and named[-1].is_complete:
                named.pop()
            return named[-1] if named else None
        return next(reversed(self._open.values()), None)

    def add(self, call: Any, response_id: str | None = None) -> PartialCall:
        """Add a piece to its call, or start a new call."""
        found = self.find(call)
        if found is None:
            found = PartialCall(response_id)
            self.calls.append(found)
        found.add(call)
        if found.is_complete:
            self._open.pop(id(found), None)
        else:
            self._open[id(found)] = found
            if found.id:
                self._by_id[found.id] = found
            self._by_name.setdefault(found.name, []).append(found)
        return found


def get_camel_field(source: Any, name: str) -> Any:
    """A field under its name in Python or in JSON."""
    value = get_field(source, name)
    if value is None:
        head, *rest = name.split("_")
        value = get_field(source, head + "".join(word.title() for word in rest))
    return value


def _parse_step(match: re.Match[str]) -> str | int:
    plain, index, single, double = match.groups()
    if index is not None:
        return int(index)
    return plain if plain is not None else re.sub(r"\\(.)", r"\1", single if single is not None else double)


def _set_path(arguments: Any, steps: list[str | int], value: Any) -> None:
    """Put a value where the path leads; a list only grows at its end."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        holds: Any = value if following is None else [] if isinstance(following, int) else {}
        if isinstance(arguments, list) != isinstance(step, int):
            raise TypeError("the path leads into something else")
        if isinstance(step, int) and step == len(arguments):
            arguments.append(holds)
        elif following is None:
            arguments[step] = value
        elif isinstance(step, str):
            arguments.setdefault(step, holds)
        arguments = arguments[step]


_IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/webp")


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
    unstrict = ("is sent without strict mode: Gemini has no strict mode per tool",) if tool.strict else ()
    return RenderedTool(
        name=name,
        definition=definition,
        decode_arguments=renamed.build_decoder(None),
        notes=notes + renamed.notes + unstrict,
    )


def replace_const(node: Any) -> Any:
    """Gemini knows `enum`, but not `const`; an enum has a type, and no empty text."""
    if not isinstance(node, dict):
        return node
    copy = map_children(cast(dict[str, Any], node), lambda _, child: replace_const(child))
    if "const" in copy:
        copy["enum"] = [copy.pop("const")]
    if isinstance(values := copy.get("enum"), list):
        kept = [value for value in cast(list[Any], values) if value != ""]
        copy["enum"] = kept
        if not kept:
            del copy["enum"]
        if "type" not in copy:
            kinds = list(
                dict.fromkeys(
                    _TYPE_NAMES.get(cast(type[Any], type(value)), "object") for value in cast(list[Any], values)
                )
            )
            copy["type"] = kinds[0] if len(kinds) == 1 else kinds
    return copy


_TYPE_NAMES: Final[Mapping[type[Any], str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
}


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a response, or in the collected responses of a stream."""
    responses = cast(Sequence[Any], response) if isinstance(response, list | tuple) else (response,)
    assembler = CallAssembler()
    is_cut = False
    for item in responses:
        response_id = get_camel_field(item, "response_id")
        candidate = next(iter(get_items(item, "candidates")), None)
        reason = get_camel_field(candidate, "finish_reason")
        is_cut = is_cut or str(getattr(reason, "value", reason)) == "MAX_TOKENS"
        for part in get_items(get_field(candidate, "content"), "parts"):
            if (call := get_camel_field(part, "function_call")) is not None:
                assembler.add(call, response_id if isinstance(response_id, str) else None)
    found = [_build_call(value) for value in assembler.calls]
    if is_cut and found:
        found[-1] = structs.replace(found[-1], arguments_json=make_unparsable(found[-1].arguments_json))
    return decode_calls(found, definitions)


def _build_call(call: PartialCall) -> ToolCall:
    # Without any id a call would be taken for a repetition of another one; what is made up here is not sent back.
    is_nameless = not call.id and not call.response_id
    return ToolCall(
        id=f"call_{uuid4().hex}" if is_nameless else call.id or "",
        name=call.name,
        arguments_json=call.render_arguments(),
        response_id=call.response_id,
        provider_id="" if is_nameless else None,
    )


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> "list[ContentDict]":
    """Render results as one content; pass the definitions if a name had to be changed."""
    parts: list[Any] = []
    for result in results:
        name = (
            definitions.names.get_wire_name(result.tool_name)
            if isinstance(definitions, Definitions)
            else result.tool_name
        )
        media = select_media(result, images=_IMAGE_TYPES, files=(PDF,)) if result.media else ()
        text, failed = render_result(result, media)
        entry: dict[str, Any] = {"name": name, "response": {"error" if failed else "output": text}}
        if media and not failed:
            entry["parts"] = [{"inline_data": {"mime_type": p.mime_type.lower(), "data": p.data}} for p in media]
        if result.wire_id:
            entry["id"] = result.wire_id
        parts.append({"function_response": entry})
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
    assembler = CallAssembler()
    part_of: dict[int, dict[str, Any]] = {}
    for item in responses:
        candidate = next(iter(get_field(item, "candidates") or ()), None)
        for part in get_field(get_field(candidate, "content"), "parts") or ():
            call = get_camel_field(part, "function_call")
            known = None if call is None else assembler.find(call)
            if known is None:
                parts.append(dict(to_plain(part)))
            if call is None:
                continue
            assembled = assembler.add(call)
            if known is None:
                part_of[id(assembled)] = parts[-1]
            if known is not None or get_camel_field(call, "will_continue"):
                _set_call(part_of[id(assembled)], assembled)
    return [cast(Any, {"role": "model", "parts": parts})] if parts else []


def _set_call(part: dict[str, Any], call: PartialCall) -> None:
    """Replace a call that arrived in pieces by the assembled one; a call that arrived at once stays unchanged."""
    part.pop("functionCall", None)
    assembled = {"id": call.id, "name": call.name, "args": parse_object(call.render_arguments())}
    part["function_call"] = {key: value for key, value in assembled.items() if value is not None}
