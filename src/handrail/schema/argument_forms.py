"""The two canonical texts of validated arguments by which a later release still recognises what was done before."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec
import pydantic
from pydantic_core import to_jsonable_python

from handrail.core.text import normalize_numbers

ArgumentForms = Callable[[Any, str], tuple[str, str]]
"""Takes validated arguments and the JSON text that they were parsed from; returns both forms of them.

The first has all values, except those that a `default_factory` made; the second also leaves out what equals its static
default, at every depth. Numbers are written by value, and secrets with their values: the texts go only into keyed
digests.
"""

_PLAIN_TYPES: Final = frozenset(
    {
        *("any", "bool", "default", "definition-ref", "definitions", "dict", "float", "int", "list", "literal"),
        *("model", "model-field", "model-fields", "none", "nullable", "str", "tagged-union", "typed-dict"),
        *("typed-dict-field", "union"),
    }
)
"""Nodes of a core schema whose values are the same in Python and in JSON."""


def _to_json(value: Any) -> Any:
    if isinstance(value, pydantic.SecretStr | pydantic.SecretBytes | pydantic.Secret):
        return cast(Any, value).get_secret_value()
    return to_jsonable_python(value)


_VALUES: Final = msgspec.json.Encoder(order="deterministic", decimal_format="number", enc_hook=_to_json)


def build_forms(to_python: Callable[..., Any], core_schema: Any) -> ArgumentForms:
    """Build the forms of a type, from the serializer and the core schema that Pydantic made of it."""
    kinds, has_serializers, has_factories = _read_core_schema(core_schema)
    options: dict[str, Any] = {"by_alias": True, "warnings": False}
    # A value that is not the same in JSON (a Decimal, a secret, a set) is dumped as it is, and written by `_VALUES`.
    options["mode"] = "json" if kinds <= _PLAIN_TYPES and not has_serializers else "python"
    has_defaults = "default" in kinds

    def dump(value: Any, **more: Any) -> Any:
        try:
            return to_python(value, **options, **more)
        except TypeError:  # A set of models: as Python values these are dicts, which no set can hold.
            return to_python(_open_sets(value), **options, **more)

    def write_forms(value: Any, sent: str) -> tuple[str, str]:
        everything = dump(value)
        changed = dump(value, exclude_defaults=True) if has_defaults else everything
        if has_factories:
            source = _decode_object(sent)
            everything, changed = _drop_made(everything, changed, source), _keep_sent(changed, source)
        full = _write(everything)
        return full, full if changed is everything else _write(changed)

    return write_forms


def _open_sets(value: Any) -> Any:
    """A copy of a value with sorted lists in place of sets."""
    if isinstance(value, set | frozenset):
        items = [_open_sets(item) for item in cast(Iterable[Any], value)]
        return sorted(items, key=lambda item: _VALUES.encode(to_jsonable_python(item)))
    if isinstance(value, dict):
        return {name: _open_sets(item) for name, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list):
        return [_open_sets(item) for item in cast(list[Any], value)]
    if isinstance(value, pydantic.BaseModel):
        return value.model_copy(update={name: _open_sets(item) for name, item in value.__dict__.items()})
    return value


def _write(values: Any) -> str:
    return normalize_numbers(_VALUES.encode(values).decode())


def _read_core_schema(core_schema: Any) -> tuple[set[str], bool, bool]:
    """The types of all nodes, whether one has a serializer of its own, and whether one makes its default."""
    kinds: set[str] = set()
    has_serializers = has_factories = False
    waiting = [core_schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            members = cast(dict[str, Any], node)
            if isinstance(kind := members.get("type"), str):
                kinds.add(kind)
            has_serializers = has_serializers or "serialization" in members
            has_factories = has_factories or "default_factory" in members
            waiting.extend(child for name, child in members.items() if name not in ("default", "metadata"))
        elif isinstance(node, list | tuple):
            waiting.extend(cast(list[Any], node))
    return kinds, has_serializers, has_factories


def _decode_object(sent: str) -> Any:
    try:
        return msgspec.json.decode(sent or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None


def _drop_made(everything: Any, changed: Any, sent: Any) -> Any:
    """All values but those that nobody sent and that are no static default: a `default_factory` made them."""
    if isinstance(everything, Mapping) and isinstance(changed, Mapping) and isinstance(sent, Mapping):
        values, kept, given = cast(Any, everything), cast(Any, changed), cast(Any, sent)
        return {
            name: _drop_made(value, kept[name], given[name]) if name in kept and name in given else value
            for name, value in values.items()
            if name in given or name not in kept
        }
    if isinstance(everything, list) and isinstance(changed, list) and isinstance(sent, list):
        items = cast("tuple[list[Any], list[Any], list[Any]]", (everything, changed, sent))
        if len({len(some) for some in items}) == 1:
            return [_drop_made(*item) for item in zip(*items, strict=True)]
    return cast(Any, everything)


def _keep_sent(changed: Any, sent: Any) -> Any:
    """What differs from its default and was sent."""
    if isinstance(changed, Mapping) and isinstance(sent, Mapping):
        kept, given = cast(Any, changed), cast(Any, sent)
        return {name: _keep_sent(value, given[name]) for name, value in kept.items() if name in given}
    if isinstance(changed, list) and isinstance(sent, list):
        items = cast("tuple[list[Any], list[Any]]", (changed, sent))
        if len(items[0]) == len(items[1]):
            return [_keep_sent(*item) for item in zip(*items, strict=True)]
    return cast(Any, changed)
