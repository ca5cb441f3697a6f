"""What of a tool goes into its definition: words, examples, and a schema that the APIs take."""

import re
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import unquote

import jsonschema_rs
from msgspec import Struct, structs

from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.core.values import ToolResult
from handrail.errors import shorten
from handrail.formats.definitions import SkippedTool, fitted_name
from handrail.schema.restore import decoder
from handrail.schema.tidy import subschemas

Decode = Callable[[str], str]

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_BY_NAME: Final = frozenset({"dependencies", "dependentRequired", "dependentSchemas", "if", "patternProperties"})
"""What else in a schema speaks of properties by their names."""


def with_examples(tool: Tool[..., Any]) -> str:
    """The description, with the examples in it, for an API that has no field for them."""
    if not tool.examples:
        return tool.description
    lines = "\n".join(compact_json(example) for example in tool.examples)
    return f"{tool.description}\n\nExamples of arguments:\n{lines}".strip()


def rendered(result: ToolResult) -> tuple[str, bool]:
    """What the model reads, and whether it tells of a failure: also that of an output that JSON cannot hold."""
    text = result.for_model()
    if result.ok and not isinstance(result.output, str):
        try:
            compact_json(result.output)
        except ValueError:
            return text, True
    return text, not result.ok


def plain_object(tool: Tool[..., Any]) -> dict[str, Any]:
    """The schema, if its root is a plain object, which every API asks for."""
    schema = dict(tool.input_schema)
    if "$ref" in schema:
        target = str(schema["$ref"]).removeprefix("#/$defs/")
        found = cast(dict[str, Any], schema.get("$defs", {})).get(target)
        if isinstance(found, dict):
            schema = {**cast(dict[str, Any], found), "$defs": schema["$defs"]}
    if schema.get("type") != "object":
        raise SkippedTool("its input_schema is not an object")
    if refused := sorted(schema.keys() & {"anyOf", "oneOf", "allOf", "not", "enum", "const"}):
        raise SkippedTool(f"its input_schema has {', '.join(refused)} at the root, which the API refuses")
    return valid(schema)


def valid(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema itself, if it is one, and refers to nothing outside of it."""
    try:
        # The dialect is said here, because an unknown one would be fetched.
        jsonschema_rs.meta.validate({**schema, "$schema": _DRAFT})
    except jsonschema_rs.ValidationError as error:
        raise SkippedTool(f"its input_schema is not valid: {shorten(error.message, 200)}") from error
    for _, node in [("", schema), *subschemas(schema)]:
        if "$ref" in node and not _leads_somewhere(str(node["$ref"]), schema):
            raise SkippedTool(f"its input_schema refers to {node['$ref']}, which is not in it")
    return schema


def _leads_somewhere(reference: str, root: dict[str, Any]) -> bool:
    found: Any = root
    head, *steps = unquote(reference).split("/")
    for step in steps:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdigit() and int(step) < len(cast(list[Any], found)):
            found = cast(list[Any], found)[int(step)]
        elif isinstance(found, dict) and step in found:
            found = cast(dict[str, Any], found)[step]
        else:
            return False
    return head == "#"


def with_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `properties`, which the APIs want to see even where there are none."""
    return schema if "properties" in schema else {**schema, "properties": {}}


class Renamed(Struct, frozen=True, kw_only=True):
    """A schema whose parameters have names that the provider accepts, and the way back."""

    schema: dict[str, Any]
    names: dict[str, str] = {}
    """The new names, by those of the tool."""
    notes: tuple[str, ...] = ()

    def forth(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments in the provider's names."""
        return {self.names.get(name, name): value for name, value in arguments.items()}

    def back(self, decode: Decode | None) -> Decode | None:
        """From the provider's names to the tool's, and on through its other decoder."""
        if not self.names:
            return decode
        names = {new: old for old, new in self.names.items()}

        def rename(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            copy = {names.get(name, name): one for name, one in cast(dict[str, Any], value).items()}
            return copy if len(copy) == len(cast(dict[str, Any], value)) else cast(Any, value)

        own = decoder(rename)
        return own if decode is None else lambda text: decode(own(text))


def fitted_parameters(schema: dict[str, Any], *, allowed: re.Pattern[str], limit: int) -> Renamed:
    """The schema with parameter names that the provider accepts. Only the names at its root are looked at by any."""
    names: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    for name in schema.get("properties", {}):
        fitted, _ = fitted_name(name, allowed=allowed, limit=limit)
        if fitted != name:
            names[name] = fitted
            notes += (f"its parameter `{shorten(name)}` goes out as `{fitted}`",)
    if not names:
        return Renamed(schema=schema)
    refers_to_root = any(node.get("$ref") == "#" for _, node in subschemas(schema))
    taken = set(names.values()) & schema["properties"].keys() or len(set(names.values())) < len(names)
    if refers_to_root or taken or schema.keys() & _BY_NAME:
        raise SkippedTool(f"the parameter name {next(iter(names))!r} is not accepted, and cannot be changed")
    renamed = Renamed(schema=schema, names=names, notes=notes)
    changed = {**schema, "properties": renamed.forth(schema["properties"])}
    if "required" in schema:
        changed["required"] = [names.get(name, name) for name in schema["required"]]
    return structs.replace(renamed, schema=changed)
