"""Pinned definitions, and the commands that look after MCP servers."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from handrail.cli.main import main
from handrail.errors import ConfigError
from handrail.sources import McpServer, connect
from handrail.sources.pins import compare_pins, read_pins, write_pins
from tests.clocks import eventually

HOSTILE = Path(__file__).with_name("hostile_server.py")


def server(pins: Path, version: str) -> McpServer:
    command = [sys.executable, "-S", str(HOSTILE), "changing"]
    return McpServer("crm", command=command, env={"VERSION": version}, pins=pins)


def file_of(server: McpServer, directory: Path) -> str:
    """A file that defines the server, for the command line."""
    options = f"command={list(server.command or ())!r}, env={dict(server.env)!r}, pins={str(server.pins)!r}"
    file = directory / "servers.py"
    file.write_text(f"from handrail.sources import McpServer\nSERVERS = [McpServer('crm', {options})]\n")
    return f"{file}:SERVERS"


async def test_what_nobody_has_accepted_is_held_and_the_rest_is_offered(tmp_path: Path) -> None:
    pins = tmp_path / "pins.json"
    async with connect([server(pins, "1")]) as sources:
        assert sources.tools == ()
        assert [difference.tool for difference in sources.status["crm"].differences] == ["change", "ok", "v1"]
    definitions = {"ok": {"name": "ok"}, "change": {"name": "change"}}
    write_pins(pins, "crm", definitions)
    async with connect([server(pins, "1")]) as sources:
        held = {difference.tool: difference for difference in sources.status["crm"].differences}
        assert {name: one.kind for name, one in held.items()} == {"ok": "changed", "change": "changed", "v1": "added"}
        assert '+  "description": "A tool.",' in held["ok"].diff


WRITE = """
import sys
from handrail.sources.pins import write_pins
for number in range(25):
    write_pins(sys.argv[1], f"{sys.argv[2]}-{number}", {})
"""


async def test_processes_that_pin_at_once_lose_no_pins_of_each_other(tmp_path: Path) -> None:
    pins = tmp_path / "pins.json"
    write = (sys.executable, "-c", WRITE, str(pins))
    processes = [await asyncio.create_subprocess_exec(*write, f"crm-{number}") for number in range(4)]
    assert [await process.wait() for process in processes] == [0] * 4
    assert len(json.loads(pins.read_text())["servers"]) == 4 * 25


async def test_an_accepted_change_reaches_a_server_that_is_connected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = tmp_path / "pins.json"
    where = file_of(server(pins, "1"), tmp_path)
    assert await asyncio.to_thread(main, ["mcp", "pin", where]) == 0
    assert await asyncio.to_thread(main, ["mcp", "diff", where]) == 0
    where = file_of(server(pins, "2"), tmp_path)
    assert await asyncio.to_thread(main, ["mcp", "diff", where]) == 1
    assert "crm: v1 is removed" in (shown := capsys.readouterr().out)
    assert "crm: v2 is added" in shown
    async with connect([server(pins, "2")]) as sources:
        changed = asyncio.Event()
        sources.subscribe(changed.set)
        assert [tool.name for tool in sources.tools] == ["crm__ok", "crm__change"]
        assert await asyncio.to_thread(main, ["mcp", "accept", where, "v2"]) == 0
        async with asyncio.timeout(60):
            await changed.wait()
        assert [tool.name for tool in sources.tools] == ["crm__ok", "crm__v2", "crm__change"]
        assert sources.status["crm"].differences == ()
    assert sorted(read_pins(pins, "crm")) == ["change", "ok", "v1", "v2"]
    assert "crm: 1 accepted: v2" in capsys.readouterr().out


async def test_pins_that_cannot_be_read_hold_everything(tmp_path: Path) -> None:
    pins = tmp_path / "pins.json"
    pins.write_text("{}")
    async with connect([server(pins, "1")]) as sources:
        assert sources.status["crm"].state == "failed"
        assert "holds no pins of version 1" in sources.status["crm"].reason
        assert sources.tools == ()


async def test_pins_that_cannot_be_read_for_a_while_leave_a_connected_server_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("handrail.sources.mcp.client._PINS_PAUSE", 0.01)
    pins = tmp_path / "pins.json"
    assert await asyncio.to_thread(main, ["mcp", "pin", file_of(server(pins, "1"), tmp_path)]) == 0
    where = file_of(server(pins, "2"), tmp_path)
    async with connect([server(pins, "2")]) as sources:
        written = pins.read_text()
        pins.write_text("<<<<<<< ours")
        await eventually(lambda: "stay as they were" in caplog.text or sources.status["crm"].state == "failed")
        assert [tool.name for tool in sources.tools] == ["crm__ok", "crm__change"]
        assert sources.status["crm"].state == "connected"
        pins.write_text(written)
        assert await asyncio.to_thread(main, ["mcp", "accept", where, "v2"]) == 0
        await eventually(lambda: [tool.name for tool in sources.tools] == ["crm__ok", "crm__v2", "crm__change"])


async def test_a_change_of_the_tools_is_seen_although_the_first_listing_after_it_fails() -> None:
    stumbling = McpServer("crm", command=[sys.executable, "-S", str(HOSTILE), "stumbling"])
    async with connect([stumbling]) as sources:
        await eventually(lambda: "crm__v3" in [tool.name for tool in sources.tools])


def test_what_a_terminal_would_hide_is_shown_in_a_difference() -> None:
    (one,) = compare_pins({}, {"t": {"description": "fine\u200b\x1b[2J\U000e0041"}})
    assert one.diff.isascii()
    assert "\\u200b\\u001b[2J\\udb40\\udc41" in one.diff


def test_pins_of_several_servers_share_a_file(tmp_path: Path) -> None:
    pins = tmp_path / "pins.json"
    write_pins(pins, "b", {"t": {"name": "t"}})
    write_pins(pins, "a", {})
    assert list(json.loads(pins.read_text())["servers"]) == ["a", "b"]
    with pytest.raises(ConfigError, match="cannot be written"):
        write_pins(tmp_path / "no" / "pins.json", "a", {})


def test_the_command_line_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["mcp", "inspect", "nothing"], "module:object or file.py:object, got 'nothing'"),
        (["mcp", "inspect", "no_such_module:x"], "There is no module no_such_module"),
        (["mcp", "inspect", "json:loads"], "must be an McpServer or a list of them, got function"),
        (["mcp", "diff", f"{sys.executable} x"], "pass --pins FILE"),
        (["mcp", "serve", f"{tmp_path / 'x.py'}:tools"], "There is no file"),
    ):
        assert main(arguments) == 1
        assert text in capsys.readouterr().err


def test_inspect_shows_the_tools_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "inspect", f"{sys.executable} -S {HOSTILE} names"]) == 0
    shown = capsys.readouterr().out
    assert "server: connected, 8 tools" in shown
    assert "server__ok  (consequential)  A tool." in shown
    assert "skipped: broken: its inputSchema is not valid" in shown
