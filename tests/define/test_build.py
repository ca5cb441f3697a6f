"""`build_tool` and `as_tool`: a mapping, or anything tool-shaped, is a tool."""

import asyncio
from collections.abc import Callable
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest

from handrail import (
    LLMFunctionTool,
    Tool,
    ToolContext,
    ToolDefinitionError,
    ToolLike,
    ToolResult,
    as_tool,
    build_tool,
)

CONTEXT: ToolContext[Any] = ToolContext(session_id="s-1", deps="services")
SCHEMA = {
    "type": "object",
    "properties": {"pattern": {"type": "string"}, "glob": {"type": "string"}},
    "required": ["pattern"],
}


def search(payload: dict[str, Any], context: ToolContext[Any]) -> str:
    return f"{payload['pattern']} in {context.session_id}"


async def search_later(payload: dict[str, Any], context: ToolContext[Any]) -> ToolResult:
    await asyncio.sleep(0)
    return ToolResult(output=search(payload, context))


class Searcher:
    async def __call__(self, payload: dict[str, Any], context: ToolContext[Any]) -> str:
        return search(payload, context)


def made(**changes: Any) -> Tool[..., Any]:
    return build_tool(
        {"name": "search", "description": "Search.", "input_schema": SCHEMA, "execute": search, **changes}
    )


@pytest.mark.parametrize(
    "execute",
    [search, search_later, Searcher(), lambda payload, context: search_later(payload, context)],
    ids=["sync", "async", "async object", "sync that gives a coroutine"],
)
@pytest.mark.proves("HC-29", "HC-D1")
async def test_a_mapping_is_a_tool(execute: Any) -> None:
    tool = made(execute=execute)

    assert (tool.name, tool.description, tool.input_schema) == ("search", "Search.", SCHEMA)
    assert (await tool.execute({"pattern": "x"}, CONTEXT)).output == "x in s-1"


async def test_execute_may_do_without_the_context() -> None:
    tool = made(execute=lambda payload: payload["pattern"].upper())

    assert (await tool.execute({"pattern": "x"}, CONTEXT)).output == "X"


@pytest.mark.proves("HC-31", "HC-D1", "GC-D15")
async def test_what_is_left_out_is_taken_for_the_worst() -> None:
    tool = made()

    assert (tool.is_read_only(), tool.is_concurrency_safe(), tool.consequential) == (False, False, True)
    with pytest.raises(PermissionError, match="declares no permission check"):
        await tool.check_permissions({"pattern": "x"}, CONTEXT)


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("form", [lambda said: said, lambda said: lambda: said], ids=["boolean", "callable"])
@pytest.mark.parametrize(
    "names", [("is_read_only", "is_concurrency_safe"), ("read_only", "concurrency_safe")], ids=["chapter", "ours"]
)
@pytest.mark.proves("HC-30", "HC-D1")
def test_a_flag_is_a_boolean_or_a_function_that_says_one(said: bool, form: Any, names: tuple[str, str]) -> None:
    tool = made(**{name: form(said) for name in names})

    assert (tool.is_read_only(), tool.is_concurrency_safe()) == (said, said)
    assert (tool.read_only, tool.concurrency_safe) == (said, said)


async def later() -> bool:
    return True


@pytest.mark.parametrize("flag", ["is_read_only", "is_concurrency_safe", "read_only", "concurrency_safe"])
@pytest.mark.parametrize("said", [1, "true", lambda: 1, lambda: None, lambda: "yes", later, lambda self: True, Mock()])
@pytest.mark.proves("HC-30")
def test_a_flag_that_says_anything_else_is_refused(flag: str, said: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=r"`search`: (read_only|concurrency_safe) "):
        made(**{flag: said})


@pytest.mark.proves("HC-30", "HC-D1", "HC-06")
async def test_a_check_is_a_function_sync_or_async() -> None:
    def refuse(payload: dict[str, Any], context: ToolContext[Any]) -> None:
        if payload["pattern"] == "secret":
            raise PermissionError(f"not in {context.session_id}")

    async def refuse_later(payload: dict[str, Any], context: ToolContext[Any]) -> None:
        refuse(payload, context)

    for check in (refuse, refuse_later):
        for key in ("check_permissions", "permission_check"):
            tool = made(**{key: check})
            assert await tool.check_permissions({"pattern": "x"}, CONTEXT) is None
            with pytest.raises(PermissionError, match="not in s-1"):
                await tool.check_permissions({"pattern": "secret"}, CONTEXT)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("is_readonly", "Did you mean `is_read_only`?"),
        ("concurency_safe", "Did you mean `concurrency_safe`?"),
        ("xyz", "It takes: cache_for, cache_public, check_permissions"),
        ("parse", "It takes: "),
        (5, "It takes: "),
    ],
)
@pytest.mark.proves("HC-32")
def test_a_key_that_is_not_known_is_an_error_that_names_it(key: Any, hint: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        build_tool({"name": "search", "input_schema": SCHEMA, "execute": search, key: True})

    assert f"does not know the key {key!r}." in str(caught.value)
    assert hint in str(caught.value)


def test_the_fields_of_a_tool_are_keys_too() -> None:
    tool = build_tool(
        {
            "name": "search",
            "handler": search,
            "input_schema": SCHEMA,
            "output_schema": {"type": "string"},
            "read_only": True,
            "timeout": 5,
            "max_output_chars": 100,
            "cache_for": 60,
            "key": ["pattern"],
            "lock_key": "glob",
            "tags": ["files"],
            "examples": [{"pattern": "x"}],
            "source": "mcp:files",
            "metadata": {"icon": "🔍"},
            "on_interrupt": "finish",
        }
    )

    assert (tool.timeout, tool.max_output_chars, tool.cache_for, tool.key) == (5, 100, 60, ("pattern",))
    assert (tool.lock_key, tool.tags, tool.examples) == (("glob",), frozenset({"files"}), ({"pattern": "x"},))
    assert (tool.source, tool.metadata, tool.on_interrupt) == ("mcp:files", {"icon": "🔍"}, "finish")
    assert tool.output_schema == {"type": "string"}


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ([], "build_tool takes a mapping, not list"),
        ({}, "it has no name, execute, input_schema"),
        ({"name": "search", "input_schema": SCHEMA}, "`search` cannot be built: it has no execute"),
        ({"name": "search", "execute": search}, "`search` cannot be built: it has no input_schema"),
        ({"name": "search", "execute": "search", "input_schema": SCHEMA}, "execute must be a function, not 'search'"),
        ({"name": "search", "execute": lambda: 1, "input_schema": SCHEMA}, "execute must take (payload, context)"),
        ({"name": "search", "execute": lambda **_: 1, "input_schema": SCHEMA}, "execute must take (payload, context)"),
        ({"name": "s", "execute": search, "input_schema": SCHEMA, "is_read_only": True, "read_only": False}, "twice"),
        ({"name": "s", "execute": search, "input_schema": SCHEMA, "check_permissions": True}, "must be a function"),
        ({"name": "s", "execute": search, "input_schema": SCHEMA, "description": ["x"]}, "description must be text"),
        ({"name": "s", "execute": search, "input_schema": {"type": "array"}}, "must describe an object"),
    ],
)
def test_what_cannot_be_built_says_what_is_wrong(definition: Any, message: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        build_tool(definition)

    assert message in str(caught.value)


async def test_changing_the_given_schema_later_changes_nothing() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"pattern": {"type": "string"}}}
    tool = made(input_schema=schema, output_schema=schema)
    schema["properties"]["pattern"]["type"] = "integer"

    assert tool.input_schema["properties"]["pattern"]["type"] == "string"
    assert (tool.output_schema or {})["properties"]["pattern"]["type"] == "string"
    assert (await tool.execute({"pattern": "x"}, CONTEXT)).ok


# as_tool


class FourMembers:
    """What an object needs at least."""

    name = "count"
    description = "Count things."
    input_schema = SCHEMA

    async def execute(self, payload: dict[str, Any], context: ToolContext[Any]) -> ToolResult:
        return ToolResult(output=[self.name, payload])


class WholeProtocol(FourMembers):
    async def check_permissions(self, payload: dict[str, Any], context: ToolContext[Any]) -> None:
        if payload["pattern"] == "secret":
            raise PermissionError("not that one")

    def is_read_only(self) -> bool:
        return True

    def is_concurrency_safe(self) -> bool:
        return True


@pytest.mark.proves("HC-02", "HC-01")
async def test_an_object_with_the_protocols_members_is_a_tool() -> None:
    assert isinstance(WholeProtocol(), ToolLike)
    tool = as_tool(WholeProtocol())

    assert isinstance(tool, Tool)
    assert isinstance(tool, ToolLike)
    assert (tool.name, tool.description, tool.is_read_only(), tool.is_concurrency_safe()) == (
        *("count", "Count things."),
        *(True, True),
    )
    assert (await tool.execute({"pattern": "x"}, CONTEXT)).output == ["count", {"pattern": "x"}]
    with pytest.raises(PermissionError, match="not that one"):
        await tool.check_permissions({"pattern": "secret"}, CONTEXT)


@pytest.mark.proves("HC-02", "GC-D15")
async def test_an_object_with_the_four_core_members_is_a_tool_that_may_do_harm() -> None:
    assert not isinstance(FourMembers(), ToolLike)
    tool = as_tool(FourMembers())

    assert (tool.read_only, tool.concurrency_safe, tool.permission_check) == (False, False, None)
    assert (await tool.execute({"pattern": "x"}, CONTEXT)).ok
    with pytest.raises(PermissionError):
        await tool.check_permissions({"pattern": "x"}, CONTEXT)


def with_attributes(parent: type[Any], **attributes: Any) -> Any:
    return type("Made", (parent,), attributes)()


@pytest.mark.parametrize(
    ("attributes", "read_only"),
    [
        ({"read_only": True}, True),
        ({"read_only": False}, False),
        ({"read_only": None}, False),
        ({"is_read_only": True}, True),
        ({"is_read_only": lambda self: False, "read_only": True}, False),
        ({"is_read_only": lambda self: True, "read_only": False}, False),
        ({"is_read_only": lambda self: True, "read_only": "no"}, False),
        ({"is_read_only": lambda self: True, "read_only": True}, True),
    ],
)
def test_of_two_answers_of_an_object_the_worse_one_counts(attributes: dict[str, Any], read_only: bool) -> None:
    assert as_tool(with_attributes(FourMembers, **attributes)).read_only is read_only


@pytest.mark.parametrize(
    "attributes",
    [{"read_only": "yes"}, {"read_only": 1}, {"is_read_only": lambda self: 1}, {"is_read_only": "true"}],
)
def test_an_objects_flag_that_is_neither_true_nor_false_is_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError, match="`count`: read_only must"):
        as_tool(with_attributes(FourMembers, **attributes))


def test_an_objects_options_are_taken_and_its_nones_are_not() -> None:
    given = {
        "timeout": 5,
        "tags": ["a"],
        "metadata": None,
        "examples": None,
        "source": "mcp:x",
        "permission_check": None,
    }
    tool = as_tool(with_attributes(FourMembers, **given))

    assert (tool.timeout, tool.tags, tool.metadata, tool.examples) == (5, frozenset({"a"}), {}, ())
    assert (tool.source, tool.permission_check) == ("mcp:x", None)


def test_a_mapping_and_a_class_of_fields_are_tools_too() -> None:
    class Greet(LLMFunctionTool):
        """Greet somebody."""

        name: str

        def model_tool_handler(self, context: None) -> tuple[str, None]:
            return f"Hello {self.name}", None

    definition = {"name": "search", "input_schema": SCHEMA, "execute": search}

    assert [as_tool(item).name for item in (definition, MappingProxyType(definition), Greet)] == [
        *("search", "search", "Greet")
    ]


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (None, "NoneType is not tool-shaped: it has no name, description, input_schema, execute"),
        ("search", "str is not tool-shaped"),
        (5, "int is not tool-shaped"),
        (FourMembers, "Give an instance: FourMembers(), not the class"),
        (dict, "The class dict is not a tool"),
        (Mock(), "must be a JSON Schema object, not Mock"),
    ],
)
def test_what_is_not_tool_shaped_says_what_it_lacks(thing: Any, message: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        as_tool(thing)

    assert message in str(caught.value)


def test_the_members_of_the_protocol_are_these() -> None:
    members = {"name", "description", "input_schema", "execute", "check_permissions"}
    whole = members | {"is_read_only", "is_concurrency_safe"}
    for missing in whole:
        partial: Callable[..., Any] = type("Partial", (), dict.fromkeys(whole - {missing}, 1))
        assert not isinstance(partial(), ToolLike), missing
    assert isinstance(type("Whole", (), dict.fromkeys(whole, 1))(), ToolLike)
