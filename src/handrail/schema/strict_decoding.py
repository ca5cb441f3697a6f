"""Decoding arguments that were sent in strict mode to arguments that fit the tool's own schema."""

import json
from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct, field

from handrail.errors import ToolArgsParseError
from handrail.schema.arguments import NumberText, refuse_ambiguous, write_json
from handrail.schema.schema_nodes import (
    can_be_omitted,
    get_branches,
    get_fixed_values,
    get_json_type,
    get_types,
    resolve,
)
from handrail.schema.subschemas import Schema


def build_decoder(change: Callable[[Any], Any]) -> Callable[[str], str]:
    """Build a decoder from JSON text to JSON text that changes the value and keeps numbers as the model wrote them.

    Text that is ambiguous or not JSON stays unchanged: the tool's own parser refuses it.
    """

    def decode(text: str) -> str:
        try:
            refuse_ambiguous(text)
            value = json.loads(text, parse_int=NumberText, parse_float=NumberText)
            changed = change(value)
            return text if changed == value else write_json(changed)
        except (ToolArgsParseError, RecursionError):
            return text

    return decode


class StrictForm(Struct, frozen=True, kw_only=True):
    """Compares and restores arguments in the form that one provider's strict mode gives them."""

    root: Schema
    all_required: bool
    """Every property is sent, with null for an omitted one."""
    any_case: bool = False
    """Fixed values may come back in other letter case."""
    results: dict[tuple[int, int], bool] = field(default_factory=dict[Any, Any])
    """Results for parts of one value, so that no union is compared twice."""

    def can_match(self, value: Any, node: Any) -> bool:
        """Whether a value that the provider has checked can belong to this node."""
        if not isinstance(node, dict):
            return node is True
        pair = (id(value), id(cast(Schema, node)))
        if pair not in self.results:
            self.results[pair] = self._can_match_node(value, resolve(node, self.root))
        return self.results[pair]

    def _can_match_node(self, value: Any, node: Schema) -> bool:
        if (either := get_branches(node)) is not None:
            return any(self.can_match(value, branch) for branch in either)
        allowed = get_types(node)
        if allowed is not None and allowed.isdisjoint(_get_types_of(value)):
            return False
        if (values := get_fixed_values(node)) is not None:
            return any(self._is_equal(value, item) for item in values)
        if isinstance(value, list):
            return all(self.can_match(item, node.get("items", True)) for item in cast(list[Any], value))
        return not isinstance(value, dict) or self._can_match_object(cast(Schema, value), node)

    def _can_match_object(self, value: Schema, node: Schema) -> bool:
        properties = cast(Schema, node.get("properties", {}))
        needed = properties if self.all_required else cast(list[str], node.get("required", []))
        if not set(needed) <= value.keys() <= properties.keys():
            return False
        return all(
            self.can_match(member, properties[name])
            or (member is None and self.all_required and can_be_omitted(node, name, self.root))
            for name, member in value.items()
        )

    def _is_equal(self, value: Any, one: Any) -> bool:
        value = json.loads(value) if isinstance(value, NumberText) else value
        if self.any_case and isinstance(value, str) and isinstance(one, str):
            return value.casefold() == one.casefold()
        return isinstance(value, bool) == isinstance(one, bool) and value == one

    def remove_nulls(self, value: Any, node: Any) -> Any:
        """The value without the nulls that mean "omitted"."""
        if not isinstance(node, dict):
            return value
        node = resolve(node, self.root)
        if (either := get_branches(node)) is not None:
            branch = next((item for item in either if self.can_match(value, item)), None)
            return self.remove_nulls(value, branch)
        if isinstance(value, list):
            return [self.remove_nulls(item, node.get("items")) for item in cast(list[Any], value)]
        if not isinstance(value, dict):
            return value
        properties = cast(Schema, node.get("properties", {}))
        return {
            name: self.remove_nulls(member, properties.get(name))
            for name, member in cast(Schema, value).items()
            if member is not None or name not in properties or not can_be_omitted(node, name, self.root)
        }

    def restore_spelling(self, value: Any, node: Any) -> Any:
        """The value with fixed values in the spelling of the schema, if only one of them matches."""
        if not isinstance(node, dict):
            return value
        node = resolve(node, self.root)
        if (either := get_branches(node)) is not None:
            exact = StrictForm(root=self.root, all_required=self.all_required)
            meant = [branch for branch in either if self.can_match(value, branch)]
            return value if exact.can_match(value, node) or len(meant) != 1 else self.restore_spelling(value, meant[0])
        if isinstance(value, str):
            values = get_fixed_values(node) or []
            like = [item for item in values if isinstance(item, str) and self._is_equal(value, item)]
            return like[0] if len(like) == 1 and value not in values else value
        if isinstance(value, list):
            return [self.restore_spelling(item, node.get("items")) for item in cast(list[Any], value)]
        if not isinstance(value, dict):
            return value
        properties = cast(Schema, node.get("properties", {}))
        return {
            name: self.restore_spelling(member, properties.get(name)) for name, member in cast(Schema, value).items()
        }


def _get_types_of(value: Any) -> frozenset[str]:
    if isinstance(value, NumberText):
        whole = value.removeprefix("-").isdigit() or float(value).is_integer()
        return frozenset({"integer", "number"} if whole else {"number"})
    return frozenset({get_json_type(value)})
