"""Types that tools take, made up by hypothesis, each with values as they are and as strict mode has them."""

import datetime as dt
import enum
from collections.abc import Callable
from dataclasses import MISSING, dataclass, make_dataclass
from dataclasses import field as dataclass_field
from decimal import Decimal
from inspect import Parameter, Signature
from itertools import count
from typing import Annotated, Any, Literal, NotRequired, Optional, Union
from uuid import UUID

from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model
from typing_extensions import TypedDict

from handrail import Tool, tool

Pair = tuple[Any, Any]
"""One JSON value as a caller writes it, and the same one as a model sends it in strict mode."""

_numbers = count()


@dataclass(frozen=True)
class Kind:
    """A type, and values of it."""

    annotation: Any
    values: st.SearchStrategy[Pair]
    takes_null: bool = False


class Color(enum.Enum):
    RED = "red"
    GREEN = "Green"
    BLUE = "BLUE"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Node(BaseModel):
    """A type that refers to itself."""

    label: str
    weight: int = 1
    children: list["Node"] = []


def alike(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Pair]:
    return values.map(lambda value: (value, value))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

LEAVES = [
    Kind(int, alike(st.integers(-(10**6), 10**6))),
    Kind(Annotated[int, Field(ge=1, le=10, multiple_of=2)], alike(st.sampled_from([2, 4, 6, 8, 10]))),
    Kind(float, alike(st.floats(allow_nan=False, allow_infinity=False))),
    Kind(bool, alike(st.booleans())),
    Kind(str, alike(texts)),
    Kind(Annotated[str, Field(min_length=1, max_length=3)], alike(st.text("abc", min_size=1, max_size=3))),
    Kind(Annotated[str, Field(pattern="^[a-z]{2}$", description="Two letters.")], alike(st.sampled_from(["xy", "ab"]))),
    Kind(Literal["a", "b"], alike(st.sampled_from(["a", "b"]))),
    Kind(Literal["one", 1, True], alike(st.sampled_from(["one", 1, True]))),
    Kind(Color, alike(st.sampled_from([item.value for item in Color]))),
    Kind(Level, alike(st.sampled_from([item.value for item in Level]))),
    Kind(dt.date, alike(st.dates().map(str))),
    Kind(dt.datetime, alike(st.datetimes().map(dt.datetime.isoformat))),
    Kind(UUID, alike(st.uuids().map(str))),
    Kind(Decimal, alike(st.decimals(-1000, 1000, places=4).map(str))),
]  # fmt: skip
UNSAYABLE = [
    Kind(Any, alike(st.sampled_from([None, 1, "x", [1], {"a": None}]))),
    Kind(dict[str, int], alike(st.dictionaries(texts, st.integers(0, 9), max_size=2))),
    Kind(tuple[int, str], alike(st.tuples(st.integers(0, 9), texts).map(list))),
    Kind(list, alike(st.lists(st.integers(0, 9), max_size=2))),
]


@st.composite
def nodes(draw: st.DrawFn, depth: int = 2) -> Pair:
    label = draw(texts)
    plain: dict[str, Any] = {"label": label}
    strict: dict[str, Any] = {"label": label, "weight": None, "children": None}
    if draw(st.booleans()):
        plain["weight"] = strict["weight"] = draw(st.integers(0, 9))
    if depth and draw(st.booleans()):
        children = draw(st.lists(nodes(depth - 1), max_size=2))
        plain["children"], strict["children"] = [one for one, _ in children], [other for _, other in children]
    return plain, strict


def listed(kind: Kind) -> Kind:
    pairs = st.lists(kind.values, max_size=3)
    return Kind(list[kind.annotation], pairs.map(lambda many: ([one for one, _ in many], [other for _, other in many])))


def unique(kind: Kind) -> Kind:
    pairs = st.lists(kind.values, max_size=3, unique_by=repr)
    return Kind(set[kind.annotation], pairs.map(lambda many: ([one for one, _ in many], [other for _, other in many])))


def optional(kind: Kind) -> Kind:
    return Kind(Optional[kind.annotation], kind.values | st.just((None, None)), takes_null=True)  # noqa: UP045


def either(one: Kind, other: Kind) -> Kind:
    union = Union[one.annotation, other.annotation]  # noqa: UP007
    return Kind(union, one.values | other.values, takes_null=one.takes_null or other.takes_null)


@dataclass(frozen=True)
class Member:
    """One field of an object, or one parameter of a tool."""

    kind: Kind
    way: Literal["required", "default", "null"]
    default: Any = None
    """In JSON."""


@st.composite
def members(draw: st.DrawFn, kinds: st.SearchStrategy[Kind]) -> Member:
    kind = draw(kinds)
    way = draw(st.sampled_from(["required", "required", "default", "null"]))
    if way == "null":
        return Member(kind=optional(kind), way="null")
    if way == "default" and not kind.takes_null:
        return Member(kind=kind, way="default", default=draw(kind.values)[0])
    return Member(kind=kind, way="required")


@st.composite
def filled(draw: st.DrawFn, fields: dict[str, Member], *, says_null: bool = True) -> Pair:
    """An object: what has a default may be left out, which is null in strict mode."""
    plain: dict[str, Any] = {}
    strict: dict[str, Any] = {}
    for name, member in fields.items():
        if member.way == "required" or draw(st.booleans()):
            plain[name], strict[name] = draw(member.kind.values)
        else:
            strict[name] = None
            if member.way == "null" and says_null:  # There null is a value, and which one of a union has it counts.
                plain[name] = None
    return plain, strict


def annotated(member: Member) -> Any:
    """The annotation with its default, which is JSON and so has to be validated."""
    if member.way == "required":
        return member.kind.annotation
    return Annotated[member.kind.annotation, Field(default=member.default, validate_default=True)]


@st.composite
def objects(draw: st.DrawFn, kinds: st.SearchStrategy[Kind]) -> Kind:
    fields = draw(st.dictionaries(st.sampled_from(["x", "y", "z", "kind"]), members(kinds), min_size=1, max_size=3))
    name = f"Made{next(_numbers)}"
    make = draw(st.sampled_from([_model, _marked_model, _dataclass, _typed_dict]))
    return make(name, fields)


def _model(name: str, fields: dict[str, Member]) -> Kind:
    made = create_model(name, **{one: annotated(member) for one, member in fields.items()})  # pyright: ignore[reportCallIssue, reportArgumentType]
    return Kind(made, filled(fields))


def _marked_model(name: str, fields: dict[str, Member]) -> Kind:
    """A model with a constant that tells it from others, as the branches of a discriminated union have it."""
    rest = {one: member for one, member in fields.items() if one != "kind"}
    made = create_model(name, kind=(Literal[name], name), **{one: annotated(member) for one, member in rest.items()})  # pyright: ignore[reportCallIssue, reportArgumentType]
    mark = {"kind": name}
    return Kind(made, filled(rest).map(lambda pair: (mark | pair[0], mark | pair[1])))


def _dataclass(name: str, fields: dict[str, Member]) -> Kind:
    """A dataclass takes no default that can be changed: such a field is required."""
    fields = {
        one: Member(kind=member.kind, way="required") if isinstance(member.default, list | dict) else member
        for one, member in fields.items()
    }
    shape: list[Any] = [
        (one, annotated(member), dataclass_field(default=MISSING if member.way == "required" else member.default))
        for one, member in fields.items()
    ]
    return Kind(make_dataclass(name, shape, kw_only=True), filled(fields))


def _typed_dict(name: str, fields: dict[str, Member]) -> Kind:
    """A TypedDict knows no defaults: what is not required is left out."""
    shape = {
        one: NotRequired[member.kind.annotation] if member.way == "default" else member.kind.annotation
        for one, member in fields.items()
    }
    wanted = {
        one: member if member.way == "default" else Member(kind=member.kind, way="required")
        for one, member in fields.items()
    }
    return Kind(TypedDict(name, shape), filled(wanted))  # pyright: ignore[reportArgumentType]


def kinds_of(leaves: list[Kind]) -> st.SearchStrategy[Kind]:
    return st.recursive(
        st.sampled_from(leaves) | st.just(Kind(Node, nodes())),
        lambda inner: st.one_of(
            inner.map(listed),
            st.sampled_from(LEAVES[:10]).map(unique),
            inner.map(optional),
            st.builds(either, inner, inner),
            st.builds(either, objects(inner), objects(inner)),
            objects(inner),
        ),
        max_leaves=6,
    )


@dataclass(frozen=True)
class Made:
    """A tool, and arguments for it in both forms."""

    tool: Tool[..., Any]
    arguments: list[Pair]


@st.composite
def made_tools(draw: st.DrawFn, leaves: list[Kind] = LEAVES) -> Made:
    """A strict tool whose parameters are of made-up types."""
    fields = draw(st.dictionaries(st.sampled_from("abcd"), members(kinds_of(leaves)), min_size=1, max_size=3))
    arguments = draw(st.lists(filled(fields, says_null=False), min_size=1, max_size=3))
    return Made(tool=tool(strict=True)(_function(fields)), arguments=arguments)


def _function(fields: dict[str, Member]) -> Callable[..., Any]:
    def made(**arguments: Any) -> str:
        return ""

    cast_made: Any = made
    cast_made.__annotations__ = {name: annotated(member) for name, member in fields.items()}
    cast_made.__signature__ = Signature(
        [Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotated(member)) for name, member in fields.items()]
    )
    return made
