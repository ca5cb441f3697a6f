"""`write_file`: all or nothing, inside the working directory."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import PermissionDeniedError, ToolError
from handrail.builtins import EditFileTool, ReadFileTool, WriteFileTool
from tests.builtins.conftest import Desk, everything_in


async def test_a_new_file_is_created_with_the_directories_on_the_way(desk: Desk, way: str) -> None:
    path = desk.work / "new" / "deep" / "a.txt"
    answer = await desk.answer(WriteFileTool(), file_path=str(path), content="é\r\n")
    assert answer == f"Created `{path}`: 4 bytes."
    assert everything_in(desk.work) == {"new": None, "new/deep": None, "new/deep/a.txt": "é\r\n".encode()}
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


async def test_a_file_that_is_there_is_replaced_and_keeps_its_mode_and_owner(desk: Desk, way: str) -> None:
    path = desk.work / "a.sh"
    path.write_text("old")
    if os.getuid() == 0:
        os.chown(path, 1234, 2345)
    path.chmod(0o6751)
    owner = path.stat().st_uid, path.stat().st_gid
    assert await desk.answer(WriteFileTool(), file_path=str(path), content="new") == f"Replaced `{path}`: 3 bytes."
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o751, "setuid was given to the old text"
    assert (path.stat().st_uid, path.stat().st_gid) == owner
    assert set(everything_in(desk.work)) == {"a.sh"}


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
async def test_any_text_is_written_exactly(shared_desk: Desk, text: str) -> None:
    path = shared_desk.work / "any.txt"
    await shared_desk.answer(WriteFileTool(), file_path=str(path), content=text)
    assert path.read_bytes() == text.encode()


@pytest.mark.parametrize("tool", [WriteFileTool(), EditFileTool()], ids=lambda tool: tool.name)
@pytest.mark.parametrize("fails", ["fsync", "replace", "fchmod"])
async def test_a_write_that_fails_leaves_everything_as_it_was(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tool: Any, fails: str, way: str
) -> None:
    path = desk.work / "a.txt"
    path.write_text("old text")

    def fail(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, fails, fail)
    change = {"content": "new"} if tool.name == "write_file" else {"old_text": "old", "new_text": "new"}
    failure = await desk.failure(tool, file_path=str(path), **change)
    assert failure.message == f"There is no room left for `{path}`; it is as it was."
    assert everything_in(desk.work) == {"a.txt": b"old text"}


async def test_a_reader_sees_the_old_text_or_the_new_one_and_nothing_between(desk: Desk) -> None:
    """The old file stays what it is for whoever has it open: it was replaced, not written over."""
    path = desk.work / "a.txt"
    path.write_text("old")
    with path.open() as reader:
        await desk.answer(WriteFileTool(), file_path=str(path), content="new and longer")
        assert reader.read() == "old"
    assert path.read_text() == "new and longer"


@pytest.mark.parametrize("tool", [WriteFileTool(), EditFileTool()], ids=lambda tool: tool.name)
async def test_a_file_marked_read_only_stays_as_it_is(desk: Desk, tool: Any) -> None:
    path = desk.work / "a.txt"
    path.write_text("old")
    path.chmod(0o444)
    change = {"content": "new"} if tool.name == "write_file" else {"old_text": "old", "new_text": "new"}
    assert "marked read-only" in (await desk.failure(tool, file_path=str(path), **change)).message
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (WriteFileTool(), {"content": "a\ud800"}),
        (EditFileTool(), {"old_text": "old", "new_text": "\udfff"}),
        (EditFileTool(), {"old_text": "\udfff", "new_text": "new"}),
    ],
    ids=["content", "new_text", "old_text"],
)
async def test_half_a_surrogate_pair_is_refused(desk: Desk, tool: Any, arguments: dict[str, str]) -> None:
    path = desk.work / "a.txt"
    path.write_text("old ?")
    with pytest.raises(ToolError, match="surrogate"):
        tool(file_path=str(path), context=desk.context, **arguments)
    result = await tool.execute(json.dumps({"file_path": str(path), **arguments}), desk.context)
    assert not result.ok
    assert path.read_text() == "old ?"


async def test_a_content_that_is_too_large_is_refused(desk: Desk) -> None:
    failure = await desk.failure(WriteFileTool(max_bytes=3), file_path=str(desk.work / "new" / "a.txt"), content="éé")
    assert failure.message == "`content` has 4 bytes; 3 are the most."
    assert everything_in(desk.work) == {}


async def test_a_dangling_link_inside_is_written_through_and_stays_a_link(desk: Desk) -> None:
    (desk.work / "link").symlink_to("target")
    await desk.answer(WriteFileTool(), file_path=str(desk.work / "link"), content="text")
    assert (desk.work / "link").is_symlink()
    assert (desk.work / "target").read_text() == "text"


async def test_the_working_directory_itself_and_what_is_under_a_file_cannot_be_written(desk: Desk, way: str) -> None:
    (desk.work / "a.txt").write_text("text")
    for path in (desk.work, desk.work / "a.txt" / "b.txt", desk.work / "a.txt" / "b" / "c.txt"):
        failure = await desk.failure(WriteFileTool(), file_path=str(path), content="text")
        assert str(path) in failure.message
    assert everything_in(desk.work) == {"a.txt": b"text"}


@pytest.mark.proves("HC-06")
async def test_the_check_has_no_objection_to_a_path_inside_and_objects_to_one_outside(desk: Desk) -> None:
    inside = {"file_path": str(desk.work / "a.txt"), "content": ""}
    assert await WriteFileTool().check_permissions(inside, desk.context) is None
    with pytest.raises(PermissionDeniedError):
        await WriteFileTool().check_permissions({**inside, "file_path": "/etc/motd"}, desk.context)


async def test_what_was_written_reads_back(desk: Desk, tmp_path: Path) -> None:
    path = str(desk.work / "a.txt")
    await desk.answer(WriteFileTool(), file_path=path, content="one\ntwo\n")
    assert await desk.answer(ReadFileTool(), file_path=path) == "1\tone\n2\ttwo"
