"""`@tool`: a function with types and a docstring is a tool."""

import asyncio
import datetime
import functools
import json
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import jsonschema_rs
import pytest
from pydantic import AfterValidator, BaseModel, Field
from typing_extensions import Doc, TypedDict

from handrail import Tool, ToolContext, ToolRegistry, as_tool, tool

CONTEXT: ToolContext[Any] = ToolContext(session_id="s-1", deps="services")


async def output(made: Tool[..., Any], **payload: Any) -> Any:
    result = await made.execute(payload, CONTEXT)
    assert result.error is None, result.error
    return result.output


def described(made: Tool[..., Any]) -> dict[str, str | None]:
    return {name: one.get("description") for name, one in made.input_schema["properties"].items()}


@pytest.mark.proves("GC-18", "PH-76")
async def test_a_function_sync_or_async_is_a_tool_that_a_registry_takes() -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @tool(name="times", read_only=True)
    async def multiply(a: int, b: int) -> int:
        """Multiply two numbers."""
        return a * b

    assert await output(add, a=2, b=3) == 5
    assert await output(multiply, a=2, b=3) == 6
    assert ToolRegistry([add, multiply]).names == ("add", "times")
    assert (add.description, multiply.description) == ("Add two numbers.", "Multiply two numbers.")
    assert add.input_schema == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }


async def test_as_tool_makes_a_tool_of_a_plain_function() -> None:
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"Hello {name}"

    made = as_tool(greet)

    assert (made.name, made.description, made.read_only) == ("greet", "Greet somebody.", False)
    assert await output(made, name="Ann") == "Hello Ann"
    assert as_tool(made) is made


def test_what_the_decorator_says_goes_before_what_the_function_says() -> None:
    @tool(name="find", description="Find it.")
    def search(text: str) -> str:
        """Search.

        Args:
            text: What to look for.
        """
        return text

    assert (search.name, search.description, described(search)) == ("find", "Find it.", {"text": "What to look for."})


def test_an_argument_is_described_by_the_text_nearest_to_it() -> None:
    @tool
    def book(
        place: Annotated[str, "A text."],
        day: Annotated[str, Doc("A doc.")],
        hour: Annotated[int, Field(description="A field.", ge=0)],
        seats: int = Field(2, description="A default.", le=8),
        name: Annotated[str, Field(min_length=1)] = "Ann",
        note: str = "",
    ) -> None:
        """Book a table.

        Args:
            place: Not this one.
            day: Not this one.
            hour: Not this one.
            seats: Not this one.
            name: The docstring.
        """

    assert described(book) == {
        "place": "A text.",
        "day": "A doc.",
        "hour": "A field.",
        "seats": "A default.",
        "name": "The docstring.",
        "note": None,
    }
    assert book.input_schema["required"] == ["place", "day", "hour"]


@pytest.mark.proves("GC-43")
async def test_an_argument_that_is_left_out_has_the_default_of_the_function() -> None:
    @tool
    def order(
        item: str,
        count: int = 3,
        *,
        gift: bool = False,
        limit: Annotated[int, Field(gt=0)] = 10,
        extras: list[str] | None = None,
        wrap: str = Field("paper"),
        odd: int = "not an int",
        tags: Annotated[list[str], Field(default_factory=lambda: ["new"])] = Field(default_factory=lambda: ["new"]),
    ) -> list[Any]:
        return [item, count, gift, limit, extras, wrap, odd, tags]

    assert await output(order, item="tea") == ["tea", 3, False, 10, None, "paper", "not an int", ["new"]]
    assert order.input_schema["required"] == ["item"]
    assert order.input_schema["properties"]["count"] == {"type": "integer", "default": 3}
    arguments = order.parse('{"item": "tea"}')
    assert order.dump(arguments)["count"] == 3


async def test_mutable_defaults_are_not_shared_between_calls() -> None:
    @tool
    def collect(word: str, seen: list[str] = [], by: dict[str, list[str]] = {"a": []}) -> list[Any]:  # noqa: B006
        seen.append(word)
        by["a"].append(word)
        return [seen, by]

    assert await output(collect, word="one") == [["one"], {"a": ["one"]}]
    assert await output(collect, word="two") == [["two"], {"a": ["two"]}]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Address(BaseModel):
    street: str
    city: str = "Rome"


class Node(BaseModel):
    value: int
    children: list["Node"] = []


@dataclass
class Point:
    x: int
    y: list[int] = field(default_factory=list)


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


def positive(value: int) -> int:
    if value <= 0:
        raise ValueError("must be positive")
    return value


TYPES: list[tuple[Any, Any, Any]] = [
    (bool, "False", False),
    (int, 5, 5),
    (float, 1, 1.0),
    (Literal["a", 1, None], 1, 1),
    (Colour, "red", Colour.RED),
    (Size, 1, Size.SMALL),
    (Address, {"street": "Via"}, Address(street="Via")),
    (Node, {"value": 1, "children": [{"value": 2}]}, Node(value=1, children=[Node(value=2)])),
    (Point, {"x": 1}, Point(x=1)),
    (Movie, {"title": "M"}, {"title": "M"}),
    (int | str | None, "5", "5"),
    (int | str | None, None, None),
    (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        {"kind": "dog", "tricks": []},
        Dog(kind="dog", tricks=[]),
    ),
    (datetime.date, "2030-01-02", datetime.date(2030, 1, 2)),
    (datetime.datetime, "2030-01-02T03:04:05Z", datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
    (datetime.timedelta, "PT5M", datetime.timedelta(minutes=5)),
    (UUID, str(UUID(int=7)), UUID(int=7)),
    (Decimal, "1.10", Decimal("1.10")),
    (tuple[int, str], [1, "a"], (1, "a")),
    (set[int], [1, 1], {1}),
    (dict[str, list[float]], {"a": [1]}, {"a": [1.0]}),
    (list[Address], [{"street": "Via"}], [Address(street="Via")]),
    (Annotated[int, AfterValidator(positive)], 3, 3),
    (Any, {"any": [1]}, {"any": [1]}),
]


@pytest.mark.parametrize(("annotation", "sent", "seen"), TYPES, ids=lambda one: str(one)[:40])
@pytest.mark.proves("GC-18")
async def test_a_handler_gets_its_arguments_in_their_types(annotation: Any, sent: Any, seen: Any) -> None:
    got: list[Any] = []

    def handler(*, value: Any) -> None:
        got.append(value)

    handler.__annotations__["value"] = annotation
    made = tool(coerce=True)(handler)

    await output(made, value=sent)

    assert got == [seen]
    assert type(got[0]) is type(seen)


@pytest.mark.parametrize(("annotation", "sent", "seen"), TYPES, ids=lambda one: str(one)[:40])
def test_the_schema_is_valid_and_the_arguments_can_be_written_down_again(annotation: Any, sent: Any, seen: Any) -> None:
    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = annotation
    made = tool(coerce=True)(handler)

    jsonschema_rs.meta.validate(made.input_schema)
    dumped = made.dump(made.parse(json.dumps({"value": sent})))
    assert made.parse(json.dumps(dumped)) == {"value": seen}


@pytest.mark.proves("GC-42")
@pytest.mark.parametrize(
    ("annotation", "sent", "told"),
    [
        (int, "many", 'value: input should be a valid integer, unable to parse string as an integer, got "many"'),
        (Colour, "green", "value: input should be 'red' or 'blue', got \"green\""),
        (Annotated[int, Field(ge=1, le=5)], 9, "value: input should be less than or equal to 5, got 9"),
        (Annotated[str, Field(pattern="^[a-z]+$")], "A", "value: string should match pattern '^[a-z]+$', got \"A\""),
        (Node, {"value": 1, "children": [{"value": "x"}]}, "value.children[0].value: input should be a valid integer"),
        (Annotated[int, AfterValidator(positive)], -1, "value: value error, must be positive, got -1"),
        (bool, "maybe", "value: input should be a valid boolean"),
        (UUID, "x", "value: input should be a valid UUID"),
        (Decimal, "NaN", 'value: input should be a finite number, got "NaN"'),
    ],
)
async def test_what_does_not_fit_is_reported_with_its_place(annotation: Any, sent: Any, told: str) -> None:
    def handler(value: Any) -> None:
        pytest.fail("the handler ran")

    handler.__annotations__["value"] = annotation
    result = await tool(coerce=True)(handler).execute({"value": sent}, CONTEXT)

    assert result.error is not None
    assert told in result.error.message


def test_an_alias_is_the_name_that_the_model_uses() -> None:
    @tool(key="class")
    def teach(
        group: Annotated[str, Field(alias="class")], room: Annotated[int, Field(validation_alias="room-number")] = 1
    ) -> None:
        """Teach.

        Args:
            group: Which class.
            room: Which room.
        """

    arguments = teach.parse('{"class": "5b", "room-number": 2}')

    assert described(teach) == {"class": "Which class.", "room-number": "Which room."}
    assert arguments == {"group": "5b", "room": 2}
    assert teach.dump(arguments) == {"class": "5b", "room-number": 2}


def test_the_schema_of_the_output_comes_from_the_return_type() -> None:
    @tool
    def find(name: str) -> Address: ...

    @tool
    def say(name: str) -> str: ...

    @tool
    def odd(name: str) -> "NotDefinedAnywhere": ...  # noqa: F821

    assert find.output_schema is not None
    assert set(find.output_schema["properties"]) == {"street", "city"}
    assert (say.output_schema, odd.output_schema) == (None, None)


class Bounds(BaseModel):
    most: float = float("inf")
    least: Annotated[float, Field(ge=float("-inf"))] = 0


NO_BOUNDS = Bounds()


def test_what_json_cannot_hold_is_left_out_of_the_schema() -> None:
    def find(most: float = float("inf"), text: str = "half \ud800", inside: Bounds = NO_BOUNDS) -> None: ...

    find.__doc__ = "Search \ud800."
    search = tool(read_only=True)(find)

    json.dumps(search.input_schema, allow_nan=False, ensure_ascii=False).encode()
    assert search.input_schema["properties"]["most"] == {"type": "number"}
    assert search.parse("{}") == {"most": float("inf"), "text": "half \ud800", "inside": NO_BOUNDS}
    assert search.description == "Search ?."


# Things that are nearly functions


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * 2

    return wrapper


async def test_a_decorated_function_is_read_through_its_decorators() -> None:
    @tool
    @twice
    def repeat(word: str, mark: str = "!") -> str:
        """Repeat a word.

        Args:
            word: The word.
        """
        return word + mark

    assert (repeat.name, repeat.description, described(repeat)["word"]) == ("repeat", "Repeat a word.", "The word.")
    assert await output(repeat, word="a") == "a!a!"


async def test_a_cached_function_is_a_function() -> None:
    @functools.cache
    def square(number: int) -> int:
        return number * number

    assert await output(as_tool(square), number=4) == 16


def transfer(source: str, amount: int, context: ToolContext[Any], note: str = "") -> str:
    """Send money."""
    return f"{source} {amount} {note} {context.deps}"


async def test_what_a_partial_holds_is_not_the_models_to_see_or_to_set() -> None:
    for made in (
        tool(functools.partial(transfer, source="mine", note="n")),
        as_tool(functools.partial(functools.partial(transfer, "mine"), note="n")),
    ):
        assert (made.name, made.description) == ("transfer", "Send money.")
        assert list(made.input_schema["properties"]) == ["amount"]
        assert await output(made, amount=2) == "mine 2 n services"
        for forbidden in ("source", "note"):
            result = await made.execute({"amount": 2, forbidden: "yours"}, CONTEXT)
            assert result.error is not None


async def test_a_partial_of_a_coroutine_function_is_async() -> None:
    async def send(source: str, amount: int) -> str:
        await asyncio.sleep(0)
        return f"{source} {amount}"

    made = as_tool(functools.partial(send, "mine"))

    assert made.is_async
    assert await output(made, amount=2) == "mine 2"


def first(context: ToolContext[Any], source: str, target: str) -> str:
    return f"{source} to {target}: {context.deps}"


def between(source: str, context: ToolContext[Any], target: str) -> str:
    return f"{source} to {target}: {context.deps}"


def last(source: str, target: str, context: ToolContext[Any]) -> str:
    return f"{source} to {target}: {context.deps}"


@functools.wraps(last)
def reversed_names(target: str, source: str, context: ToolContext[Any]) -> str:
    return last(source, target, context)


def named(source: str, *, target: str, context: ToolContext[Any]) -> str:
    return f"{source} to {target}: {context.deps}"


@pytest.mark.parametrize("function", [first, between, last, reversed_names, named])
async def test_every_argument_reaches_its_own_parameter_wherever_the_context_stands(
    function: Callable[..., str],
) -> None:
    assert await output(as_tool(function), target="yours", source="mine") == "mine to yours: services"


async def test_a_lambda_is_a_tool_when_it_is_given_a_name() -> None:
    assert await output(tool(name="now")(lambda: "noon")) == "noon"


class Reply(typing.TypedDict, total=False):
    """What is returned."""

    code: typing.Required[int]
    note: str


class Page(typing.TypedDict):
    replies: list[Reply]
    best: typing.Annotated[Reply | None, Field(description="the best")]
    next: typing.NotRequired[int]


def test_a_typed_dict_of_typing_keeps_its_schema_as_an_output_on_every_python() -> None:
    @tool(read_only=True)
    async def look() -> dict[str, Page]:
        """Look."""
        return {}

    schema = look.output_schema
    assert schema is not None
    page, reply = schema["$defs"]["Page"], schema["$defs"]["Reply"]
    assert (page["required"], sorted(page["properties"])) == (["replies", "best"], ["best", "next", "replies"])
    assert page["properties"]["best"]["description"] == "the best"
    assert (reply["required"], reply["properties"]["note"]) == (["code"], {"type": "string"})
