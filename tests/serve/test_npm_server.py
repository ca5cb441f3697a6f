"""A real server from npm behind the gateway: from a client's configuration to a refused write, in six lines of YAML."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serve.desk import open_file_desk, text_of

pytestmark = [pytest.mark.slow, pytest.mark.node]

GATEWAY = """
store: STORE
approval_wait: 0
sources:
  files: {command: [SERVER, DIRECTORY], trusted: true}
policy: policy.yaml
"""
POLICY = """
rules:
  - deny: files__move_file
  - deny: files__write_file
    where: {path: {matches: ".*/secret.*"}}
    reason: nobody writes there
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference server of a file system."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    where = tmp_path_factory.mktemp("npm")
    name = "@modelcontextprotocol/server-filesystem"
    subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(where), name], check=True)
    return where / "node_modules" / ".bin" / "mcp-server-filesystem"


async def test_a_server_that_knows_nothing_of_handrail_is_read_asked_about_and_refused(
    server: Path, tmp_path: Path
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a.txt").write_text("hello")
    text = GATEWAY.replace("SERVER", str(server)).replace("DIRECTORY", str(inside))
    async with (
        open_file_desk(tmp_path, text, policy_yaml=POLICY) as desk,
        desk.connect_client() as client,
        desk.sign_in(who="ann") as ann,
    ):
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "files__write_file" in names
        assert "files__move_file" not in names
        assert "hello" in text_of(await client.call_tool("files__read_text_file", {"path": str(inside / "a.txt")}))

        refused = await client.call_tool("files__write_file", {"path": str(inside / "secret.txt"), "content": "x"})
        assert "nobody writes there" in text_of(refused)
        moved = {"source": str(inside / "a.txt"), "destination": str(inside / "b.txt")}
        assert "denied by policy" in text_of(await client.call_tool("files__move_file", moved))

        new = {"path": str(inside / "new.txt"), "content": "approved"}
        assert "waits for an operator" in text_of(await client.call_tool("files__write_file", new))
        assert not (inside / "new.txt").exists()
        (approval,) = await desk.store.approvals.pending()
        await ann.answer(approval.token, "approve")
        assert not (await client.call_tool("files__write_file", new)).is_error
    assert sorted(path.name for path in inside.iterdir()) == ["a.txt", "new.txt"]
    assert (inside / "new.txt").read_text() == "approved"
