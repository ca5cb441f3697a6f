"""Google Gemini: generateContent."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from msgspec import structs

from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.formats.definitions import (
    Definitions,
    Mode,
    SetAside,
    Wired,
    assemble,
    decoded,
    fitted_name,
    plain_object,
    read,
    unfinished,
    wanted,
    with_examples,
)
from handrail.schema.tidy import map_children

if TYPE_CHECKING:
    from google.genai.types import ContentDict, ToolConfigDict, ToolDict

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
_PARAMETER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_OWN_ID: Final = "handrail-"
"""How ids begin that this module made up, because the API gave none; they are not sent back."""


def tools(pool: Iterable[Tool[..., Any]]) -> "Definitions[ToolDict]":
    """Definitions for `tools` in the configuration: one entry that declares every function."""
    declared = assemble(pool, dialect="gemini", wire=_wire, most=512)
    return declared.gathered({"function_declarations": list(declared)} if declared else None)


def _wire(tool: Tool[..., Any]) -> Wired:
    name, notes = fitted_name(tool.name, allowed=_NAME, limit=64)
    schema = _without_const(plain_object(tool))
    if bad := [one for one in schema["properties"] if not _PARAMETER.fullmatch(one)]:
        raise SetAside(f"Gemini refuses the parameter name {bad[0]!r}; it takes letters, digits and _, at most 64")
    definition: dict[str, Any] = {"name": name, "description": with_examples(tool)}
    if schema["properties"]:
        definition["parameters_json_schema"] = schema
    unstrict = ("goes out non-strict: Gemini has no strict mode per tool",) if tool.strict else ()
    return Wired(name=name, definition=definition, notes=notes + unstrict)


def _without_const(node: Any, name: str = "") -> Any:
    """Gemini knows `enum`, but not `const`."""
    if not isinstance(node, dict):
        return node
    copy = map_children(cast(dict[str, Any], node), lambda name, child: _without_const(child, name))
    if "const" in copy:
        copy["enum"] = [copy.pop("const")]
    return copy


def calls(response: Any, definitions: Sequence[Any] | None = None) -> list[ToolCall]:
    """The calls in a response, or in the collected responses of a stream."""
    responses = cast(Sequence[Any], response) if isinstance(response, list | tuple) else (response,)
    found: list[ToolCall] = []
    cut = False
    for one in responses:
        response_id = read(one, "response_id") or read(one, "responseId")
        candidate = next(iter(read(one, "candidates") or ()), None)
        reason = read(candidate, "finish_reason") or read(candidate, "finishReason")
        cut = cut or str(getattr(reason, "value", reason)) == "MAX_TOKENS"
        for part in read(read(candidate, "content"), "parts") or ():
            call = read(part, "function_call") or read(part, "functionCall")
            if call is not None:
                found.append(_call(call, response_id, len(found)))
    if cut and found:
        found[-1] = structs.replace(found[-1], arguments_json=unfinished(found[-1].arguments_json))
    return decoded(found, definitions)


def _call(call: Any, response_id: str | None, position: int) -> ToolCall:
    # The id must be new in every response, or a second call would be taken for the first one again.
    own_id = f"{_OWN_ID}{response_id}-{position}" if response_id else f"{_OWN_ID}{uuid4().hex}"
    return ToolCall(
        id=read(call, "id") or own_id,
        name=read(call, "name") or "",
        arguments_json=compact_json(read(call, "args") or {}),
        response_id=response_id,
    )


def results(results: Iterable[ToolResult], definitions: Sequence[Any] | None = None) -> "list[ContentDict]":
    """The answers, all in one content; give the definitions if a name had to be changed on the way out."""
    parts: list[Any] = []
    for one in results:
        name = definitions.wire_name(one.tool_name) if isinstance(definitions, Definitions) else one.tool_name
        answer: dict[str, Any] = {"name": name, "response": {"output" if one.ok else "error": one.for_model()}}
        if not one.call_id.startswith(_OWN_ID):
            answer["id"] = one.call_id
        parts.append({"function_response": answer})
    return [{"role": "user", "parts": parts}] if parts else []


def choice(
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
