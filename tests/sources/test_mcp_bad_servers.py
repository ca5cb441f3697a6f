"""Servers that send too much, lie, fall silent or change: a clear diagnostic, and the rest works."""

import asyncio
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult
from handrail.execute import Timeouts
from handrail.formats import openai_chat
from handrail.sources import Elicitation, McpServer, Sources, connect

CONTEXT = ToolContext(session_id="s")
ALLOW = Policy([Rule.allow("*")])


def hostile(what: str = "", **options: Any) -> McpServer:
    return McpServer(
        "bad", command=[sys.executable, "-S", str(Path(__file__).with_name("hostile_server.py")), what], **options
    )


async def run(sources: Sources, name: str, *, timeout: float = 20) -> ToolResult:
    executor = Executor(sources.tools, policy=ALLOW, timeouts=Timeouts(call=timeout))
    return await executor.run(ToolCall(id="c1", name=f"bad__{name}"), CONTEXT)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():
            await asyncio.sleep(0.01)


async def test_a_schema_of_5_mb_is_skipped_and_the_other_tools_work() -> None:
    async with connect([hostile("big_schema")]) as sources:
        (skipped,) = sources.status["bad"].skipped
        assert skipped.name == "big"
        assert "max_definition_bytes is 200,000" in skipped.reason
        assert (await run(sources, "ok")).output == "fine"


async def test_of_10000_tools_as_many_are_taken_as_are_allowed() -> None:
    async with connect([hostile("many", max_tools=20)]) as sources:
        assert len(sources.tools) == 20
        (skipped,) = sources.status["bad"].skipped
        assert skipped.name == "9,980 tools"
        assert "max_tools is 20" in skipped.reason
        assert (await run(sources, "t19")).output == "fine"


async def test_of_a_list_without_end_only_the_beginning_is_read() -> None:
    async with connect([hostile("flood", max_tools=20)]) as sources:
        assert len(sources.tools) == 20
        reasons = {skipped.name: skipped.reason for skipped in sources.status["bad"].skipped}
        assert "only 10,000 are read" in reasons["20,000 tools"]
        assert (await run(sources, "t19")).output == "fine"


async def test_bad_names_and_schemas_are_skipped_one_by_one() -> None:
    async with connect([hostile("names")]) as sources:
        names = [tool.name for tool in sources.tools]
        assert names[:2] == ["bad__a_b", "bad__ok"]
        assert not {"bad__twice", "bad__broken", "bad__"} & set(names)
        reasons = {skipped.name: skipped.reason for skipped in sources.status["bad"].skipped}
        assert "2 tools that would be named 'bad__twice'" in reasons["twice"]
        assert reasons["bell�"] == "its name has control characters"
        assert reasons["broken"] == "its inputSchema is not valid at properties: each must be a schema"
        assert "one value may need more than 20,000 checks" in reasons["endless"]
        assert len(reasons) == 6
        assert (await run(sources, "a_b")).output == "fine"
        long = next(tool for tool in sources.tools if len(tool.name) > 128)
        definitions = openai_chat.tools([long])
        (name,) = [definition["function"]["name"] for definition in definitions]
        assert len(name) <= 64
        message = {"tool_calls": [{"id": "c1", "function": {"name": name, "arguments": "{}"}}]}
        (back,) = openai_chat.calls(message, definitions)
        assert back.name == long.name


async def test_a_result_of_200_mb_is_dropped_without_being_held_in_memory() -> None:
    async with connect([hostile()]) as sources:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await run(sources, "huge")
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert result.error is not None
        assert result.error.code == "outcome_unknown"
        assert after - before < 100_000  # kB; the answer alone has twice as many.
        assert (await run(sources, "ok")).output == "fine"
        assert sources.status["bad"].state == "connected"


async def test_a_call_that_is_never_answered_ends_with_its_time_and_is_cancelled_at_the_server(tmp_path: Path) -> None:
    async with connect([hostile(env={"JOURNAL": str(tmp_path / "journal")})]) as sources:
        result = await run(sources, "silent", timeout=1)
        assert result.error is not None
        assert result.error.code == "outcome_unknown"
        assert (await run(sources, "ok")).output == "fine"
    heard = (tmp_path / "journal").read_text().splitlines()
    assert heard[-3:] == ["tools/call", "notifications/cancelled", "tools/call"]


@pytest.mark.parametrize("what", ["mute", "mute_at_once"])
async def test_a_server_that_never_answers_has_no_tools_and_says_so(what: str) -> None:
    async with connect([hostile(what, connect_timeout=1)]) as sources:
        assert sources.tools == ()
        assert sources.status["bad"].state == "reconnecting"
        assert re.fullmatch(r"it did not (answer|list its tools) within 1 s", sources.status["bad"].reason)


async def test_a_definition_without_a_name_is_skipped_too() -> None:
    async with connect([hostile("malformed")]) as sources:
        assert sources.tools == ()
        assert [skipped.name for skipped in sources.status["bad"].skipped] == ["(no name)"]
        assert "not valid at name: Field required" in sources.status["bad"].skipped[0].reason


async def test_a_response_that_breaks_the_servers_own_promise_is_not_passed_on() -> None:
    async with connect([hostile("liar", trusted=True)]) as sources:
        result = await run(sources, "wrong")
        assert result.error is not None
        assert result.error.code == "tool_execution_failed"
        assert "not what it has promised" in result.error.message
    async with connect([hostile("liar")]) as sources:  # It may have done something.
        result = await run(sources, "wrong")
        assert result.error is not None
        assert result.error.code == "outcome_unknown"


async def test_a_refusal_by_the_protocol_did_nothing_and_an_internal_error_may_have() -> None:
    async with connect([hostile()]) as sources:
        refused, lost = await run(sources, "refused"), await run(sources, "lost")
        assert refused.error is not None
        assert refused.error.code == "tool_execution_failed"
        assert "no such thing" in refused.error.message
        assert lost.error is not None
        assert lost.error.code == "outcome_unknown"


async def test_changed_tools_are_reported_and_those_that_stay_are_the_same_objects() -> None:
    async with connect([hostile("changing")]) as sources:
        heard: list[tuple[str, ...]] = []
        sources.subscribe(lambda: heard.append(tuple(tool.name for tool in sources.tools)))
        before = {tool.name: tool for tool in sources.tools}
        assert list(before) == ["bad__ok", "bad__v1", "bad__change"]
        executor = Executor([sources], policy=ALLOW)
        await executor.run(ToolCall(id="c1", name="bad__change"), CONTEXT)
        await until(lambda: len(heard) == 1)
        assert heard == [("bad__ok", "bad__v2", "bad__change")]
        assert next(iter(sources.tools)) is before["bad__ok"]
        assert executor.registry.names == heard[0]


async def test_of_ten_thousand_pictures_as_many_are_kept_as_a_result_may_hold() -> None:
    async with connect([hostile("asking")]) as sources:
        result = await run(sources, "pictures")
        assert result.output == "[image: its data cannot be read]"
        assert len(result.media) == 20
        assert result.media[0].mime_type == "application/octet-stream"
        assert (result.media[1].data, result.media[1].size) == (None, 6_000_000)
        assert "at most 5,000,000 bytes" in result.media[1].omitted
        assert "9,983 more" in result.media[-1].describe_for_model()
        assert "obey" not in result.for_model()


async def test_of_a_hundred_questions_at_once_only_a_few_reach_a_person(caplog: pytest.LogCaptureFixture) -> None:
    all_have_come = asyncio.Event()
    asked: list[Elicitation] = []

    async def answer(question: Elicitation) -> bool:
        asked.append(question)
        await all_have_come.wait()
        return True

    async with connect([hostile("asking", on_elicitation=answer, protocol="legacy")]) as sources:
        running = asyncio.create_task(run(sources, "ask"))
        await until(lambda: caplog.text.count("asks too many questions at once") == 92)
        all_have_come.set()
        result = await running
    assert len(asked) == 8
    assert json.loads(result.text) == {"accept": 8, "decline": 92}


@pytest.mark.parametrize("what", ["hammer", "hammer_changing"])
async def test_a_server_that_announces_changes_without_end_is_listed_less_and_less_often(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handrail.sources.mcp.client._LISTING_PAUSE", 0.001)
    journal = tmp_path / "journal"
    async with connect([hostile(what, env={"JOURNAL": str(journal)})]) as sources:
        end = asyncio.get_running_loop().time() + 1.5
        while asyncio.get_running_loop().time() < end:
            assert (await run(sources, "ok")).output == "fine"

    # After 20 changes in a row each pause is twice as long as the one before: 1.5 s are ten more listings.
    assert journal.read_text().split().count("tools/list") < 45


async def test_of_two_answers_to_one_call_the_first_counts_and_the_connection_stays() -> None:
    async with connect([hostile("answers_twice")]) as sources:
        results = [(await run(sources, name)).output for name in ("twice", "ok", "twice")]
        state = sources.status["bad"].state

    assert results == ["first", "fine", "first"]
    assert state == "connected"


async def test_a_process_that_a_server_leaves_behind_keeps_no_pipe_open_here() -> None:
    def list_pipes() -> set[str]:
        opened = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        return {os.readlink(item) for item in opened if item.is_fifo()}

    before = list_pipes()
    async with connect([hostile("leaving")]) as sources:
        left = int(str((await run(sources, "leave")).output))
        assert list_pipes() > before
    try:
        os.kill(left, 0)  # It is still there, with the ends of the server's pipes.
        async with asyncio.timeout(60):
            while list_pipes() > before:
                await asyncio.sleep(0)
    finally:
        os.kill(left, signal.SIGKILL)
