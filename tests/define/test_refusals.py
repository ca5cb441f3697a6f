"""What cannot be a tool is refused when it is defined, with the name of the parameter in the way."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from handrail import ToolContext, ToolDefinitionError, as_tool, tool


class Engine:
    """A class that no JSON stands for."""


class Unfinished(BaseModel):
    part: "NotDefinedAnywhere"  # noqa: F821


class WithEngine(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    engine: Engine


class WithStream(BaseModel):
    rows: Iterable[int]


class UnfinishedDict(TypedDict):
    part: "NotDefinedAnywhere"  # noqa: F821


def no_type(good: int, bad): ...
def no_context_type(good: int, context): ...
def spread(good: int, *bad: int): ...
def keywords(good: int, **bad: int): ...
def positional(bad: int, /, good: int): ...
def two_contexts(good: ToolContext[Any], bad: ToolContext[int]): ...
def many_contexts(good: int, bad: list[ToolContext[Any]]): ...
def maybe_context(good: int, bad: ToolContext[Any] | int): ...
def unknown_name(good: int, bad: "NotDefinedAnywhere"): ...  # noqa: F821
def unknown_inside(good: int, bad: "list[NotDefinedAnywhere]"): ...  # noqa: F821
def unknown_attribute(good: int, bad: "functools.nothing"): ...
def no_expression(good: int, bad: "not a type at all"): ...  # noqa: F722
def class_variable(good: int, bad: ClassVar[int]): ...
def a_function(good: int, bad: Callable[[int], int]): ...
def a_class(good: int, bad: type[int]): ...
def any_class(good: int, bad: type): ...
def an_engine(good: int, bad: Engine): ...
def engines(good: int, bad: dict[str, list[Engine]]): ...
def an_engine_inside(good: int, bad: WithEngine): ...
def unfinished(good: int, bad: Unfinished): ...
def unfinished_dict(good: int, bad: UnfinishedDict): ...
def iterator(good: int, bad: Iterator[int]): ...
def iterable(good: int, bad: Iterable[int]): ...
def iterable_inside(good: int, bad: WithStream): ...
def generator(good: int, bad: Generator[int]): ...
def async_iterator(good: int, bad: AsyncIterator[int]): ...
def awaitable(good: int, bad: Awaitable[int]): ...
def bad_pattern(good: int, bad: Annotated[str, Field(pattern="(")]): ...
def bad_union(good: int, bad: Annotated[int | str, Field(discriminator="kind")]): ...


BAD: dict[Callable[..., Any], str] = {
    no_type: "the parameter `bad` has no type; write `bad: str`",
    no_context_type: "the parameter `context` has no type; write `context: ToolContext`",
    spread: "*bad takes any number of values",
    keywords: "**bad takes any name",
    positional: "the parameter `bad` is positional-only",
    two_contexts: "both `good` and `bad` take the context",
    many_contexts: "the parameter `bad` has no JSON form",
    maybe_context: "the parameter `bad` has no JSON form",
    unknown_name: "the parameter `bad` refers to `NotDefinedAnywhere`, which is not defined here",
    unknown_inside: "the parameter `bad` refers to `NotDefinedAnywhere`, which is not defined here",
    unknown_attribute: "the parameter `bad` has an annotation that cannot be read",
    no_expression: "the parameter `bad` has an annotation that cannot be read",
    class_variable: "the parameter `bad` has no JSON form",
    a_function: "the parameter `bad` has no JSON form",
    a_class: "the parameter `bad` has no JSON form: A class cannot be written in JSON",
    any_class: "the parameter `bad` has no JSON form",
    an_engine: "the parameter `bad` has no JSON form: Unable to generate pydantic-core schema for <class",
    engines: "the parameter `bad` has no JSON form",
    an_engine_inside: "the parameter `bad` has no JSON form",
    unfinished: "the parameter `bad` has no JSON form: it refers to a type that is not defined yet",
    unfinished_dict: "the parameter `bad` has no JSON form: it refers to a type that is not defined yet",
    iterator: "the parameter `bad` has no JSON form",
    iterable: "the parameter `bad` has no JSON form: An iterable is only checked when it is used; write list[…]",
    iterable_inside: "the parameter `bad` has no JSON form: An iterable is only checked when it is used",
    generator: "the parameter `bad` has no JSON form: An iterable is only checked when it is used",
    async_iterator: "the parameter `bad` has no JSON form",
    awaitable: "the parameter `bad` has no JSON form",
    bad_pattern: "the parameter `bad` has no JSON form: error: unclosed group",
    bad_union: "the parameter `bad` has no JSON form",
}


@pytest.mark.parametrize("function", BAD, ids=lambda function: function.__name__)
@pytest.mark.parametrize("make", [tool, tool(read_only=True), as_tool], ids=["bare", "options", "as_tool"])
def test_the_parameter_in_the_way_is_named(make: Callable[..., Any], function: Callable[..., Any]) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        make(function)

    assert str(caught.value).startswith(f"`{function.__name__}` cannot be a tool: {BAD[function]}")
    assert "arbitrary_types_allowed" not in str(caught.value)


class Caller:
    def __call__(self, number: int) -> int:
        return number


class AsyncCaller:
    async def __call__(self, number: int) -> int:
        return number


def counts() -> Iterator[int]:
    yield 1


async def counts_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (counts, "`counts` cannot be a tool: it is a generator; return one value, and report progress"),
        (counts_later, "`counts_later` cannot be a tool: it is a generator"),
        (lambda: 1, "A lambda has no name; pass one"),
        (len, "the parameter `obj` is positional-only"),
        (max, "its signature cannot be read"),
        (Caller(), "is callable, but not a function. Pass its method: tool(name=…)(thing.__call__)"),
        (AsyncCaller(), "is callable, but not a function"),
        (functools.partial(Caller(), 1), "is callable, but not a function"),
    ],
    ids=["generator", "async generator", "lambda", "len", "max", "callable", "async callable", "partial of a callable"],
)
@pytest.mark.parametrize("make", [tool, as_tool])
def test_what_is_nearly_a_function_is_refused_with_a_way_out(make: Any, thing: Any, message: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        make(thing)

    assert message in str(caught.value)


async def test_the_way_out_for_a_callable_object_works() -> None:
    context: ToolContext[Any] = ToolContext(session_id="s-1")
    for thing in (Caller(), AsyncCaller()):
        made = tool(name="same")(thing.__call__)
        assert (await made.execute({"number": 3}, context)).output == 3


@pytest.mark.parametrize("thing", [Engine, BaseModel, 5, "pay", [1]])
def test_what_is_no_function_at_all_is_refused(thing: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="@tool takes a function, not"):
        tool(thing)


def test_a_tool_is_not_made_twice() -> None:
    @tool
    def pay(amount: int) -> int:
        return amount

    with pytest.raises(ToolDefinitionError, match="`pay` is already a tool"):
        tool(read_only=True)(pay)
