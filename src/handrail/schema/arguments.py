"""The arguments of a tool: their JSON Schema, and the functions that parse, dump and write them."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Final, cast

import msgspec
import pydantic
from pydantic_core import PydanticSerializationError, ValidationError, to_jsonable_python
from typing_extensions import TypedDict

from handrail.core.text import canonical_json, normalize_canonical
from handrail.core.tool import ArgumentParsers, find_hidden_field
from handrail.errors import ToolArgsParseError
from handrail.schema import validation_errors
from handrail.schema.pydantic_schema import generate_input_schema


class NumberText(str):
    """A number as the model wrote it; a float would lose the digits of a Decimal."""

    __slots__ = ()


def write_json(value: Any) -> str:
    """Write a JSON value whose numbers may be `NumberText`."""
    match value:
        case NumberText():
            return str(value)
        case dict():
            members = cast(dict[str, Any], value).items()
            return "{" + ",".join(f"{write_json(name)}:{write_json(member)}" for name, member in members) + "}"
        case list():
            return "[" + ",".join(write_json(item) for item in cast(list[Any], value)) + "]"
        case str():
            # A lone surrogate stays an escape, which the parser refuses.
            return json.dumps(value, ensure_ascii=any("\ud800" <= char <= "\udfff" for char in value))
        case _:
            return json.dumps(value)


# Pydantic loads its parts on first use. Naming them as attributes (`pydantic.TypeAdapter`) instead of importing them
# keeps `from handrail import tool` about as cheap as `import pydantic`.

ArgumentForms = Callable[[Any, str, Any], tuple[str, str]]
"""Takes validated arguments, the JSON text that they were parsed from, and what `dump` made of them; returns two forms.

The first has all values, except those that a `default_factory` made; the second also leaves out what equals its static
default, at every depth. Numbers are written by value, and secrets with their values: the texts go only into keyed
digests.
"""


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What one tool accepts."""

    input_schema: dict[str, Any]
    parse: Callable[[str], Any]
    """JSON text to validated arguments; raises a `ToolError` for the model."""
    dump: Callable[[Any], dict[str, Any]]
    """Validated arguments to JSON values."""
    dump_sent: Callable[[Any], dict[str, Any]] | None = None
    """Validated arguments to JSON values, without the defaults; None if no string can become a number."""
    parse_strict: Callable[[str], Any] | None = None
    """`parse` without conversions between types; None if `parse` converts nothing."""
    write_forms: ArgumentForms | None = None
    """Writes validated arguments as the two texts that make the keys of a call."""
    hidden_field: str | None = None
    """Which field `dump` leaves out, and what to do about it."""

    def build_parsers(self) -> ArgumentParsers:
        """The parsers of a tool, for every combination of its flags."""
        return ArgumentParsers(
            lenient=self.parse,
            unambiguous=self._refuse_ambiguous(self.parse),
            strict=self._refuse_ambiguous(self.parse_strict or self.parse),
        )

    def _refuse_ambiguous(self, parse: Callable[[str], Any]) -> Callable[[str], Any]:
        """A parser that also refuses ambiguous JSON, and every number that is not finite, because the strings `"NaN"`
        and `"1e999"` can become such numbers.
        """
        sent = self.dump_sent

        def parse_unambiguous(text: str) -> Any:
            refuse_ambiguous(text or "{}")
            return parse(text)

        if sent is None:
            return parse_unambiguous

        def parse_finite(text: str) -> Any:
            arguments = parse_unambiguous(text)
            if found := list(find_non_finite(sent(arguments))):
                raise validation_errors.build_invalid_error(
                    (validation_errors.format_path(path), "must be a finite number") for path in found
                )
            return arguments

        return parse_finite


def build_from_annotations(annotations: Mapping[str, Any], *, forbid_extra: bool = True) -> Arguments:
    """Build arguments from annotations, each possibly `Annotated` with a Pydantic `Field` that holds a default."""
    shape: Any = TypedDict("Arguments", dict(annotations))  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues, reportUnknownVariableType]
    shape.__pydantic_config__ = pydantic.ConfigDict(
        extra="forbid" if forbid_extra else "ignore",
        arbitrary_types_allowed=False,
        allow_inf_nan=False,  # The schema says "number", and neither is one in JSON; a field may allow them.
    )
    adapter: pydantic.TypeAdapter[dict[str, Any]] = pydantic.TypeAdapter(shape)
    schema = generate_input_schema(adapter)

    names = tuple(schema["properties"])

    to_python = adapter.serializer.to_python

    def dump_all(value: Any) -> dict[str, Any]:
        return to_python(value, mode="json", by_alias=True, warnings=False)

    def dump_sent(value: Any) -> dict[str, Any]:
        return to_python(value, mode="json", by_alias=True, warnings=False, exclude_defaults=True)

    dump = sort_sets_of(dump_all, adapter.core_schema)

    return Arguments(
        input_schema=schema,
        parse=build_parser(adapter.validator.validate_json, names=names),
        parse_strict=build_parser(partial(validate_strictly, adapter.validator.validate_json, dump), names=names),
        # What was validated is plain values then: a copy in a tenth of the time.
        dump=dict if _is_flat(adapter.core_schema) else dump,
        dump_sent=dump_sent if '"number"' in json.dumps(schema) else None,
        write_forms=build_forms(to_python, adapter.core_schema, uses_dump=True),
        hidden_field=find_hidden_field(adapter.core_schema),
    )


def sort_sets_of(dump: Callable[[Any], dict[str, Any]], core_schema: Any) -> Callable[[Any], dict[str, Any]]:
    """A `dump` that gives the items of a set in one order, whatever the hash seed of the process is.

    The digests of a call are made of what it returns: the same set must be the same arguments in every process.
    """
    return (lambda value: _sort_sets(value, dump(value))) if _has_sets(core_schema) else dump


def _has_sets(node: Any) -> bool:
    if isinstance(node, dict):
        members = cast(dict[str, Any], node)
        is_set = members.get("type") in ("set", "frozenset")
        return is_set or any(_has_sets(child) for key, child in members.items() if key != "metadata")
    if isinstance(node, list | tuple):
        return any(map(_has_sets, cast(Iterable[Any], node)))
    return isinstance(node, set | frozenset)


def _sort_sets(value: Any, dumped: Any) -> Any:
    """What was dumped of a value, with every set sorted. A part that was dumped in a form of its own stays as it is."""
    if isinstance(value, pydantic.RootModel):
        return _sort_sets(cast(Any, value.root), dumped)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(dumped, list):
        items = cast(list[Any], dumped)
        if not isinstance(value, Collection) or len(cast(Collection[Any], value)) != len(items):
            return items
        ordered = [_sort_sets(*pair) for pair in zip(cast(Collection[Any], value), items, strict=True)]
        return sorted(ordered, key=_get_sort_key) if isinstance(value, Set) else ordered
    if isinstance(dumped, dict):
        members = cast(dict[str, Any], dumped)
        names = _get_members(value)
        # By name; an alias stands where its name does, and computed fields follow at the end.
        pairs = zip_longest(members.items(), names.values())
        if len(names) <= len(members):
            return {name: _sort_sets(names.get(name, beside), child) for (name, child), beside in pairs}
    return cast(Any, dumped)


def _get_sort_key(item: Any) -> tuple[float, str]:
    return item if isinstance(item, int | float) else math.inf, canonical_json(item)


def _get_members(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return cast(Mapping[Any, Any], value)
    if isinstance(value, pydantic.BaseModel):
        return value.__dict__ | (value.model_extra or {})
    return {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else {}


def build_parser(validate_json: Callable[[str], Any], *, names: tuple[str, ...]) -> Callable[[str], Any]:
    """Build a `parse` function around one of Pydantic's validators."""

    def parse(text: str) -> Any:
        try:
            return validate_json(text or "{}")
        except ValidationError as error:
            raise validation_errors.convert_pydantic_error(error, names, text) from None

    return parse


def validate_strictly(validate_json: Callable[..., Any], dump: Callable[[Any], Any], text: str) -> Any:
    """Validate without conversions between types: `true`, `"1_000"` and `"yes"` are neither an int nor a bool.

    JSON has one type of number, so that a whole float (`3.0`) is accepted for an int. A default is nothing that was
    sent: it is converted (`[]` to a tuple, a string to a date).
    """
    try:
        return validate_json(text, strict=True)
    except ValidationError as error:
        changed = _write_whole_floats(text, error) or text
        try:
            complete = dump(validate_json(changed))
            arguments = validate_json(_write_defaults(changed, complete), strict=True)
            if dump(arguments) == complete:  # Else a default was put beside the wrong item of a set.
                return arguments
        except (ValidationError, PydanticSerializationError):
            pass
        raise error from None  # It describes what was sent.


def _write_defaults(text: str, complete: Any) -> str:
    """The text with the properties that only the complete value has."""
    sent: Any = json.loads(text, parse_int=NumberText, parse_float=NumberText)
    return write_json(_add_missing(sent, complete))


def _add_missing(sent: Any, complete: Any) -> Any:
    if isinstance(sent, dict) and isinstance(complete, dict):
        left, right = cast(dict[str, Any], sent), cast(dict[str, Any], complete)
        return {**right, **{name: _add_missing(value, right.get(name)) for name, value in left.items()}}
    if isinstance(sent, list) and isinstance(complete, list):
        items, neighbours = cast(list[Any], sent), cast(list[Any], complete)
        return [_add_missing(*pair) for pair in zip_longest(items, neighbours[: len(items)])]
    return cast(Any, sent)


def _write_whole_floats(text: str, error: ValidationError) -> str | None:
    """The text with integers for the whole floats that an int was expected for; None if there are none."""
    paths = [
        detail["loc"]
        for detail in error.errors(include_url=False, include_context=False)
        if detail["type"] == "int_type" and is_exact_integer(detail["input"])
    ]
    if not paths:
        return None
    value: Any = json.loads(text, parse_int=NumberText, parse_float=NumberText)
    for path in paths:
        here, last = value, None
        for step in path:  # The names of union branches are no part of the value.
            known = here if last is None else here[last]
            if (isinstance(known, dict) and step in known) or (isinstance(known, list) and isinstance(step, int)):
                here, last = cast(Any, known), step
        if last is not None and isinstance(here[last], NumberText):
            here[last] = NumberText(int(float(here[last])))
    return write_json(value)


def is_exact_integer(value: object) -> bool:
    """Whether a float is a whole number that it holds exactly: from 2⁵³ on, another one may have been sent."""
    return isinstance(value, float) and value.is_integer() and abs(value) < 2**53


# The two canonical texts of validated arguments by which a later release still recognises what was done before.

_PLAIN_TYPES: Final = frozenset(
    {
        *("any", "bool", "default", "definition-ref", "definitions", "dict", "float", "int", "list", "literal"),
        *("model", "model-field", "model-fields", "none", "nullable", "str", "tagged-union", "typed-dict"),
        *("typed-dict-field", "union"),
    }
)
"""Nodes of a core schema whose values are the same in Python and in JSON."""


_WHOLE_TYPES: Final = frozenset({"bool", "int", "list", "none", "nullable", "str", "typed-dict", "typed-dict-field"})
"""Those among them whose values have no fraction: nobody has to look for one."""


def _to_json(value: Any) -> Any:
    if isinstance(value, pydantic.SecretStr | pydantic.SecretBytes | pydantic.Secret):
        return cast(Any, value).get_secret_value()
    return to_jsonable_python(value)


_VALUES: Final = msgspec.json.Encoder(order="deterministic", decimal_format="number", enc_hook=_to_json)


def build_forms(to_python: Callable[..., Any], core_schema: Any, *, uses_dump: bool) -> ArgumentForms:
    """Build the forms of a type, from the serializer and the core schema that Pydantic made of it.

    With `uses_dump`, the tool's `dump` is this serializer: what it made of plain values is not made again.
    """
    kinds, has_serializers, has_factories = _read_core_schema(core_schema)
    options: dict[str, Any] = {"by_alias": True, "warnings": False}
    # A value that is not the same in JSON (a Decimal, a secret, a set) is dumped as it is, and written by `_VALUES`.
    options["mode"] = "json" if kinds <= _PLAIN_TYPES and not has_serializers else "python"
    has_defaults, is_dumped = "default" in kinds, uses_dump and options["mode"] == "json"
    write = _write_whole if kinds <= _WHOLE_TYPES and not has_serializers else _write

    def dump(value: Any, **more: Any) -> Any:
        try:
            return to_python(value, **options, **more)
        except TypeError:  # A set of models: as Python values these are dicts, which no set can hold.
            return to_python(_open_sets(value), **options, **more)

    def write_forms(value: Any, sent: str, dumped: Any) -> tuple[str, str]:
        everything = dumped if is_dumped else dump(value)
        changed = dump(value, exclude_defaults=True) if has_defaults else everything
        if has_factories:
            source = _decode_object(sent)
            everything, changed = _drop_made(everything, changed, source), _keep_sent(changed, source)
        full = write(everything)
        return full, full if changed is everything else write(changed)

    return write_forms


_SCALARS: Final = {"bool": bool, "float": float, "int": int, "str": str}


def _is_flat(core_schema: Any) -> bool:
    """Whether validated arguments are a dict of texts, numbers, booleans and None, under the names that JSON has."""
    if core_schema["type"] != "typed-dict" or "serialization" in core_schema:
        return False
    fields: list[dict[str, Any]] = list(core_schema["fields"].values())
    return all("serialization_alias" not in field and _is_scalar(field["schema"]) for field in fields)


def _is_scalar(node: dict[str, Any]) -> bool:
    kind, inner = node["type"], node.get("schema")
    if "serialization" in node:
        return False
    if kind == "nullable":
        return _is_scalar(cast(Any, inner))
    if kind == "default":  # Defaults are not validated.
        default = node.get("default")
        is_plain = default is None or type(default) is _SCALARS.get(cast(Any, inner)["type"])
        return is_plain and "default_factory" not in node and _is_scalar(cast(Any, inner))
    return kind in _SCALARS


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
    return normalize_canonical(_write_whole(values))


def _write_whole(values: Any) -> str:
    return _VALUES.encode(values).decode()


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


# JSON that two parsers read differently: duplicate keys, and numbers that are not finite.

_MAX_DIGITS = 4300
"""Python's own limit; the parser of the arguments has the same one."""
_MAX_QUICK_CHARS: Final = 2_000
"""A shorter text cannot contain a number with too many digits."""


def refuse_ambiguous(text: str) -> None:
    """Refuse duplicate keys and numbers that are not finite, anywhere in the text.

    Parsers disagree about both, so that what was authorised might not be what runs. Read-only tools take the last of
    two equal keys.
    """
    if len(text) <= _MAX_QUICK_CHARS:
        # Every string has two quotes. If the decoded value has as many strings as the text has pairs of quotes, no key
        # was dropped in favour of an equal one. Any other text is decoded by the slower decoder.
        try:
            is_unambiguous = text.count('"') == 2 * _count_strings(_QUICK_DECODER.decode(text))
        except (msgspec.DecodeError, UnicodeError, RecursionError, _NotFinite):
            is_unambiguous = False
        if is_unambiguous:
            return
    _decode(text, _UNAMBIGUOUS_DECODER)


class _NotFinite(Exception):
    """A number is not finite."""


def _count_strings(value: "_Json") -> int:
    """Count the strings in a value, keys included."""
    members: Iterable[_Json] = (value,)
    count = 0
    if isinstance(value, dict):
        members, count = value.values(), len(value)
    elif isinstance(value, list):
        members = value
    for member in members:
        if isinstance(member, str):
            count += 1
        elif isinstance(member, _NESTED):
            count += _count_strings(member)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(member, float) and not math.isfinite(member):
            raise _NotFinite
    return count


def refuse_infinite(text: str) -> None:
    """Refuse numbers that are not finite, anywhere in the text."""
    _decode(text, _FINITE_DECODER)


def _decode(text: str, decoder: json.JSONDecoder) -> None:
    try:
        decoder.decode(text)
    except ToolArgsParseError:
        raise
    except (ValueError, RecursionError) as error:
        raise validation_errors.build_json_error(
            "nested too deeply" if isinstance(error, RecursionError) else str(error)
        ) from error


def find_non_finite(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of the numbers in a JSON-like value that are not finite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path
    elif isinstance(value, dict):
        for key, one in cast(dict[str, Any], value).items():
            if isinstance(one, _MAY_HOLD_FLOATS):
                yield from find_non_finite(one, (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(cast(list[Any], value)):
            if isinstance(one, _MAY_HOLD_FLOATS):
                yield from find_non_finite(one, (*path, index))


_MAY_HOLD_FLOATS: Final = (float, dict, list)


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise validation_errors.build_json_error(f"the key {key!r} appears twice")
        seen.add(key)


def _refuse_constant(constant: str) -> None:
    raise validation_errors.build_json_error(f"{constant} is not a JSON number")


def _refuse_infinite_float(text: str) -> None:
    if math.isinf(float(text)):
        raise validation_errors.build_json_error(f"the number {text} is out of range")


def _refuse_long_integer(text: str) -> None:
    if len(text.lstrip("-")) > _MAX_DIGITS:
        raise validation_errors.build_json_error(f"a number has more than {_MAX_DIGITS:,} digits")


_Json = dict[str, Any] | list[Any] | str | float | None
_NESTED: Final = (dict, list)
_QUICK_DECODER: Final = msgspec.json.Decoder()
# Created once: creating a decoder takes longer than decoding most arguments.
_FINITE_DECODER: Final = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_refuse_infinite_float, parse_int=_refuse_long_integer
)
_UNAMBIGUOUS_DECODER: Final = json.JSONDecoder(
    parse_constant=_refuse_constant,
    parse_float=_refuse_infinite_float,
    parse_int=_refuse_long_integer,
    object_pairs_hook=_refuse_duplicate_keys,
)
