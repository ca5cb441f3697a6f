"""The pool of an agent: filtered, sorted, each name once."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import ConfigError, Tool, ToolRegistry, assemble_tool_pool, build_tool
from handrail.formats import anthropic, gemini, mcp, openai_chat, openai_realtime, openai_responses

FORMATS = (anthropic, gemini, mcp, openai_chat, openai_realtime, openai_responses)


def named(name: str, source: str = "local", **options: Any) -> Tool[..., Any]:
    given = {"name": name, "source": source, "input_schema": {"type": "object"}, "execute": lambda payload: ""}
    return build_tool({**given, **options})


def names(pool: list[Tool[..., Any]]) -> list[str]:
    return [item.name for item in pool]


BUILT_IN = [named("write"), named("read", tags=["files"]), named("list_files", tags=["files"])]
MCP = [named("star", "mcp:github"), named("list_repos", "mcp:github"), named("read", "mcp:disk")]
MCP.append(named("call", "openapi:crm"))


@pytest.mark.proves("HC-34", "HC-35")
def test_built_in_tools_come_first_each_part_is_sorted_and_the_built_in_one_wins() -> None:
    pool = assemble_tool_pool(BUILT_IN, MCP)

    assert names(pool) == ["list_files", "read", "write", "call", "list_repos", "star"]
    assert pool[1] is BUILT_IN[1]


def test_sorting_is_by_code_points_so_that_no_locale_changes_it() -> None:
    pool = assemble_tool_pool([named(item) for item in ("b", "B", "a", "ä", "_", "Z")])

    assert names(pool) == ["B", "Z", "_", "a", "b", "ä"]


@pytest.mark.proves("HC-33")
@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ([], ["list_files", "read", "write", "call", "list_repos", "star"]),
        (["write"], ["list_files", "read", "call", "list_repos", "star"]),
        (["read"], ["list_files", "write", "call", "list_repos", "star"]),
        (["list_*"], ["read", "write", "call", "star"]),
        (["mcp:github"], ["list_files", "read", "write", "call"]),
        (["mcp:*"], ["list_files", "read", "write", "call"]),
        (["openapi:crm"], ["list_files", "read", "write", "list_repos", "star"]),
        (["tag:files"], ["write", "call", "list_repos", "read", "star"]),
        (["tag:files", "mcp:*", "write"], ["call"]),
        (["*"], []),
        (["[rw]*"], ["list_files", "call", "list_repos", "star"]),
        (["github", "mcp", "mcp:git"], ["list_files", "read", "write", "call", "list_repos", "star"]),
    ],
    ids=str,
)
def test_a_denied_tool_is_in_neither_part(rules: list[str], left: list[str]) -> None:
    assert names(assemble_tool_pool(BUILT_IN, MCP, rules)) == left


@pytest.mark.parametrize("rules", ["write", [""], [" "], ["write "], [None], [3], ["tag:"]], ids=repr)
def test_a_rule_that_could_deny_nothing_is_refused(rules: Any) -> None:
    with pytest.raises(ConfigError):
        assemble_tool_pool(BUILT_IN, MCP, rules)


def test_a_pool_takes_anything_tool_shaped_and_goes_into_a_registry() -> None:
    def hum(tune: str) -> str:
        return tune

    pool = assemble_tool_pool([hum, {"name": "a", "input_schema": {}, "execute": lambda payload: ""}])

    assert ToolRegistry(pool).names == ("a", "hum")


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Tool[..., Any]], list[Tool[..., Any]]]:
    """Tools that share names, also within one source, and differ in one thing or in nothing."""

    def tools(sources: list[str]) -> st.SearchStrategy[list[Tool[..., Any]]]:
        one = st.builds(
            named,
            st.sampled_from(["a", "b", "c", "größe", "a b"]),
            st.sampled_from(sources),
            description=st.sampled_from(["", "One.", "Two."]),
            read_only=st.booleans(),
            strict=st.booleans(),
            examples=st.sampled_from([[], [{"x": 1}]]),
            input_schema=st.sampled_from(
                [{"properties": {"x": {}, "y": {}}}, {"properties": {"y": {}, "x": {}}}, {"properties": {"x": {}}}]
            ),
        )
        return st.lists(one, max_size=6)

    return draw(tools(["local"])), draw(tools(["mcp:one", "mcp:two", "openapi:crm"]))


@pytest.mark.proves("HC-36")
@given(pools(), st.data())
def test_the_same_tools_give_the_same_bytes_whatever_their_order_and_the_lists_stay_as_they_were(
    tools: tuple[list[Tool[..., Any]], list[Tool[..., Any]]], data: st.DataObject
) -> None:
    built_in, others = tools
    deny = data.draw(st.sampled_from([(), ("c",), ("mcp:one",)]))
    before = [list(built_in), list(others), list(deny)]
    pool = assemble_tool_pool(built_in, others, deny)

    mixed = assemble_tool_pool(data.draw(st.permutations(built_in)), data.draw(st.permutations(others)), deny)

    for wire in FORMATS:
        assert json.dumps(wire.tools(mixed)) == json.dumps(wire.tools(pool))
    assert [built_in, others, list(deny)] == before
    assert [item.source for item in mixed] == [item.source for item in pool]
    found = names(pool)
    assert len(found) == len(set(found))
    locals_ = [item.name for item in pool if item.source == "local"]
    assert found == sorted(locals_) + sorted(set(found) - set(locals_))


def test_a_tool_that_json_cannot_hold_does_not_break_the_choice_between_two_of_one_name() -> None:
    odd = replace(named("a", "mcp:x"), examples=({"x": object()},))

    assert names(assemble_tool_pool([], [odd, named("a", "mcp:x")])) == ["a"]
