"""Google Gemini: generateContent."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from msgspec import structs

from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.formats.definitions import Definitions, Mode, Wired, assemble, decoded, fitted_name, wanted
from handrail.formats.gemini_stream import Pieces, field
from handrail.formats.incoming import object_of, plain, read, unfinished
from handrail.formats.outgoing import fitted_parameters, plain_object, rendered, with_examples, with_properties
from handrail.schema.tidy import map_children

if TYPE_CHECKING:
    from google.genai.types import ContentDict, ToolConfigDict, ToolDict

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
_PARAMETER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_ID: Final = "handrail-"
"""How ids begin that this module made up, because the API gave none; they are not sent back."""


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[ToolDict]":
    """Definitions for `tools` in the configuration: one entry that declares every function."""
    declared = assemble(pool, dialect="gemini", wire=_wire, most=512)
    return declared.gathered({"function_declarations": list(declared)} if declared else None)


def _wire(tool: Tool[..., Any]) -> Wired:
    name, notes = fitted_name(tool.name, allowed=_NAME, limit=64)
    schema = without_const(with_properties(plain_object(tool)))
    renamed = fitted_parameters(schema, allowed=_PARAMETER, limit=64)
    definition: dict[str, Any] = {"name": name, "description": with_examples(tool)}
    if schema["properties"]:
        definition["parameters_json_schema"] = renamed.schema
    unstrict = ("goes out non-strict: Gemini has no strict mode per tool",) if tool.strict else ()
    return Wired(name=name, definition=definition, decode=renamed.back(None), notes=notes + renamed.notes + unstrict)


def without_const(node: Any) -> Any:
    """Gemini knows `enum`, but not `const`."""
    if not isinstance(node, dict):
        return node
    copy = map_children(cast(dict[str, Any], node), lambda _, child: without_const(child))
    if "const" in copy:
        copy["enum"] = [copy.pop("const")]
    return copy


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a response, or in the collected responses of a stream."""
    responses = cast(Sequence[Any], response) if isinstance(response, list | tuple) else (response,)
    found: list[Pieces] = []
    cut = False
    for one in responses:
        response_id = field(one, "response_id")
        candidate = next(iter(read(one, "candidates") or ()), None)
        reason = field(candidate, "finish_reason")
        cut = cut or str(getattr(reason, "value", reason)) == "MAX_TOKENS"
        for part in read(read(candidate, "content"), "parts") or ():
            if (call := field(part, "function_call")) is not None:
                begun = [known for known in found if known.is_meant(call)]
                if not begun:
                    begun = [Pieces(response_id)]
                    found += begun
                begun[-1].add(call)
    known = [_call(one, position) for position, one in enumerate(found)]
    if cut and known:
        known[-1] = structs.replace(known[-1], arguments_json=unfinished(known[-1].arguments_json))
    return decoded(known, definitions)


def _call(call: Pieces, position: int) -> ToolCall:
    # The id must be new in every response, or a second call would be taken for the first one again.
    response_id = call.response_id
    own_id = f"{_OWN_ID}{response_id}-{position}" if response_id else f"{_OWN_ID}{uuid4().hex}"
    return ToolCall(id=call.id or own_id, name=call.name, arguments_json=call.text(), response_id=response_id)


def is_own(call_id: str) -> bool:
    """Whether this module made the id up, because the API gave none."""
    return call_id.startswith(_OWN_ID)


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> "list[ContentDict]":
    """The answers, all in one content; give the definitions if a name had to be changed on the way out."""
    parts: list[Any] = []
    for one in results:
        name = definitions.wire_name(one.tool_name) if isinstance(definitions, Definitions) else one.tool_name
        text, failed = rendered(one)
        answer: dict[str, Any] = {"name": name, "response": {"error" if failed else "output": text}}
        if not is_own(one.call_id):
            answer["id"] = one.call_id
        parts.append({"function_response": answer})
    return [{"role": "user", "parts": parts}] if parts else []


def tool_choice(
    mode: Mode = "auto",
    *,
    tool: str | None = None,
    allowed: Sequence[str] = (),
    definitions: Sequence[Any] | None = None,
) -> "ToolConfigDict":
    """A value for `tool_config`: a mode, one tool, or the allowed tools."""
    want = wanted(mode, tool, allowed, definitions)
    names = [want.tool] if want.tool is not None else list(want.allowed)
    modes: Mapping[str, str] = {"auto": "VALIDATED" if names else "AUTO", "none": "NONE", "required": "ANY"}
    config: dict[str, Any] = {"mode": "ANY" if want.tool is not None else modes[want.mode]}
    if names and want.mode != "none":
        config["allowed_function_names"] = names
    return cast(Any, {"function_calling_config": config})


def assistant_messages(response: Any) -> "list[ContentDict]":
    """What a response, or the collected responses of a stream, adds to the contents."""
    responses = cast(Sequence[Any], response) if isinstance(response, list | tuple) else (response,)
    parts: list[dict[str, Any]] = []
    begun: list[tuple[Pieces, dict[str, Any]]] = []
    for one in responses:
        candidate = next(iter(read(one, "candidates") or ()), None)
        for part in read(read(candidate, "content"), "parts") or ():
            call = field(part, "function_call")
            known = [one for one in begun if call is not None and one[0].is_meant(call)]
            if not known:
                parts.append(dict(plain(part)))
                known = [(Pieces(None), parts[-1])]
                begun += known if call is not None else []
            if call is not None:
                _add(call, *known[-1])
    return [cast(Any, {"role": "model", "parts": parts})] if parts else []


def _add(call: Any, pieces: Pieces, part: dict[str, Any]) -> None:
    """A call that arrives at once is sent back as it is; one that arrives in pieces, put together."""
    at_once = not pieces.name and not field(call, "will_continue")
    pieces.add(call)
    if not at_once:
        part.pop("functionCall", None)
        whole = {"id": pieces.id, "name": pieces.name, "args": object_of(pieces.text())}
        part["function_call"] = {key: value for key, value in whole.items() if value is not None}
