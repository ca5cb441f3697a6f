"""Annotations that are still text, names that are local, and the parameter that receives the context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from handrail import Tool, ToolContext, ToolRegistry, as_tool, tool

if TYPE_CHECKING:
    from decimal import Decimal


class Item(BaseModel):
    """The one of this module."""

    everywhere: int


@dataclass(frozen=True)
class Bank:
    owner: str


class DeskContext(ToolContext[Bank]):
    """A context of somebody's own."""


Where = ToolContext[Bank]
Elsewhere = TypeAliasType("Elsewhere", ToolContext[Bank])
CONTEXT = ToolContext(session_id="s-1", deps=Bank(owner="Ann"))


def fields_of(made: Tool[..., Any], name: str = "Item") -> list[str]:
    return list(made.input_schema["$defs"][name]["properties"])


async def test_types_of_the_module_are_found() -> None:
    @tool
    def count(item: Item, note: Annotated[str, Field(description="Why.")] = "") -> int:
        return item.everywhere

    assert (await count.execute({"item": {"everywhere": 2}}, CONTEXT)).output == 2
    assert count.input_schema["properties"]["note"]["description"] == "Why."


def test_a_local_type_goes_before_one_of_the_module() -> None:
    class Item(BaseModel):
        here: int

    @tool
    def bare(item: Item) -> Item:
        return item

    @tool(read_only=True)
    def with_options(items: list[Item]) -> None: ...

    def plain(item: Item | None = None) -> None: ...

    for made in (bare, with_options, as_tool(plain), *ToolRegistry([plain])):
        assert fields_of(made) == ["here"]
    assert bare.output_schema is not None
    assert list(bare.output_schema["properties"]) == ["here"]


def test_the_names_of_whoever_makes_the_tool_are_not_the_functions() -> None:
    function = of_the_module

    def make() -> Tool[..., Any]:
        class Item(BaseModel):
            elsewhere: int

        assert Item
        return as_tool(function)

    assert fields_of(make()) == ["everywhere"]


def of_the_module(item: Item) -> None: ...


async def test_the_methods_of_a_local_class_see_its_names_and_those_around_it() -> None:
    class Item(BaseModel):
        here: int

    class Shop:
        class Shelf(BaseModel):
            row: int

        @tool
        def put(self, item: Item, shelf: Shelf, context: ToolContext[Bank]) -> Shop:
            return self

        @tool
        async def clear(self: Shop, shelf: Shelf) -> str:
            return f"cleared {shelf.row}"

    shop = Shop()
    payload = {"item": {"here": 1}, "shelf": {"row": 2}}

    assert (await shop.put.execute(payload, CONTEXT)).output is shop
    assert (await shop.clear.execute({"shelf": {"row": 2}}, CONTEXT)).output == "cleared 2"


def test_a_return_type_that_only_a_type_checker_knows_is_no_obstacle() -> None:
    @tool
    def price(item: str) -> Decimal: ...

    assert price.output_schema is None


def plain_context(x: int, context: ToolContext) -> str:
    return context.deps.owner


def typed_context(context: ToolContext[Bank], x: int) -> str:
    return context.deps.owner


def optional_context(x: int, context: ToolContext[Bank] | None = None) -> str:
    return context.deps.owner if context else "nobody"


def old_optional_context(x: int, context: Optional[ToolContext[Bank]] = None) -> str:  # noqa: UP045
    return context.deps.owner if context else "nobody"


def annotated_context(x: int, context: Annotated[ToolContext[Bank], "not for the model"]) -> str:
    return context.deps.owner


def keyword_context(x: int, *, where: ToolContext[Bank]) -> str:
    return where.deps.owner


def alias_of_context(x: int, where: Where) -> str:
    return where.deps.owner


def type_alias_of_context(x: int, where: Elsewhere) -> str:
    return where.deps.owner


def child_of_context(x: int, where: DeskContext) -> str:
    return where.deps.owner


@pytest.mark.parametrize(
    "function",
    [
        plain_context,
        typed_context,
        optional_context,
        old_optional_context,
        annotated_context,
        keyword_context,
        alias_of_context,
        type_alias_of_context,
        child_of_context,
    ],
    ids=lambda function: function.__name__,
)
@pytest.mark.proves("PH-46", "GC-26")
async def test_the_context_is_received_and_is_not_in_the_schema(function: Any) -> None:
    made = tool(function)

    assert list(made.input_schema["properties"]) == ["x"]
    assert (await made.execute({"x": 1}, CONTEXT)).output == "Ann"


async def test_a_model_cannot_supply_the_context() -> None:
    result = await tool(typed_context).execute({"x": 1, "context": {"session_id": "other"}}, CONTEXT)

    assert result.error is not None
    assert "context: not an argument of this tool; it has: x" in result.error.message
