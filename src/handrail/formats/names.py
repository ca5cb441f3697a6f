"""How the names of tools and parameters are fitted to a provider, and how calls are decoded back."""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, cast
from urllib.parse import unquote

from msgspec import Struct, structs

from handrail.core.lazy_loading import LazyPattern
from handrail.core.values import ToolCall
from handrail.errors import UnsupportedToolError, shorten
from handrail.schema.strict_decoding import build_decoder
from handrail.schema.subschemas import iter_subschemas, map_children

Decode = Callable[[str], str]


class NameRule(Struct, frozen=True, kw_only=True):
    """The names that one API accepts."""

    pattern: LazyPattern
    max_chars: int

    def is_valid(self, name: str) -> bool:
        """Whether the API accepts this name."""
        return len(name) <= self.max_chars and self.pattern.compiled.fullmatch(name) is not None


_WORD: Final = LazyPattern(r"[a-zA-Z0-9_-]+")
_PRINTABLE: Final = LazyPattern(r"[\x21-\x7e]+")

OPENAI_CHAT: Final = NameRule(pattern=_WORD, max_chars=64)
OPENAI_CHAT_ID: Final = NameRule(pattern=_PRINTABLE, max_chars=40)
OPENAI_RESPONSES: Final = NameRule(pattern=_WORD, max_chars=128)
OPENAI_RESPONSES_ID: Final = NameRule(pattern=_PRINTABLE, max_chars=64)
ANTHROPIC: Final = NameRule(pattern=_WORD, max_chars=128)
ANTHROPIC_ID: Final = NameRule(pattern=_WORD, max_chars=64)
ANTHROPIC_PARAMETER: Final = NameRule(pattern=LazyPattern(r"[a-zA-Z0-9_.-]+"), max_chars=64)
GEMINI: Final = NameRule(pattern=LazyPattern(r"[A-Za-z_][A-Za-z0-9_.:-]*"), max_chars=64)
GEMINI_ID: Final = NameRule(pattern=_PRINTABLE, max_chars=256)
GEMINI_PARAMETER: Final = NameRule(pattern=LazyPattern(r"[A-Za-z_][A-Za-z0-9_]*"), max_chars=64)
MCP: Final = NameRule(pattern=LazyPattern(r"[A-Za-z0-9_.-]+"), max_chars=128)

_NAME_KEYWORDS: Final = frozenset({"dependencies", "dependentRequired", "dependentSchemas", "if", "patternProperties"})
"""The keywords, beside `properties` and `required`, that refer to properties by name."""


def fit_name(name: str, rule: NameRule) -> tuple[str, tuple[str, ...]]:
    """A name that the provider accepts, and a note if it was changed. Equal names give equal names."""
    if rule.is_valid(name):
        return name, ()
    suffix = sha256(name.encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9_]", "_", name)[: rule.max_chars - len(suffix) - 2]
    if not re.match(r"[A-Za-z_]", readable):
        readable = f"_{readable}"
    fitted = f"{readable}_{suffix}"
    return fitted, (f"goes out as `{fitted}`, because the name `{name}` is not accepted",)


class FittedParameters(Struct, frozen=True, kw_only=True):
    """A schema whose parameters have names that the provider accepts, with the mapping back."""

    schema: dict[str, Any]
    names: dict[str, str] = {}
    """The provider's names, by those of the tool."""
    notes: tuple[str, ...] = ()

    def encode(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments under the provider's names."""
        return {self.names.get(name, name): value for name, value in arguments.items()}

    def build_decoder(self, decode: Decode | None) -> Decode | None:
        """A decoder from the provider's names to the tool's, followed by another decoder."""
        if not self.names:
            return decode
        names = {new: old for old, new in self.names.items()}

        def rename(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            copy = {names.get(name, name): member for name, member in cast(dict[str, Any], value).items()}
            return copy if len(copy) == len(cast(dict[str, Any], value)) else cast(Any, value)

        own = build_decoder(rename)
        return own if decode is None else lambda text: decode(own(text))


def fit_parameters(schema: dict[str, Any], rule: NameRule) -> FittedParameters:
    """The schema with parameter names that the provider accepts. Providers only restrict the names at its root."""
    names: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    for name in schema.get("properties", {}):
        fitted, _ = fit_name(name, rule)
        if fitted != name:
            names[name] = fitted
            notes += (f"its parameter `{shorten(name)}` goes out as `{fitted}`",)
    if not names:
        return FittedParameters(schema=schema)
    refers_to_root = any(node.get("$ref") == "#" for _, node in iter_subschemas(schema))
    taken = set(names.values()) & schema["properties"].keys() or len(set(names.values())) < len(names)
    if refers_to_root or taken or schema.keys() & _NAME_KEYWORDS:
        raise UnsupportedToolError(f"the parameter name {next(iter(names))!r} is not accepted, and cannot be changed")
    fitted = FittedParameters(schema=schema, names=names, notes=notes)
    changed = _rename_references({**schema, "properties": fitted.encode(schema["properties"])}, names)
    if "required" in schema:
        changed["required"] = [names.get(name, name) for name in schema["required"]]
    return structs.replace(fitted, schema=changed)


def _rename_references(node: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The schema with references into renamed parameters, `#/properties/old`, that follow them."""

    def change(_: str, child: Any) -> Any:
        return _rename_references(cast(dict[str, Any], child), names) if isinstance(child, dict) else child

    copy = map_children(node, change)
    match str(copy.get("$ref", "")).split("/"):
        case ["#", "properties", old, *rest]:
            own = unquote(old).replace("~1", "/").replace("~0", "~")
            copy["$ref"] = "/".join(["#", "properties", names.get(own, old), *rest])
        case _:
            pass
    return copy


class ToolNames:
    """The names of the tools in one request, as the provider knows them, and the decoders of their arguments."""

    def __init__(self, tools: Mapping[str, tuple[str, Decode | None]] | None = None) -> None:
        """`tools` maps the provider's name of a tool to its own name and the decoder of its arguments."""
        self._tools = tools or {}
        self._wire_names = {own: wire for wire, (own, _) in self._tools.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._wire_names

    def __str__(self) -> str:
        return ", ".join(self._wire_names) or "none"

    def get_wire_name(self, name: str) -> str:
        """The provider's name of a tool; the name itself if it was not sent."""
        return self._wire_names.get(name, name)

    def decode(self, call: ToolCall) -> ToolCall:
        """A call under the tool's own name, with arguments that fit the tool's own schema."""
        found = self._tools.get(call.name)
        if found is None:
            return call
        name, decode_arguments = found
        if decode_arguments is None:
            return call if name == call.name else structs.replace(call, name=name)
        return structs.replace(call, name=name, arguments_json=decode_arguments(call.arguments_json))
