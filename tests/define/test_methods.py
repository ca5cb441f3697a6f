"""Methods as tools: taken from an instance, static, or refused with a way out."""

import functools
from typing import Any

import pytest

from handrail import ToolContext, ToolDefinitionError, as_tool, tool

CONTEXT: ToolContext[Any] = ToolContext(session_id="s-1")


class Bank:
    def __init__(self, owner: str) -> None:
        self.owner = owner

    @tool(read_only=True)
    async def balance(self, account: str, context: ToolContext[Any]) -> str:
        """Look up a balance."""
        return f"{self.owner} {account} {context.session_id}"

    @tool
    def close(self: "Bank", account: str) -> "Bank":
        return self

    @tool
    @staticmethod
    def hours(day: str) -> str:
        return f"9 to 5 on {day}"

    @staticmethod
    @tool
    def phone(city: str) -> str:
        return f"0800 {city}"


async def test_a_method_taken_from_an_instance_is_a_tool_with_its_self() -> None:
    ann, bob = Bank("Ann"), Bank("Bob")

    assert (await as_tool(ann.balance).execute({"account": "a"}, CONTEXT)).output == "Ann a s-1"
    assert (await as_tool(bob.balance).execute({"account": "a"}, CONTEXT)).output == "Bob a s-1"
    assert (await ann.close.execute({"account": "a"}, CONTEXT)).output is ann
    assert ann.close("a") is ann
    assert (ann.balance.name, ann.balance.read_only) == ("balance", True)
    assert list(ann.balance.input_schema["properties"]) == ["account"]


async def test_a_method_of_a_parent_works_in_the_child() -> None:
    class Branch(Bank):
        pass

    assert (await Branch("Eve").balance.execute({"account": "a"}, CONTEXT)).output == "Eve a s-1"


async def test_a_static_method_needs_no_instance() -> None:
    for item in (Bank.hours, Bank("Ann").hours):
        assert (await as_tool(item).execute({"day": "Monday"}, CONTEXT)).output == "9 to 5 on Monday"
    for item in (Bank.phone, Bank("Ann").phone):
        assert (await as_tool(item).execute({"city": "Rome"}, CONTEXT)).output == "0800 Rome"


def test_an_async_static_method_is_async() -> None:
    class Shop:
        @tool
        @staticmethod
        async def open_at(day: str) -> str:
            return day

    assert Shop.open_at.is_async


async def test_a_method_that_has_no_self_says_where_to_take_it_from() -> None:
    message = r"`balance` is a method. Take it from an instance: Class\(…\).balance, not Class.balance"

    with pytest.raises(ToolDefinitionError, match=message):
        as_tool(Bank.balance)
    with pytest.raises(ToolDefinitionError, match=message):
        await Bank.balance.execute({"account": "a"}, CONTEXT)


async def test_a_model_cannot_supply_the_self_of_a_method() -> None:
    result = await Bank("Ann").balance.execute({"account": "a", "self": "Eve"}, CONTEXT)

    assert result.error is not None
    assert "self: not an argument of this tool; it has: account" in result.error.message


async def test_an_undecorated_method_of_an_instance_is_a_tool_too() -> None:
    class Shop:
        def find(self, item: str) -> str:
            """Find an item."""
            return f"found {item}"

        @classmethod
        def count(cls, shelf: int) -> str:
            return f"{cls.__name__} {shelf}"

    assert (await as_tool(Shop().find).execute({"item": "tea"}, CONTEXT)).output == "found tea"
    assert as_tool(Shop().find).description == "Find an item."
    assert (await as_tool(Shop.count).execute({"shelf": 2}, CONTEXT)).output == "Shop 2"
    with pytest.raises(ToolDefinitionError, match="`find` is a method"):
        as_tool(Shop.find)


def test_a_class_method_is_refused_in_both_orders_and_reported_with_a_way_out() -> None:
    with pytest.raises(ToolDefinitionError, match=r"class method.*`Class\.method`"):

        class Above:
            @tool
            @classmethod
            def count(cls, shelf: int) -> int:
                return shelf

    with pytest.raises(ToolDefinitionError, match=r"class method.*`Class\.method`"):

        class Below:
            @classmethod
            @tool
            def count(cls, shelf: int) -> int:
                return shelf


async def test_a_decorated_method_keeps_its_self() -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return f"logged {function(*args, **kwargs)}"

        return wrapper

    class Shop:
        @tool
        @logged
        def find(self, item: str) -> str:
            return f"found {item}"

    assert (await Shop().find.execute({"item": "tea"}, CONTEXT)).output == "logged found tea"
