"""The reference servers of the Model Context Protocol, from npm, in processes of their own."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult
from handrail.core import Event, Progress
from handrail.sources import McpServer, Sources, connect

pytestmark = [pytest.mark.slow, pytest.mark.node]
CONTEXT = ToolContext(session_id="s")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the installed programs."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    where = tmp_path_factory.mktemp("npm")
    names = [f"@modelcontextprotocol/server-{name}" for name in ("everything", "filesystem", "memory")]
    subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(where), *names], check=True)
    return where / "node_modules" / ".bin"


async def call(sources: Sources, name: str, *, listeners: Any = (), **arguments: Any) -> ToolResult:
    executor = Executor(sources.tools, policy=Policy([Rule.allow("*")]), listeners=listeners)
    return await executor.run(ToolCall(id=name, name=name, arguments_json=json.dumps(arguments)), CONTEXT)


async def test_everything_of_the_everything_server(servers: Path) -> None:
    async with connect([McpServer("all", command=[str(servers / "mcp-server-everything")])]) as sources:
        assert sources.status["all"].state == "connected"
        assert sources.status["all"].skipped == ()
        assert len(sources.tools) >= 8
        assert (await call(sources, "all__echo", message="hello")).output == "Echo: hello"
        image = await call(sources, "all__get-tiny-image")
        assert [(item.mime_type, item.data is not None) for item in image.media] == [("image/png", True)]
        heard: list[Event] = []
        long = "all__trigger-long-running-operation"
        done = await call(sources, long, listeners=[heard.append], duration=1, steps=4)
        assert done.ok
        assert len([event for event in heard if isinstance(event, Progress)]) == 4


async def test_the_filesystem_server_reads_and_writes_in_its_directory_only(servers: Path, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.write_text("secret")
    files = McpServer("files", command=[str(servers / "mcp-server-filesystem"), str(inside)], trusted=True)
    async with connect([files]) as sources:
        read_only = {tool.name for tool in sources.tools if tool.read_only}
        assert "files__read_text_file" in read_only
        assert "files__write_file" not in read_only
        assert (await call(sources, "files__write_file", path=str(inside / "a"), content="hello")).ok
        assert (inside / "a").read_text() == "hello"
        assert "hello" in (await call(sources, "files__read_text_file", path=str(inside / "a"))).for_model()
        refused = await call(sources, "files__read_text_file", path=str(outside))
        assert refused.error is not None
        assert "secret" not in refused.for_model()


async def test_the_memory_server_keeps_its_data_over_a_restart(servers: Path, tmp_path: Path) -> None:
    memory = McpServer(
        "memory",
        command=[str(servers / "mcp-server-memory")],
        env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")},
    )
    entity = {"name": "Ann", "entityType": "person", "observations": ["pays early"]}
    async with connect([memory]) as sources:
        assert (await call(sources, "memory__create_entities", entities=[entity])).ok
    async with connect([memory]) as sources:
        assert "pays early" in (await call(sources, "memory__read_graph")).for_model()
