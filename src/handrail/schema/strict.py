"""Lowering a schema into the subset that a provider can enforce, and turning the model's answer back.

What a subset cannot say is either left to local validation (and listed), or keeps the tool out of strict mode (with the
reason). Nothing is narrowed in silence.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from handrail.core.text import compact_json
from handrail.errors import ToolArgsParseError
from handrail.schema.ambiguity import refuse_ambiguous
from handrail.schema.tidy import Schema, subschemas

_ANNOTATIONS = frozenset(
    {
        "title",
        "examples",
        "example",
        "$schema",
        "$id",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
    }
)
_IMPOSSIBLE = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "patternProperties",
        "propertyNames",
        "prefixItems",
        "unevaluatedProperties",
        "unevaluatedItems",
    }
)
_LOOKAROUND = re.compile(r"\(\?<?[=!]")
_DEEPER_THAN_REGULAR = re.compile(r"\(\?<?[=!]|\\[1-9]|\\[bB]")


class NotRepresentable(Exception):
    """The schema cannot be said in this subset; the text is the reason, with the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A provider's subset of JSON Schema for strict tools."""

    name: str
    all_required: bool
    """Every property must be required: optional ones become nullable, and null is turned back into "left out"."""
    keeps_default: bool
    recursion: bool
    dropped: frozenset[str]
    """Constraints that the provider refuses and local validation checks anyway."""
    formats: frozenset[str]
    bad_pattern: re.Pattern[str]
    max_properties: int = 5_000
    max_levels: int = 10
    max_characters: int = 120_000
    max_enum_values: int = 1_000


_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_ALWAYS_DROPPED = frozenset(
    {
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "contains",
        "minContains",
        "maxContains",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
    }
)

OPENAI = Dialect(
    name="OpenAI's strict mode",
    all_required=True,
    keeps_default=False,
    recursion=True,
    dropped=_ALWAYS_DROPPED,
    formats=_FORMATS,
    bad_pattern=_LOOKAROUND,
)
ANTHROPIC = Dialect(
    name="Anthropic's strict mode",
    all_required=False,
    keeps_default=True,
    recursion=False,
    dropped=_ALWAYS_DROPPED
    | {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "maxItems",
    },
    formats=_FORMATS | {"uri"},
    bad_pattern=_DEEPER_THAN_REGULAR,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A schema that a provider accepts, and the way back."""

    schema: Schema
    decode: Callable[[str], str] | None
    """The model's JSON text to text that fits the original schema; None where they are the same."""
    lost: tuple[str, ...]
    """What is only checked locally, with its place."""


def lower(schema: Mapping[str, Any], dialect: Dialect) -> Lowered:
    """Lower a tool's schema, or raise `NotRepresentable`."""
    root = _with_defs(schema)
    work = _Lowering(dialect=dialect, root=root)
    lowered = work.lower(_inlined_root(root), "")
    if definitions := root.get("$defs"):
        lowered["$defs"] = {name: work.lower(child, name) for name, child in cast(Schema, definitions).items()}
    if not dialect.recursion and _is_recursive(lowered):
        raise NotRepresentable("it refers to itself")
    _check_limits(lowered, dialect)
    decode = _decoder(root) if dialect.all_required and work.left_out else None
    return Lowered(schema=lowered, decode=decode, lost=tuple(work.lost))


@dataclass(slots=True, kw_only=True)
class _Lowering:
    dialect: Dialect
    root: Schema
    lost: list[str] = field(default_factory=list[str])
    left_out: bool = False
    """Whether null stands for "left out" anywhere."""

    def lower(self, node: Any, place: str) -> Schema:
        if not isinstance(node, dict) or not (set(cast(Schema, node)) - _ANNOTATIONS - {"description", "default"}):
            raise NotRepresentable(f"{place or 'the root'} accepts anything")
        node = _merged_single_all_of(cast(Schema, node))
        if impossible := sorted(_IMPOSSIBLE & node.keys()):
            raise NotRepresentable(f"{place or 'the root'} uses {', '.join(impossible)}")
        if "$ref" in node:
            return self._reference(node, place)
        copy: Schema = {}
        for key, value in node.items():
            if key in _ANNOTATIONS or key in ("$defs", "required", "additionalProperties"):
                continue
            if key == "default" and not self.dialect.keeps_default:
                continue
            if self._must_drop(key, value):
                self.lost.append(f"{place or 'the root'}: {key}")
                continue
            copy["anyOf" if key == "oneOf" else key] = value
        if "anyOf" in copy:
            copy["anyOf"] = [self.lower(branch, place) for branch in copy["anyOf"]]
        if _is_object(node):
            self._object(node, copy, place)
        if _has_type(node, "array"):
            if "items" not in node:
                raise NotRepresentable(f"{place or 'the root'} is an array of anything")
            copy["items"] = self.lower(node["items"], f"{place}[]")
        return copy

    def _must_drop(self, key: str, value: Any) -> bool:
        if key in self.dialect.dropped:
            return True
        if key == "minItems" and not self.dialect.all_required:
            return value not in (0, 1)
        if key == "format":
            return value not in self.dialect.formats
        return key == "pattern" and bool(self.dialect.bad_pattern.search(str(value)))

    def _reference(self, node: Schema, place: str) -> Schema:
        target = str(node["$ref"])
        if target != "#" and not re.fullmatch(r"#/\$defs/[^/]+", target):
            raise NotRepresentable(f"{place or 'the root'} refers to {target}")
        reference: Schema = {"$ref": target}
        if description := node.get("description"):
            return {"anyOf": [reference], "description": description}
        return reference

    def _object(self, node: Schema, copy: Schema, place: str) -> None:
        properties = cast(Schema, node.get("properties", {}))
        if node.get("additionalProperties", False) is not False or (
            not properties and node.get("additionalProperties") is not False
        ):
            raise NotRepresentable(f"{place or 'the root'} is a map with open keys")
        required = cast(list[str], node.get("required", []))
        lowered: Schema = {}
        for name, child in properties.items():
            below = f"{place}.{name}" if place else name
            lowered[name] = self.lower(child, below)
            if self.dialect.all_required and name not in required and not accepts_null(child, self.root):
                lowered[name] = _nullable(lowered[name])
                self.left_out = True
        copy["properties"] = lowered
        copy["required"] = (
            list(properties) if self.dialect.all_required else [one for one in properties if one in required]
        )
        copy["additionalProperties"] = False


def accepts_null(node: Any, root: Schema) -> bool:
    """Whether null fits a schema."""
    if not isinstance(node, dict):
        return node is True
    node = _resolved(cast(Schema, node), root)
    for key in ("anyOf", "oneOf"):
        if key in node:
            return any(accepts_null(branch, root) for branch in cast(list[Any], node[key]))
    if "allOf" in node:
        return all(accepts_null(part, root) for part in cast(list[Any], node["allOf"]))
    if "enum" in node:
        return None in node["enum"]
    if "const" in node:
        return node["const"] is None
    return "type" not in node or _has_type(node, "null")


def _nullable(node: Schema) -> Schema:
    if isinstance(node.get("type"), str) and not node.keys() & {"enum", "const", "anyOf"}:
        return {**node, "type": [node["type"], "null"]}
    if "anyOf" in node and "type" not in node:
        return {**node, "anyOf": [*cast(list[Any], node["anyOf"]), {"type": "null"}]}
    rest = {key: value for key, value in node.items() if key != "description"}
    outer: Schema = {"anyOf": [rest, {"type": "null"}]}
    return {**outer, "description": node["description"]} if "description" in node else outer


def _with_defs(schema: Mapping[str, Any]) -> Schema:
    """The schema with `definitions` under their present name."""
    if "definitions" not in schema:
        return dict(schema)
    return json.loads(json.dumps(schema).replace('"#/definitions/', '"#/$defs/').replace('"definitions":', '"$defs":'))


def _inlined_root(root: Schema) -> Schema:
    """The root itself where it is only a reference, as Pydantic writes recursive models."""
    if "$ref" not in root:
        if root.keys() & {"anyOf", "oneOf", "allOf"} or not _is_object(root):
            raise NotRepresentable("the root is not a plain object")
        return root
    return _resolved(root, root)


def _resolved(node: Schema, root: Schema) -> Schema:
    """Follow a local reference."""
    for _ in range(20):
        target = node.get("$ref")
        if target is None:
            return node
        if target == "#":
            return root if "$ref" not in root else _resolved(root, root)
        found = cast(Schema, root.get("$defs", {})).get(str(target).removeprefix("#/$defs/"))
        if not isinstance(found, dict):
            raise NotRepresentable(f"{target} leads nowhere")
        node = cast(Schema, found)
    raise NotRepresentable("its references go in circles")


def _merged_single_all_of(node: Schema) -> Schema:
    parts = node.get("allOf")
    if parts is None:
        return node
    if len(parts) != 1 or not isinstance(parts[0], dict):
        raise NotRepresentable("it uses allOf")
    return {**cast(Schema, parts[0]), **{key: value for key, value in node.items() if key != "allOf"}}


def _has_type(node: Schema, name: str) -> bool:
    kind = node.get("type")
    return kind == name or (isinstance(kind, list) and name in kind)


def _is_object(node: Schema) -> bool:
    return _has_type(node, "object") or ("properties" in node and "type" not in node)


def _is_recursive(schema: Schema) -> bool:
    definitions = cast(Schema, schema.get("$defs", {}))

    def reaches(name: str, seen: frozenset[str]) -> bool:
        if name in seen:
            return True
        node = cast(Schema, definitions.get(name, {}))
        return any(reaches(target, seen | {name}) for target in _targets(node))

    return "#" in _targets(schema) or any(reaches(name, frozenset()) for name in definitions)


def _targets(node: Schema) -> set[str]:
    every = [node, *(child for _, child in subschemas(node))]
    return {str(one["$ref"]).removeprefix("#/$defs/") for one in every if "$ref" in one}


def _check_limits(schema: Schema, dialect: Dialect) -> None:
    every = [schema, *(child for _, child in subschemas(schema))]
    names = [name for one in every for name in cast(Schema, one.get("properties", {}))]
    names += list(cast(Schema, schema.get("$defs", {})))
    values = [value for one in every for value in [*cast(list[Any], one.get("enum", [])), one.get("const", "")]]
    limits = (
        ("properties", len(names), dialect.max_properties),
        ("levels", _levels(schema), dialect.max_levels),
        ("characters in names and values", sum(len(str(one)) for one in [*names, *values]), dialect.max_characters),
        ("enum values", sum(len(cast(list[Any], one.get("enum", []))) for one in every), dialect.max_enum_values),
    )
    for what, count, most in limits:
        if count > most:
            raise NotRepresentable(f"it has {count:,} {what}; {dialect.name} takes {most:,}")


def _levels(node: Schema) -> int:
    nested = [_levels(child) for _, child in _direct(node)]
    return (1 if _is_object(node) or _has_type(node, "array") else 0) + max(nested, default=0)


def _direct(node: Schema) -> list[tuple[str, Schema]]:
    rest = {key: value for key, value in node.items() if key != "$defs"}
    below = list(cast(Schema, rest.get("properties", {})).items()) + [("", one) for one in rest.get("anyOf", [])]
    return below + ([("", rest["items"])] if isinstance(rest.get("items"), dict) else [])


def _decoder(root: Schema) -> Callable[[str], str]:
    def decode(text: str) -> str:
        try:
            refuse_ambiguous(text)
        except ToolArgsParseError:
            return text  # The tool's own parser says what is wrong with it.
        return compact_json(without_nulls(json.loads(text), _inlined_root(root), root))

    return decode


def without_nulls(value: Any, node: Any, root: Schema) -> Any:
    """The value without the nulls that stand for "left out"."""
    if not isinstance(node, dict):
        return value
    node = _resolved(_merged_single_all_of(cast(Schema, node)), root)
    for key in ("anyOf", "oneOf"):
        if key in node:
            branch = next((one for one in cast(list[Any], node[key]) if _could_be(value, one, root)), None)
            return without_nulls(value, branch, root)
    if isinstance(value, list) and "items" in node:
        return [without_nulls(one, node["items"], root) for one in cast(list[Any], value)]
    if not isinstance(value, dict) or "properties" not in node:
        return cast(Any, value)
    required = node.get("required", [])
    kept: Schema = {}
    for name, one in cast(Schema, value).items():
        child = node["properties"].get(name)
        if one is None and child is not None and name not in required and not accepts_null(child, root):
            continue
        kept[name] = without_nulls(one, child, root)
    return kept


def _could_be(value: Any, node: Any, root: Schema) -> bool:
    """Whether a value that the provider has checked can be meant by this branch of a union."""
    if not isinstance(node, dict):
        return False
    node = _resolved(_merged_single_all_of(cast(Schema, node)), root)
    if isinstance(value, list):
        return _has_type(node, "array")
    if not isinstance(value, dict) or not _is_object(node):
        return False
    properties = cast(Schema, node.get("properties", {}))
    if set(cast(Schema, value)) != set(properties):
        return False
    for name, child in properties.items():
        one = cast(Schema, value)[name]
        fixed = _resolved(cast(Schema, child), root) if isinstance(child, dict) else {}
        if ("const" in fixed and fixed["const"] != one) or (
            "enum" in fixed and one is not None and one not in fixed["enum"]
        ):
            return False
    return True
