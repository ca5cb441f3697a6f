"""What a model sent in strict mode, turned back into what the tool accepts."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from handrail.errors import ToolArgsParseError
from handrail.schema.ambiguity import refuse_ambiguous
from handrail.schema.nodes import branches, fixed, kind_of, kinds, may_be_left_out, resolved
from handrail.schema.tidy import Schema


class Number(str):
    """A number as the model wrote it; a float would round what a Decimal keeps."""

    __slots__ = ()


def decoder(change: Callable[[Any], Any]) -> Callable[[str], str]:
    """From JSON text to JSON text, with a change to the value, and the rest as the model wrote it.

    Text that is ambiguous, or no JSON at all, passes as it is: the tool's own parser says what is wrong with it.
    """

    def decode(text: str) -> str:
        try:
            refuse_ambiguous(text)
            value = json.loads(text, parse_int=Number, parse_float=Number)
            changed = change(value)
            return text if changed == value else _written(changed)
        except (ToolArgsParseError, RecursionError):
            return text

    return decode


def _written(value: Any) -> str:
    match value:
        case Number():
            return str(value)
        case dict():
            members = cast(dict[str, Any], value).items()
            return "{" + ",".join(f"{_written(name)}:{_written(one)}" for name, one in members) + "}"
        case list():
            return "[" + ",".join(_written(one) for one in cast(list[Any], value)) + "]"
        case str():
            # A lone surrogate stays an escape, which the parser refuses; it must not become another character.
            return json.dumps(value, ensure_ascii=any("\ud800" <= char <= "\udfff" for char in value))
        case _:
            return json.dumps(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How arguments look in one provider's strict mode."""

    root: Schema
    whole: bool
    """Every property is sent, with null for what was left out."""
    any_case: bool = False
    """Fixed values may come back with other capitals."""
    known: dict[tuple[int, int], bool] = field(default_factory=dict[Any, Any])
    """What was found out about parts of one value, so that no union is looked into twice."""

    def fits(self, value: Any, node: Any) -> bool:
        """Whether a value that the provider has checked can be meant by this node."""
        if not isinstance(node, dict):
            return node is True
        pair = (id(value), id(cast(Schema, node)))
        if pair not in self.known:
            self.known[pair] = self._fits(value, resolved(node, self.root))
        return self.known[pair]

    def _fits(self, value: Any, node: Schema) -> bool:
        if (either := branches(node)) is not None:
            return any(self.fits(value, branch) for branch in either)
        allowed = kinds(node)
        if allowed is not None and allowed.isdisjoint(_kinds_of(value)):
            return False
        if (values := fixed(node)) is not None:
            return any(self._same(value, one) for one in values)
        if isinstance(value, list):
            return all(self.fits(one, node.get("items", True)) for one in cast(list[Any], value))
        return not isinstance(value, dict) or self._object_fits(cast(Schema, value), node)

    def _object_fits(self, value: Schema, node: Schema) -> bool:
        properties = cast(Schema, node.get("properties", {}))
        needed = properties if self.whole else cast(list[str], node.get("required", []))
        if not set(needed) <= value.keys() <= properties.keys():
            return False
        return all(
            self.fits(one, properties[name]) or (one is None and self.whole and may_be_left_out(node, name, self.root))
            for name, one in value.items()
        )

    def _same(self, value: Any, one: Any) -> bool:
        value = json.loads(value) if isinstance(value, Number) else value
        if self.any_case and isinstance(value, str) and isinstance(one, str):
            return value.casefold() == one.casefold()
        return isinstance(value, bool) == isinstance(one, bool) and value == one

    def without_nulls(self, value: Any, node: Any) -> Any:
        """The value without the nulls that stand for "left out"."""
        if not isinstance(node, dict):
            return value
        node = resolved(node, self.root)
        if (either := branches(node)) is not None:
            branch = next((one for one in either if self.fits(value, one)), None)
            return self.without_nulls(value, branch)
        if isinstance(value, list):
            return [self.without_nulls(one, node.get("items")) for one in cast(list[Any], value)]
        if not isinstance(value, dict):
            return value
        properties = cast(Schema, node.get("properties", {}))
        return {
            name: self.without_nulls(one, properties.get(name))
            for name, one in cast(Schema, value).items()
            if one is not None or name not in properties or not may_be_left_out(node, name, self.root)
        }

    def spelled(self, value: Any, node: Any) -> Any:
        """The value with the fixed values in the spelling of the schema, where only one of them can be meant."""
        if not isinstance(node, dict):
            return value
        node = resolved(node, self.root)
        if (either := branches(node)) is not None:
            exact = Form(root=self.root, whole=self.whole)
            meant = [one for one in either if self.fits(value, one)]
            return value if exact.fits(value, node) or len(meant) != 1 else self.spelled(value, meant[0])
        if isinstance(value, str):
            values = fixed(node) or []
            like = [one for one in values if isinstance(one, str) and self._same(value, one)]
            return like[0] if len(like) == 1 and value not in values else value
        if isinstance(value, list):
            return [self.spelled(one, node.get("items")) for one in cast(list[Any], value)]
        if not isinstance(value, dict):
            return value
        properties = cast(Schema, node.get("properties", {}))
        return {name: self.spelled(one, properties.get(name)) for name, one in cast(Schema, value).items()}


def _kinds_of(value: Any) -> frozenset[str]:
    if isinstance(value, Number):
        whole = value.removeprefix("-").isdigit() or float(value).is_integer()
        return frozenset({"integer", "number"} if whole else {"number"})
    return frozenset({kind_of(value)})
