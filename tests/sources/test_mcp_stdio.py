"""The tools of an MCP server in a real process."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handrail import ChatSession, Executor, MediaPart, Policy, Rule, ToolCall, ToolContext, tool
from handrail.core import CallFinished, CallStarted, Event, Progress
from handrail.errors import ConfigError
from handrail.sources import McpServer, Sources, connect
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls

SHOP = [sys.executable, str(Path(__file__).with_name("shop_server.py"))]
CONTEXT = ToolContext(session_id="s")


def call(name: str, arguments: str = "{}", *, id: str = "c1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments_json=arguments)


async def until(sources: Sources, reached: Callable[[Sources], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached(sources):
            await asyncio.sleep(0.01)


@pytest.mark.proves("HC-37", "GC-20", "GC-21")
async def test_the_tools_of_a_process_run_there_under_the_executors_policy_and_events(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    heard: list[Event] = []
    shop = McpServer("shop", command=SHOP, env={"SHOP_JOURNAL": str(journal)}, trusted=True)
    async with connect([shop]) as sources:
        assert sources.status["shop"].state == "connected"
        tools = {tool.name: tool for tool in sources.tools}
        assert list(tools) == ["shop__find_order", "shop__refund", "shop__crash", "shop__count", "shop__picture"]
        assert {tool.source for tool in tools.values()} == {"mcp:shop"}
        policy = Policy([Rule.allow("shop__count"), Rule.deny("shop__crash")])
        executor = Executor(sources.tools, policy=policy, listeners=[heard.append])

        found = await executor.run(call("shop__find_order", '{"order_id": 7}'), CONTEXT)
        assert found.output == {"order_id": 7, "state": "paid"}
        asked = await executor.run(call("shop__refund", '{"order_id": 7, "amount": 5}', id="c2"), CONTEXT)
        assert asked.error is not None
        assert asked.error.code == "approval_required"
        denied = await executor.run(call("shop__crash", '{"order_id": 7}', id="c3"), CONTEXT)
        assert denied.error is not None
        assert denied.error.code == "permission_denied"
        wrong = await executor.run(call("shop__count", '{"to": "many"}', id="c4"), CONTEXT)
        assert wrong.error is not None
        assert wrong.error.code == "invalid_arguments"
        counted = await executor.run(call("shop__count", '{"to": 2}', id="c5"), CONTEXT)
        assert counted.output == {"result": "done"}
    assert not journal.exists()
    assert [event.call.id for event in heard if isinstance(event, CallStarted)] == ["c1", "c5"]
    assert [event.call.id for event in heard if isinstance(event, CallFinished)] == ["c1", "c2", "c3", "c4", "c5"]
    assert [(event.message, event.fraction) for event in heard if isinstance(event, Progress)] == [
        ("at 1", 0.5),
        ("at 2", 1.0),
    ]


async def test_a_conversation_uses_the_tools_of_a_server_beside_your_own() -> None:
    @tool(read_only=True)
    def today() -> str:
        """The date."""
        return "Monday"

    lines = [tool_calls(("shop__find_order", {"order_id": 7}), ("today", {})), "It is paid."]
    async with connect([McpServer("shop", command=SHOP, trusted=True)]) as sources:
        session = ChatSession(ScriptedProvider(lines), Executor([sources, today]), context=CONTEXT)
        result = await session.send("How is order 7?")
    assert [item.output for item in result.results] == [{"order_id": 7, "state": "paid"}, "Monday"]
    assert result.text == "It is paid."


async def test_our_client_calls_our_server_which_is_served_from_the_command_line() -> None:
    where = f"{Path(__file__).with_name('bank_server.py')}:make_executor"
    serve = [sys.executable, "-m", "handrail.cli", "mcp", "serve", where]
    async with connect([McpServer("bank", command=serve, trusted=True)]) as sources:
        executor = Executor([sources], policy=Policy([Rule.allow("*")]))
        found = await executor.run(call("bank__balance", '{"account": "a"}'), CONTEXT)
        assert found.output == {"account": "a", "balance": 120}
        asked = await executor.run(call("bank__pay", '{"to": "Ann", "amount": 5}', id="c2"), CONTEXT)
        assert asked.error is not None
        assert "approval_required" in asked.error.message


async def test_what_a_server_says_of_its_tools_counts_only_if_it_is_trusted() -> None:
    async with connect([McpServer("shop", command=SHOP)]) as sources:
        find = next(tool for tool in sources.tools if tool.name == "shop__find_order")
        assert (find.read_only, find.concurrency_safe, find.idempotent) == (False, False, False)
        assert find.metadata["mcp"]["annotations"] == {"readOnlyHint": True}
        result = await Executor(sources.tools).run(call("shop__find_order", '{"order_id": 7}'), CONTEXT)
        assert result.error is not None
        assert result.error.code == "approval_required"


async def test_an_error_of_the_tool_and_a_picture_come_back_as_what_they_are() -> None:
    async with connect([McpServer("shop", command=SHOP, include=["refund", "pic*"])]) as sources:
        assert [tool.name for tool in sources.tools] == ["shop__refund", "shop__picture"]
        executor = Executor(sources.tools, policy=Policy([Rule.allow("*")]))
        failed = await executor.run(call("shop__refund", '{"order_id": 1, "amount": 5000}'), CONTEXT)
        assert failed.error is not None
        assert "at most 1000 can be refunded" in failed.error.message
        drawn = await executor.run(call("shop__picture", id="c2"), CONTEXT)
        assert (drawn.output, drawn.media) == ("a dot", (MediaPart(mime_type="image/png", data=b"hello"),))
        assert drawn.for_model() == "a dot\n[image: image/png, 5 bytes]"


async def test_a_server_that_dies_between_claim_and_result_leaves_the_outcome_unknown_and_is_started_again(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal"
    shop = McpServer("shop", command=SHOP, env={"SHOP_JOURNAL": str(journal)}, trusted=True)
    async with connect([shop]) as sources:
        executor = Executor(sources.tools, policy=Policy([Rule.allow("*")]))
        died = await executor.run(call("shop__crash", '{"order_id": 7}'), CONTEXT)
        assert died.error is not None
        assert died.error.code == "outcome_unknown"
        assert sources.status["shop"].state == "reconnecting"
        while_away = await executor.run(call("shop__refund", '{"order_id": 7, "amount": 1}', id="c2"), CONTEXT)
        assert while_away.error is not None
        assert (while_away.error.code, while_away.error.retryable) == ("unavailable", True)

        await until(sources, lambda now: now.status["shop"].state == "connected")
        for call_id in ("c1", "c3"):  # Also after it is back: neither by itself nor on demand.
            again = await executor.run(call("shop__crash", '{"order_id": 7}', id=call_id), CONTEXT)
            assert again.error is not None
            assert again.error.code == "outcome_unknown"
        refunded = await executor.run(call("shop__refund", '{"order_id": 7, "amount": 1}', id="c4"), CONTEXT)
        assert refunded.output == {"result": "refunded 1"}
    assert journal.read_text().splitlines() == ["crash 7", "refund 7"]


async def test_a_server_that_cannot_start_costs_the_others_nothing() -> None:
    gone = McpServer("gone", command=["/no/such/program"])
    rude = McpServer("rude", command=[sys.executable, "-c", "import sys; sys.exit('no licence')"])
    async with connect([gone, rude, McpServer("shop", command=SHOP)]) as sources:
        status = sources.status
        assert [item.state for item in status.values()] == ["failed", "reconnecting", "connected"]
        assert "No such file or directory" in status["gone"].reason
        assert status["rude"].reason == "the process ended (1): no licence"
        assert len(sources.tools) == 5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "either command=[…] or url=…"),
        ({"command": "npx server"}, "command must be a list"),
        ({"url": "ftp://x"}, "must be an http or https URL"),
        ({"url": "https://"}, "url must have a host"),
        ({"url": "https://x.example\0.example/mcp"}, "must not have spaces or control characters"),
        ({"url": "https://x.example/mcp\n"}, "must not have spaces or control characters"),
        ({"url": "https://[::1/mcp"}, "url is not valid: Invalid IPv6 URL"),
        ({"url": "https://x.example:port/mcp"}, "url is not valid: Port could not be cast"),
        ({"url": "https://u:p@x/mcp"}, "must not hold a name or password"),
        ({"url": "https://x/mcp", "bearer": "sk-123"}, "must be a reference"),
        ({"command": ["x"], "bearer": "env:TOKEN"}, "are for a server with url"),
        ({"command": ["x"], "max_tools": 0}, "max_tools must be more than 0, got 0"),
    ],
)
def test_a_wrong_configuration_is_refused_and_says_what_is_right(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        McpServer("crm", **options)
    assert text in str(caught.value)
    assert "sk-123" not in str(caught.value)


async def test_a_source_that_is_not_configured_leaves_no_other_open() -> None:
    opened: list[str] = []

    class Good:
        name = "good"

        async def open(self, **options: Any) -> Any:
            opened.append("open")
            return self

        tools = ()

        async def aclose(self) -> None:
            opened.append("close")

    class Bad:
        name = "bad"

        async def open(self, **options: Any) -> Any:
            raise ConfigError("a key is missing")

    with pytest.raises(ConfigError, match="a key is missing"):
        async with connect([Good(), Bad()]):  # pyright: ignore[reportArgumentType]
            pass
    assert opened == ["open", "close"]


async def test_two_servers_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="Two sources are named 'shop'"):
        async with connect([McpServer("shop", command=SHOP), McpServer("shop", command=SHOP)]):
            pass


async def test_a_server_that_was_connected_is_again_once_its_secret_is_back(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("one")
    env = {"SHOP_JOURNAL": str(tmp_path / "journal"), "TOKEN": f"file:{secret}"}
    async with connect([McpServer("shop", command=SHOP, env=env, trusted=True)]) as sources:
        executor = Executor(sources.tools, policy=Policy([Rule.allow("*")]))
        secret.unlink()  # It is being renewed when the process dies.
        await executor.run(call("shop__crash", '{"order_id": 7}'), CONTEXT)
        await until(sources, lambda found: "env['TOKEN']" in found.status["shop"].reason)
        secret.write_text("two")
        await until(sources, lambda found: found.status["shop"].state != "reconnecting")
        assert sources.status["shop"].state == "connected"
