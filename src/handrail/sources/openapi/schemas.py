"""Schemas of a document, as the JSON Schema that a tool's arguments have."""

import re
from functools import lru_cache
from typing import Any, Final, cast

import jsonschema_rs

from handrail.errors import shorten
from handrail.schema.json_schema_arguments import find_schema_problem
from handrail.schema.subschemas import Schema
from handrail.sources.openapi.document import Documents, UnusableError

_ONE: Final = frozenset({"items", "additionalProperties", "contains", "propertyNames", "additionalItems"})
_ONE_OF_THE_SAME: Final = frozenset({"not", "if", "then", "else"})
_LISTS: Final = frozenset({"prefixItems"})
_LISTS_OF_THE_SAME: Final = frozenset({"allOf", "anyOf", "oneOf"})
_MAPS: Final = frozenset({"properties", "patternProperties"})
_MAPS_OF_THE_SAME: Final = frozenset({"dependentSchemas"})
_KEPT: Final = frozenset(
    {
        *("type", "format", "enum", "const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties"),
        *("maxProperties", "dependentRequired", "contentEncoding", "contentMediaType"),
    }
)
_MAX_DESCRIPTION: Final = 1_000
_MAX_DEFINITIONS: Final = 2_000
_PLAIN: Final = frozenset({"type", "properties", "required", "description", "additionalProperties"})


class References:
    """The definitions that a schema refers to, and those among them that hold for the very same value."""

    __slots__ = ("every", "same")

    def __init__(self) -> None:
        self.every: set[str] = set()
        self.same: set[str] = set()


class SchemaCompiler:
    """Converts the schemas of a document. What is referred to is converted once, and shared by all that refer to it."""

    def __init__(self, documents: Documents, *, version: str, dropped: str = "readOnly") -> None:
        self._documents = documents
        self._dropped = dropped
        """The keyword of the properties that are left out: arguments have none that only the server sets."""
        self._keeps_siblings = not version.startswith(("2.", "3.0"))
        """Whether keywords beside a `$ref` count, as they do from OpenAPI 3.1 on."""
        self._names: dict[tuple[str, str], str] = {}
        self._targets: dict[str, tuple[Any, str]] = {}
        self._definitions: dict[str, Schema | bool] = {}
        self._references: dict[str, References] = {}

    def convert(self, node: Any, base: str, found: References, *, same: bool = False) -> Any:
        """A schema of the document as JSON Schema; the definitions that it refers to are added to `found`."""
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise UnusableError(f"a schema must be an object, got {shorten(repr(node))}")
        node = cast(Schema, node)
        if "$ref" in node:
            return self._refer(node, base, found, same=same)
        made: Schema = {}
        for key, value in node.items():
            if key in _KEPT:
                made[key] = value
            elif key in _ONE:
                made[key] = self.convert(value, base, found)
            elif key in _LISTS_OF_THE_SAME and isinstance(value, list):
                made[key] = [self.convert(item, base, found, same=same) for item in cast(list[Any], value)]
            elif key in _MAPS and isinstance(value, dict):
                made[key] = {name: self.convert(member, base, found) for name, member in cast(Schema, value).items()}
            elif key in _ONE_OF_THE_SAME:
                made[key] = self.convert(value, base, found, same=same)
            elif key in _LISTS and isinstance(value, list):
                made[key] = [self.convert(item, base, found) for item in cast(list[Any], value)]
            elif key in _MAPS_OF_THE_SAME and isinstance(value, dict):
                made[key] = {
                    n: self.convert(member, base, found, same=same) for n, member in cast(Schema, value).items()
                }
            elif key == "description" and isinstance(value, str):
                made[key] = value if len(value) <= _MAX_DESCRIPTION else f"{value[:_MAX_DESCRIPTION]}…"
            elif key == "pattern" and isinstance(value, str) and _compiles(value):
                made[key] = value  # One that only another engine knows is left to the server.
            elif key == "required" and isinstance(value, list):
                made[key] = list(dict.fromkeys(item for item in cast(list[Any], value) if isinstance(item, str)))
        if "properties" in made:
            self._drop_properties(node, base, made)
        _convert_bounds(made)
        if made.get("type") == "file":
            made |= {"type": "string", "format": "binary"}
        if isinstance(node.get("discriminator"), dict):
            self._discriminate(node, base, made)
        return _allow_null(made) if node.get("nullable") is True else made

    def _refer(self, node: Schema, base: str, found: References, *, same: bool) -> Schema:
        _, address, pointer = self._documents.target(node["$ref"], base)
        name = self._name(address, pointer)
        found.every.add(name)
        if same:
            found.same.add(name)
        made: Schema = {"$ref": f"#/$defs/{name}"}
        rest = {key: value for key, value in node.items() if key != "$ref"}
        if rest and self._keeps_siblings:
            return {**self.convert(rest, base, found, same=same), **made}
        if isinstance(rest.get("description"), str):
            made["description"] = rest["description"][:_MAX_DESCRIPTION]
        return _allow_null(made) if rest.get("nullable") is True else made

    def _name(self, address: str, pointer: str) -> str:
        """The name of a definition: the last part of its pointer, numbered where that is taken."""
        known = self._names.get((address, pointer))
        if known is not None:
            return known
        last = pointer.rpartition("/")[2] or address.rpartition("/")[2].partition(".")[0]
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", last).strip("_")[:60] or "schema"
        name, number = plain, 2
        while name in self._targets:
            name, number = f"{plain}_{number}", number + 1
        self._names[address, pointer] = name
        node, base, _ = self._documents.target(f"#{pointer}", address)
        self._targets[name] = (node, base)
        return name

    def definition(self, name: str) -> tuple[Schema | bool, References]:
        """A definition, and what it refers to itself."""
        if name not in self._definitions:
            node, base = self._targets[name]
            found = References()
            made = self.convert(node, base, found, same=True)
            if isinstance(made, dict) and (problem := find_schema_problem(cast(Schema, made))):
                raise UnusableError(f"its schema {name!r} {problem}")
            self._definitions[name], self._references[name] = made, found
        return self._definitions[name], self._references[name]

    def definitions(self, found: References) -> dict[str, Any]:
        """Everything that is needed to follow these references to their end."""
        needed: dict[str, Any] = {}
        ahead = sorted(found.every, reverse=True)
        while ahead:
            name = ahead.pop()
            if name in needed:
                continue
            needed[name], further = self.definition(name)
            if len(needed) > _MAX_DEFINITIONS:
                raise UnusableError(f"its schema needs more than {_MAX_DEFINITIONS:,} definitions")
            ahead += sorted(further.every - needed.keys(), reverse=True)
        self._refuse_circles(needed)
        return needed

    def _refuse_circles(self, names: dict[str, Any]) -> None:
        """Refuse definitions that say nothing but "I am what I am": checking a value against them would never end."""
        ahead = {name: self._references[name].same & names.keys() for name in names}
        while leaves := [name for name, targets in ahead.items() if not targets & ahead.keys()]:
            for name in leaves:
                del ahead[name]
        if ahead:
            raise UnusableError(f"its schema {sorted(ahead)[0]!r} refers to itself without end")

    def flatten_object(self, node: Any, depth: int = 0) -> Schema | None:
        """A schema as one object with properties and nothing else, or None where it cannot be written so."""
        if not isinstance(node, dict) or depth > 10:
            return None
        node = cast(Schema, node)
        if "$ref" in node and node.keys() <= {"$ref", "description"}:
            target, _ = self.definition(str(node["$ref"]).removeprefix("#/$defs/"))
            return self.flatten_object(target, depth + 1)
        if "allOf" in node and node.keys() <= _PLAIN | {"allOf"}:
            rest = {key: value for key, value in node.items() if key != "allOf"}
            parts = [self.flatten_object(item, depth + 1) for item in node["allOf"]]
            return _merge_objects([*parts, {"type": "object", **rest}])
        if not node.keys() <= _PLAIN or node.get("type", "object") != "object" or node.get("additionalProperties"):
            return None
        return node

    def _drop_properties(self, node: Schema, base: str, made: Schema) -> None:
        """What only the server sets is no argument; what only a client sends is in no response."""
        for name, value in cast(Schema, node["properties"]).items():
            if isinstance(value, dict) and (
                cast(Schema, value).get(self._dropped) is True or self._is_dropped(value, base)
            ):
                del made["properties"][name]
                if name in made.get("required", ()):
                    made["required"] = [other for other in made["required"] if other != name]

    def _is_dropped(self, node: Any, base: str) -> bool:
        if "$ref" not in node:
            return False
        target, _, _ = self._documents.target(node["$ref"], base)
        return isinstance(target, dict) and cast(Schema, target).get(self._dropped) is True

    def _discriminate(self, node: Schema, base: str, made: Schema) -> None:
        """Say in JSON Schema which value of the discriminator belongs to which branch."""
        field: Any = node["discriminator"].get("propertyName")
        mapping: Any = node["discriminator"].get("mapping") or {}
        if not isinstance(field, str) or not isinstance(mapping, dict):
            return
        mapping = cast(dict[str, Any], mapping)
        for keyword in ("oneOf", "anyOf"):
            branches: Any = node.get(keyword)
            if isinstance(branches, list):
                made[keyword] = [
                    self._mark(branch, converted, base, field, mapping)
                    for branch, converted in zip(cast(list[Any], branches), made[keyword], strict=True)
                ]
                return
        child = made.get("properties", {}).get(field)
        if mapping and isinstance(child, dict) and not cast(Schema, child).keys() & {"enum", "const", "$ref"}:
            made["properties"] = {**made["properties"], field: {**cast(Schema, child), "enum": list(mapping)}}

    def _mark(self, branch: Any, converted: Any, base: str, field: str, mapping: dict[str, Any]) -> Any:
        """A branch of a union with the values of the discriminator that choose it."""
        if not isinstance(branch, dict) or "$ref" not in branch:
            return converted
        ref = str(cast(Schema, branch)["$ref"])
        last = ref.rpartition("/")[2]
        values = [value for value, target in mapping.items() if target in (ref, last)] or [last]
        target, _ = self._documents.resolve(branch, base)
        own = target.get("properties", {}).get(field) if isinstance(target, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(own, dict) and cast(Schema, own).keys() & {"enum", "const"}:
            return converted
        return {"allOf": [converted, {"properties": {field: {"enum": values}}, "required": [field]}]}


def find_references(schema: Any) -> set[str]:
    """The definitions that a converted schema refers to directly."""
    found: set[str] = set()
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            ref = cast(Schema, node).get("$ref")
            if isinstance(ref, str):
                found.add(ref.removeprefix("#/$defs/"))
            stack.extend(cast(Schema, node).values())
        elif isinstance(node, list):
            stack.extend(cast(list[Any], node))
    return found


def _merge_objects(parts: list[Schema | None]) -> Schema | None:
    """Objects that must all hold, as one; None where they do not fit together."""
    properties: Schema = {}
    required: dict[str, None] = {}
    for part in parts:
        if part is None or (part.get("additionalProperties") is False and len(parts) > 1):
            return None
        for name, value in cast(Schema, part.get("properties", {})).items():
            if properties.setdefault(name, value) != value:
                return None
        required |= dict.fromkeys(part.get("required", ()))
    return {"type": "object", "properties": properties, "required": list(required)}


def _convert_bounds(made: Schema) -> None:
    """`exclusiveMinimum: true`, as OpenAPI 3.0 writes it, is a number in JSON Schema."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        flag = made.get(exclusive)
        if isinstance(flag, bool):
            del made[exclusive]
            if flag and bound in made:
                made[exclusive] = made.pop(bound)


def _allow_null(made: Schema) -> Schema:
    kind = made.get("type")
    if isinstance(kind, str):
        if "enum" in made and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
        return {**made, "type": [kind, "null"]}
    if not made.keys() - {"description", "default"}:
        return made  # It takes anything already.
    said = {key: made[key] for key in ("description", "default") if key in made}
    rest = {key: value for key, value in made.items() if key not in said}
    return {**said, "anyOf": [rest, {"type": "null"}]}


@lru_cache(maxsize=1_000)
def _compiles(pattern: str) -> bool:
    try:
        jsonschema_rs.validator_for(
            {"pattern": pattern}, pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=1_000)
        )
    except (ValueError, jsonschema_rs.ValidationError):
        return False
    return True
