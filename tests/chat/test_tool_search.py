"""A pool that is too large to offer: the model searches it, and what it finds is offered from the next step on."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from handrail import ChatSession, ConfigError, Executor, Policy, Rule, ToolContext, build_tool, tool
from handrail.chat import FileSessionStore
from handrail.formats import anthropic, openai_responses
from handrail.providers import ModelRequest
from handrail.registry import ToolSearch
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls


class NoModel:
    is_available = False

    def embed(self, texts: Any) -> Any:
        raise AssertionError("there is no model")


@tool(read_only=True)
async def get_time() -> str:
    """Tell the time."""
    return "12:00"


def made(name: str, description: str) -> Any:
    schema = {"type": "object", "properties": {"id": {"type": "string"}}, "additionalProperties": False}
    return build_tool({"name": name, "description": description, "input_schema": schema, "execute": lambda _: name})


POOL = [
    *(made(f"thing_{number}", f"Look at thing number {number}.") for number in range(200)),
    made("refundInvoice", "Give the money of an invoice back."),
    made("sendParcel", "Send a parcel to a customer."),
]


def names(request: ModelRequest) -> list[str]:
    return [tool.name for tool in request.tools]


def search(query: str) -> Any:
    return tool_calls(("search_tools", {"query": query, "limit": 1}))


async def test_what_a_search_finds_is_offered_from_the_next_step_on_and_the_prefix_stays(tmp_path: Path) -> None:
    executor = Executor([get_time, *ToolSearch(POOL, embedder=NoModel())], policy=Policy([Rule.allow("*")]))
    provider = ScriptedProvider(
        [search("give money back"), tool_calls(("refundInvoice", {"id": "i-1"})), "Done.", search("parcel"), "Yes."]
    )
    context = ToolContext(session_id="s-1")
    store = FileSessionStore(tmp_path)
    first = await ChatSession(provider, executor, context=context, sessions=store, allow_memory_ledger=True).send(
        "Refund it."
    )
    again = await ChatSession.load(provider, executor, context=context, sessions=store, allow_memory_ledger=True)
    await again.send("And a parcel?")

    assert [result.output for result in first.results][1:] == ["refundInvoice"]
    assert [names(request) for request in provider.requests] == [
        ["get_time", "search_tools"],
        ["get_time", "search_tools", "refundInvoice"],
        ["get_time", "search_tools", "refundInvoice"],
        ["get_time", "search_tools", "refundInvoice"],
        ["get_time", "search_tools", "refundInvoice", "sendParcel"],
    ]
    for wire in (openai_responses, anthropic):
        sent = [json.dumps(wire.tools(request.tools))[:-1] for request in provider.requests]
        assert all(after.startswith(before) for before, after in pairwise(sent))


async def test_a_tool_that_a_search_found_still_needs_its_approval() -> None:
    executor = Executor([*ToolSearch(POOL, embedder=NoModel())])
    provider = ScriptedProvider([search("refund invoice"), tool_calls(("refundInvoice", {"id": "i-1"}))])
    session = ChatSession(provider, executor, context=ToolContext(session_id="s-1"))

    assert (await session.send("Refund it.")).stop_reason == "approval_required"


async def test_a_search_without_a_match_says_so_and_a_bad_one_is_refused() -> None:
    executor = Executor([*ToolSearch(POOL, embedder=NoModel())])
    provider = ScriptedProvider([search("photosynthesis"), tool_calls(("search_tools", {"query": ""})), "No."])
    result = await ChatSession(provider, executor, context=ToolContext(session_id="s-1")).send("?")

    assert result.results[0].output == {"tools": [], "note": "Nothing fits. Try other words."}
    assert result.results[1].error is not None
    assert [names(request) for request in provider.requests] == [["search_tools"]] * 3


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    found = ToolSearch(POOL, embedder=NoModel()).search("look at the invoice", limit=2)

    assert found[0].tool.name == "refundInvoice"
    with pytest.raises(ConfigError, match="limit must be between 1 and 20"):
        ToolSearch(POOL, limit=0)
