"""Lowering a schema to the dialect that a provider can enforce, with a decoder for the arguments.

What a dialect cannot represent is either left to local validation and listed, or keeps the tool out of strict mode with
a reason. So does a schema that is larger than the dialect's limits.
"""

import re
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Final, cast

from msgspec import Struct, field

from handrail.core.lazy_loading import LazyPattern
from handrail.schema.schema_nodes import (
    DisjointCheck,
    NotRepresentable,
    can_be_null,
    can_be_omitted,
    find_definition,
    get_branches,
    get_fixed_values,
    get_types,
    merge_all_of,
    rename_definitions,
    resolve,
)
from handrail.schema.strict_decoding import StrictForm, build_decoder
from handrail.schema.subschemas import Schema, iter_subschemas, map_children

_STRUCTURE = frozenset(
    {"$ref", "$defs", "allOf", "anyOf", "oneOf", "properties", "required", "additionalProperties", "items"}
    | {"enum", "const"}
)
_IMPOSSIBLE = frozenset(
    {"not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas", "patternProperties"}
    | {"propertyNames", "prefixItems", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef"}
    | {"$recursiveRef"}
)
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_CHECKS = frozenset(
    {"minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems", "minProperties"}
    | {"maxProperties", "contains", "minContains", "maxContains", "contentEncoding", "contentMediaType"}
    | {"contentSchema", *_BOUNDS}
)
"""Constraints that can be left to local validation. Any other unknown keyword is an annotation."""
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_LOOKAROUND = LazyPattern(r"\(\?<?[=!]")
_DEEPER_THAN_REGULAR = LazyPattern(r"\(\?<?[=!]|\(\?P=|\\[1-9]|\\[bB]")


class SchemaLimits(Struct, frozen=True, kw_only=True):
    """How large a schema may be for strict mode."""

    properties: int = 5_000
    levels: int = 10
    characters: int = 120_000
    """Characters in the names of properties and definitions, and in fixed values."""
    enum_values: int = 1_000
    long_enum: int = 250
    """An enum with more values than this also has a limit of characters."""
    long_enum_characters: int = 15_000


class Dialect(Struct, frozen=True, kw_only=True):
    """A provider's subset of JSON Schema for strict tools."""

    name: str
    all_required: bool
    """Every property must be required: optional ones become nullable, and null is decoded to "omitted"."""
    keeps_default: bool
    recursion: bool
    checks: frozenset[str]
    """The constraints that the provider enforces; local validation checks them all."""
    formats: frozenset[str]
    bad_pattern: LazyPattern
    limits: SchemaLimits | None = None
    any_case: bool = False
    """Fixed values may come back in other letter case."""


CLOSED_NOTE: Final = "closed by strict mode: "
OPENAI = Dialect(
    name="OpenAI's strict mode",
    all_required=True,
    keeps_default=False,
    recursion=True,
    checks=_BOUNDS | {"pattern", "format", "minItems", "maxItems"},
    formats=_FORMATS,
    bad_pattern=_LOOKAROUND,
    limits=SchemaLimits(),
)
ANTHROPIC = Dialect(
    name="Anthropic's strict mode",
    all_required=False,
    keeps_default=True,
    recursion=False,
    checks=frozenset({"pattern", "format", "minItems"}),
    formats=_FORMATS | {"uri"},
    bad_pattern=_DEEPER_THAN_REGULAR,
    any_case=True,
)


class Lowered(Struct, frozen=True, kw_only=True):
    """A schema that a provider accepts, and the decoder of its arguments."""

    schema: Schema
    decode: Callable[[str], str] | None
    """From the model's JSON text to text that fits the original schema; None if they are the same."""
    lost: tuple[str, ...]
    """What is only checked locally, with its path."""
    closed: tuple[str, ...] = ()
    """The paths of objects that the schema leaves open to other properties, and strict mode closes."""

    @property
    def closed_notes(self) -> tuple[str, ...]:
        """What strict mode changes: a model cannot send properties that are not listed."""
        return tuple(f"{CLOSED_NOTE}{path} accepts no properties but those listed" for path in self.closed)


def lower(schema: Mapping[str, Any], dialect: Dialect) -> Lowered:
    """Lower a tool's schema, or raise `NotRepresentable`."""
    try:
        root = rename_definitions(schema)
        work = _Lowering(dialect=dialect, root=root)
        lowered = work.lower_root()
        if not dialect.recursion and _is_recursive(lowered):
            raise NotRepresentable("it refers to itself")
        if dialect.limits is not None:
            _check_limits(lowered, dialect.limits, dialect.name)
    except RecursionError:
        raise NotRepresentable("it is nested too deeply") from None
    return Lowered(
        schema=lowered,
        decode=work.build_decoder(lowered),
        lost=tuple(dict.fromkeys(work.lost)),
        closed=tuple(dict.fromkeys(work.closed)),
    )


class _Lowering(Struct, kw_only=True):
    dialect: Dialect
    root: Schema
    lost: list[str] = field(default_factory=list[str])
    closed: list[str] = field(default_factory=list[str])
    has_omitted: bool = False
    """Whether null means "omitted" anywhere."""
    unions: list[tuple[str, list[Any]]] = field(default_factory=list[tuple[str, list[Any]]])
    definitions: dict[str, Schema | None] = field(default_factory=dict[str, Schema | None])
    """The definitions that are referred to, lowered; None until then."""

    def lower_root(self) -> Schema:
        start = resolve(self.root, self.root)
        if get_branches(start) is not None or "object" not in (get_types(start) or ()):
            raise NotRepresentable("the root is not a plain object")
        lowered = self.lower(start, "") | {"type": "object"}
        while waiting := [name for name, done in self.definitions.items() if done is None]:
            for name in waiting:
                self.definitions[name] = self.lower(find_definition(self.root, name), name)
        if self.definitions:
            kept = {name: self.definitions[name] for name in self.root.get("$defs", {}) if name in self.definitions}
            lowered["$defs"] = kept
        self._check_unions()
        return lowered

    def build_decoder(self, lowered: Schema) -> Callable[[str], str] | None:
        root = self.root
        if self.dialect.all_required and self.has_omitted:
            return build_decoder(lambda value: StrictForm(root=root, all_required=True).remove_nulls(value, root))
        if self.dialect.any_case and _has_fixed_texts(lowered):
            return build_decoder(
                lambda value: StrictForm(root=root, all_required=False, any_case=True).restore_spelling(value, root)
            )
        return None

    def lower(self, node: Any, place: str) -> Schema:
        here = place or "the root"
        if not isinstance(node, dict) or not (
            cast(Schema, node).keys() & (_STRUCTURE | _CHECKS | _IMPOSSIBLE | {"type"})
        ):
            raise NotRepresentable(f"{here} accepts anything")
        node = merge_all_of(cast(Schema, node))
        if impossible := sorted(_IMPOSSIBLE & node.keys()):
            raise NotRepresentable(f"{here} uses {', '.join(impossible)}")
        if "$ref" in node:
            return self._lower_reference(node, place)
        if get_branches(node) is not None:
            return self._lower_union(node, place)
        allowed = get_types(node)
        if allowed is None:
            raise NotRepresentable(f"{here} has no type")
        copy: Schema = {"type": node.get("type", _render_types(allowed)), **self._keep_annotations(node)}
        copy |= {key: node[key] for key in ("enum", "const") if key in node}
        if any(isinstance(value, dict | list) for value in get_fixed_values(node) or ()):
            raise NotRepresentable(f"{here} has fixed values that are objects or arrays")
        for key, value in node.items():
            if self._can_enforce(key, value):
                copy[key] = value
            elif key in _CHECKS:
                self.lost.append(f"{here}: {key}")
        if "object" in allowed:
            self._lower_object(node, copy, place)
        if "array" in allowed:
            if "items" not in node:
                raise NotRepresentable(f"{here} is an array of anything")
            copy["items"] = self.lower(node["items"], f"{place}[]")
        return copy

    def _keep_annotations(self, node: Schema) -> Schema:
        """The annotations that a model reads."""
        kept = ("description", "default") if self.dialect.keeps_default else ("description",)
        return {key: node[key] for key in kept if key in node}

    def _can_enforce(self, key: str, value: Any) -> bool:
        if key not in self.dialect.checks:
            return False
        if key == "minItems" and "maxItems" not in self.dialect.checks:
            return value in (0, 1)
        if key == "format":
            return value in self.dialect.formats
        return key != "pattern" or not self.dialect.bad_pattern.compiled.search(str(value))

    def _lower_reference(self, node: Schema, place: str) -> Schema:
        target = str(node["$ref"])
        if target != "#" and not re.fullmatch(r"#/\$defs/[^/]+", target):
            raise NotRepresentable(f"{place or 'the root'} refers to {target}")
        self._drop_neighbours(node, {"$ref"}, place)
        spoken = self._keep_annotations(node)
        meant = resolve(node, self.root)
        if (
            spoken and get_fixed_values(meant) is not None
        ):  # Short; inlined, it needs no union to carry the description.
            return self.lower({**meant, **spoken}, place)
        if target != "#":
            self.definitions.setdefault(target.removeprefix("#/$defs/"), None)
        reference: Schema = {"$ref": target}
        return {"anyOf": [reference], **spoken} if "description" in spoken else reference

    def _lower_union(self, node: Schema, place: str) -> Schema:
        either = get_branches(node)
        if not either or {"anyOf", "oneOf"} <= node.keys():
            raise NotRepresentable(f"{place or 'the root'} is a union that strict mode cannot represent")
        self._drop_neighbours(node, {"anyOf", "oneOf"}, place)
        self.unions.append((place, either))
        return {"anyOf": [self.lower(branch, place) for branch in either], **self._keep_annotations(node)}

    def _drop_neighbours(self, node: Schema, known: set[str], place: str) -> None:
        """List constraints beside a reference or a union as lost; structure beside it cannot be represented."""
        if clash := sorted((node.keys() & _STRUCTURE) - known - {"$defs"}):
            raise NotRepresentable(
                f"{place or 'the root'} combines {', '.join(sorted(known & node.keys()))} with {clash[0]}"
            )
        self.lost += [f"{place or 'the root'}: {key}" for key in sorted(node.keys() & _CHECKS)]

    def _lower_object(self, node: Schema, copy: Schema, place: str) -> None:
        properties = cast(Schema, node.get("properties", {}))
        # An object that lists properties is taken as closed; one that lists none is a map, unless it is the root: a
        # tool without parameters.
        says_keys = bool(properties) or (not place and "properties" in node)
        if node.get("additionalProperties", not says_keys) is not False:
            raise NotRepresentable(f"{place or 'the root'} is a map with open keys")
        required = cast(list[str], node.get("required", []))
        if unknown := [name for name in required if name not in properties]:
            raise NotRepresentable(f"{place or 'the root'} requires `{unknown[0]}` without defining it")
        lowered: Schema = {}
        for name, child in properties.items():
            below = f"{place}.{name}" if place else name
            lowered[name] = self.lower(child, below)
            if not self.dialect.all_required or name in required:
                continue
            if can_be_omitted(node, name, self.root):
                lowered[name] = _make_nullable(lowered[name])
                self.has_omitted = True
            elif can_be_null(child, self.root) and child.get("default", "none") is not None:
                raise NotRepresentable(f"{below} can be null and can be left out, which strict mode cannot tell apart")
        copy["properties"] = lowered
        copy["required"] = (
            list(properties) if self.dialect.all_required else [item for item in properties if item in required]
        )
        copy["additionalProperties"] = False
        if "additionalProperties" not in node:
            self.closed.append(place or "the root")

    def _check_unions(self) -> None:
        """Refuse unions in which null could mean "omitted" in one branch and something else in another."""
        if not self.has_omitted or not self.dialect.all_required:
            return
        apart = DisjointCheck(root=self.root)
        for place, either in self.unions:
            for pair, other in combinations(either, 2):
                if (self._has_omittable(pair) or self._has_omittable(other)) and not apart(pair, other):
                    raise NotRepresentable(f"{place or 'the root'} is a union whose branches cannot be told apart")

    def _has_omittable(self, node: Any, seen: set[int] | None = None) -> bool:
        seen = set[int]() if seen is None else seen
        node = resolve(node, self.root)
        if id(node) in seen:
            return False
        seen.add(id(node))
        properties = cast(Schema, node.get("properties", {}))
        below = [*(get_branches(node) or ()), *properties.values(), *([node["items"]] if "items" in node else [])]
        return any(can_be_omitted(node, name, self.root) for name in properties) or any(
            self._has_omittable(child, seen) for child in below
        )


def _make_nullable(node: Schema) -> Schema:
    if isinstance(node.get("type"), str) and not node.keys() & {"enum", "const"}:
        return {**node, "type": [node["type"], "null"]}
    if "anyOf" in node:
        return {**node, "anyOf": [*cast(list[Any], node["anyOf"]), {"type": "null"}]}
    rest = {key: value for key, value in node.items() if key != "description"}
    outer: Schema = {"anyOf": [rest, {"type": "null"}]}
    return {**outer, "description": node["description"]} if "description" in node else outer


def _render_types(allowed: frozenset[str]) -> str | list[str]:
    return next(iter(allowed)) if len(allowed) == 1 else sorted(allowed)


def _has_fixed_texts(schema: Schema) -> bool:
    every = [schema, *(child for _, child in iter_subschemas(schema))]
    return any(isinstance(value, str) for item in every for value in get_fixed_values(item) or ())


def _check_limits(schema: Schema, limits: SchemaLimits, dialect: str) -> None:
    """Raise `NotRepresentable` for a schema that is too large."""
    every = [schema, *(child for _, child in iter_subschemas(schema))]
    names = [name for node in every for name in cast(Schema, node.get("properties", {}))]
    enums = [cast(list[Any], node.get("enum", [])) for node in every]
    texts = [*names, *cast(Schema, schema.get("$defs", {})), *(value for values in enums for value in values)]
    texts += [node["const"] for node in every if "const" in node]
    long = [_count_characters(values) for values in enums if len(values) > limits.long_enum]
    for what, count, most in (
        ("properties", len(names), limits.properties),
        ("levels", _count_levels(schema, schema, {}), limits.levels),
        ("characters in names and values", _count_characters(texts), limits.characters),
        ("enum values", sum(map(len, enums)), limits.enum_values),
        ("characters in one enum", max(long, default=0), limits.long_enum_characters),
    ):
        if count > most:
            raise NotRepresentable(f"it has {count:,} {what}; {dialect} allows {most:,}")


def _count_characters(values: list[Any]) -> int:
    return sum(len(str(value)) for value in values)


def _count_levels(node: Schema, root: Schema, known: dict[str, int]) -> int:
    """The nesting depth of objects and arrays; a definition counts where it is referred to, a cycle once."""
    if "$ref" in node:
        target = str(node["$ref"]).removeprefix("#/$defs/")
        if target not in known:
            known[target] = 0
            known[target] = _count_levels(cast(Schema, root.get("$defs", {})).get(target, {}), root, known)
        return known[target]
    below = [0]

    def visit(name: str, child: Any) -> Any:
        if isinstance(child, dict):
            below.append(_count_levels(cast(Schema, child), root, known))
        return cast(Any, child)

    map_children({key: value for key, value in node.items() if key != "$defs"}, visit)
    return bool({"object", "array"} & (get_types(node) or frozenset())) + max(below)


def _is_recursive(schema: Schema) -> bool:
    """Whether a schema refers to itself."""
    definitions = cast(Schema, schema.get("$defs", {}))
    ahead = {name: _collect_targets(cast(Schema, node)) for name, node in definitions.items()}
    if "#" in _collect_targets(schema):
        return True
    # Remove what refers to nothing that is left; the rest is a cycle.
    while leaves := [name for name, targets in ahead.items() if not targets & ahead.keys()]:
        for name in leaves:
            del ahead[name]
    return bool(ahead)


def _collect_targets(node: Schema) -> set[str]:
    every = [node, *(child for _, child in iter_subschemas(node))]
    return {str(schema["$ref"]).removeprefix("#/$defs/") for schema in every if "$ref" in schema}
