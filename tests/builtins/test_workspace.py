"""Nothing outside the working directory, whatever the path; and a sentence for whatever the system says."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import InvalidArgumentsError, PermissionDeniedError, Tool, ToolContext, ToolError
from handrail.builtins import EditFileTool, ListFilesTool, ReadFileTool, SearchTextTool, WriteFileTool
from tests.builtins.conftest import SECRET, TOOLS, Desk, Payload, Swap, count_open, every_tool, everything_in, target


async def refused(tool: Tool[..., Any], payload: dict[str, Any], context: ToolContext) -> str:
    """The message of a call that is refused by the check, and by the tool itself where nobody checked."""
    with pytest.raises(PermissionError) as error:
        await tool.check_permissions(payload, context)
    assert isinstance(error.value, PermissionDeniedError)
    result = await tool.execute(payload, context)
    assert result.error is not None
    assert result.error.code == "permission_denied"
    assert result.error.message == str(error.value)
    assert SECRET not in result.for_model()
    return result.error.message


@pytest.mark.proves("HC-26")
@every_tool
@pytest.mark.parametrize("path", ["a.txt", "./a.txt", "../outside/secret.txt", "", "~/a.txt"])
async def test_a_path_that_is_not_absolute_is_refused(
    desk: Desk, tool: Tool[..., Any], payload: Payload, path: str
) -> None:
    with pytest.raises(InvalidArgumentsError, match="must be an absolute path"):
        await tool.check_permissions(payload(path), desk.context)
    result = await tool.execute(payload(path), desk.context)
    assert result.error is not None
    assert result.error.code == "invalid_arguments"


@pytest.mark.proves("HC-27", "HC-D3", "HC-06")
@every_tool
async def test_a_path_outside_is_refused_with_the_name_of_the_argument_and_of_the_working_directory(
    desk: Desk, tool: Tool[..., Any], payload: Payload
) -> None:
    message = await refused(tool, payload(str(desk.outside / "secret.txt")), desk.context)
    assert f"`{next(name for name in payload('') if 'path' in name or name == 'directory')}` leads outside" in message
    assert str(desk.work) in message


@pytest.mark.proves("HC-D3")
@every_tool
async def test_a_twin_that_only_begins_like_the_working_directory_is_outside(
    desk: Desk, tool: Tool[..., Any], payload: Payload
) -> None:
    assert str(desk.twin).startswith(str(desk.work))
    await refused(tool, payload(str(desk.twin / "secret.txt")), desk.context)


@pytest.mark.proves("HC-D3")
@every_tool
async def test_dots_do_not_lead_out(desk: Desk, tool: Tool[..., Any], payload: Payload) -> None:
    for path in ("../outside/secret.txt", "not/there/../../../outside/secret.txt", "..", "../../../../../etc/passwd"):
        await refused(tool, payload(f"{desk.work}/{path}"), desk.context)


@pytest.mark.proves("HC-D3")
@every_tool
async def test_a_link_that_leads_out_is_refused(desk: Desk, tool: Tool[..., Any], payload: Payload) -> None:
    (desk.work / "file").symlink_to(desk.outside / "secret.txt")
    (desk.work / "folder").symlink_to("../outside")
    (desk.work / "again").symlink_to("folder")
    (desk.work / "to-be").symlink_to(desk.outside / "not-there-yet")
    for path in ("file", "folder", "folder/secret.txt", "again/secret.txt", "to-be", "folder/new/secret.txt"):
        message = await refused(tool, payload(str(desk.work / path)), desk.context)
        assert str(desk.outside) not in message, "where a link leads is nobody's business either"
    assert set(everything_in(desk.outside)) == {"secret.txt"}


async def test_a_link_that_stays_inside_is_followed(desk: Desk) -> None:
    (desk.work / "real").mkdir()
    (desk.work / "real" / "a.txt").write_text("one\n")
    (desk.work / "link").symlink_to("real")
    (desk.work / "name").symlink_to(desk.work / "link" / "a.txt")
    path = str(desk.work / "name")
    assert await desk.answer(ReadFileTool(), file_path=path) == "1\tone"
    await desk.answer(EditFileTool(), file_path=path, old_text="one", new_text="two")
    await desk.answer(WriteFileTool(), file_path=str(desk.work / "link" / "b.txt"), content="three")
    assert (desk.work / "name").is_symlink()
    assert everything_in(desk.work / "real") == {"a.txt": b"two\n", "b.txt": b"three"}


async def test_a_working_directory_that_is_a_link_is_the_directory_it_leads_to(desk: Desk) -> None:
    (desk.work / "a.txt").write_text("one")
    link = desk.work.parent / "link"
    link.symlink_to("work")
    context = ToolContext(session_id="s-1", working_directory=str(link))
    for path in (link / "a.txt", desk.work / "a.txt"):
        result = await ReadFileTool().execute({"file_path": str(path)}, context)
        assert result.output == "1\tone"
    listed = await ListFilesTool().execute({}, context)
    assert listed.output == str(link / "a.txt"), "paths are spelled as the session spells its working directory"


@every_tool
async def test_without_a_working_directory_everything_is_refused(
    desk: Desk, tool: Tool[..., Any], payload: Payload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.work)
    (desk.work / "a.txt").write_text("one")
    for directory in (None, "", ".", "work"):
        context = ToolContext(session_id="s-1", working_directory=directory)
        message = await refused(tool, payload(str(desk.work / "a.txt")), context)
        assert "working directory" in message


@every_tool
async def test_a_working_directory_that_is_gone_is_a_failure_with_a_reason(
    desk: Desk, tool: Tool[..., Any], payload: Payload
) -> None:
    context = ToolContext(session_id="s-1", working_directory=str(desk.work / "gone"))
    result = await tool.execute(payload(str(desk.work / "gone" / "a.txt")), context)
    assert result.error is not None
    assert result.error.message.startswith("There is no `")


@every_tool
@pytest.mark.parametrize("name", ["a\0b", "\0", "\udcff\ud800"])
async def test_a_text_that_no_path_can_be_is_refused(
    desk: Desk, tool: Tool[..., Any], payload: Payload, name: str
) -> None:
    with pytest.raises(PermissionDeniedError):
        tool(**payload(f"{desk.work}/{name}"), context=desk.context)


@every_tool
async def test_links_in_a_circle_or_without_an_end_are_refused(
    desk: Desk, tool: Tool[..., Any], payload: Payload
) -> None:
    (desk.work / "self").symlink_to("self")
    (desk.work / "a").symlink_to("b")
    (desk.work / "b").symlink_to("a")
    for number in range(1_200):
        (desk.work / f"chain-{number}").symlink_to(f"chain-{number + 1}")
    for path in ("self", "a", "self/x", "self/x/y"):
        assert (await desk.failure(tool, **payload(str(desk.work / path)))).code == "permission_denied"
        with pytest.raises(PermissionDeniedError):
            await tool.check_permissions(payload(str(desk.work / path)), desk.context)
    # An answer and no exception; what it says depends on how far this version of Python follows links.
    await tool.execute(payload(str(desk.work / "chain-0")), desk.context)


NAMES = st.sampled_from(
    ["a.txt", "folder", "deep", "in", "out", "out.txt", "self", "..", ".", "", "secret.txt", "new", "é", "outside"]
)
BEGINNINGS = st.sampled_from(
    ["{work}", "{work}", "{work}", "{twin}", "{outside}", "{work}-evil", "/", "//", "", "{work}/../work"]
)


@pytest.mark.proves("HC-D3")
@given(st.sampled_from(TOOLS), BEGINNINGS, st.lists(NAMES | st.text(max_size=3), max_size=6))
async def test_any_path_stays_inside_or_is_refused(
    shared_desk: Desk, tool_and_payload: tuple[Tool[..., Any], Payload], beginning: str, names: list[str]
) -> None:
    desk, (tool, payload) = shared_desk, tool_and_payload
    for name, leads_to in (
        ("in", "folder"),
        ("out", "../outside"),
        ("out.txt", "../outside/secret.txt"),
        ("self", "self"),
    ):
        if not os.path.lexists(desk.work / name):
            (desk.work / name).symlink_to(leads_to)
    (desk.work / "folder" / "deep").mkdir(parents=True, exist_ok=True)
    (desk.work / "folder" / "a.txt").write_text("tree")
    before = everything_in(desk.outside), everything_in(desk.twin), sorted(os.listdir(desk.work.parent))
    path = "/".join([beginning.format(work=desk.work, twin=desk.twin, outside=desk.outside), *names])

    result = await tool.execute(payload(path), desk.context)

    assert SECRET not in result.for_model()
    assert (everything_in(desk.outside), everything_in(desk.twin), sorted(os.listdir(desk.work.parent))) == before
    code = result.error.code if result.error else None
    if not path.startswith("/") or "\0" in path:
        assert code == "invalid_arguments"
    elif not Path(os.path.realpath(path)).is_relative_to(desk.work):
        assert code == "permission_denied"
    if code not in ("invalid_arguments", "permission_denied"):
        await tool.check_permissions(payload(path), desk.context)
        return
    with pytest.raises(ToolError) as refusal:
        await tool.check_permissions(payload(path), desk.context)
    assert refusal.value.code == code


# What the system says.


@every_tool
async def test_no_descriptor_is_left_open_whatever_happens(
    desk: Desk, tool: Tool[..., Any], payload: Payload, tree: Path, way: str
) -> None:
    (desk.work / "self").symlink_to("self")
    os.mkfifo(desk.work / "pipe")
    paths = [str(tree), str(tree.parent), f"{tree}/x", str(desk.work / "self"), str(desk.work / "pipe"), "/etc/passwd"]
    for path in paths * 3:
        await tool.execute(payload(path), desk.context)
    assert count_open(desk) == 0


@every_tool
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EACCES, "does not allow"),
        (errno.ENAMETOOLONG, "a name that is too long"),
        (errno.EIO, "Input/output error"),
        (errno.EROFS, "only be read"),
        (errno.ENOSPC, "no room"),
    ],
)
async def test_what_the_system_says_becomes_a_sentence_for_the_model(
    desk: Desk,
    tool: Tool[..., Any],
    payload: Payload,
    tree: Path,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swap = Swap(monkeypatch, when=lambda path: path == str(desk.work))

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    swap.do(fail)
    failure = await desk.failure(tool, **payload(target(tool, tree)))
    assert failure.code == "tool_execution_failed"
    assert words in failure.message
    assert str(desk.work) in failure.message


@every_tool
async def test_a_path_through_a_file_is_explained(
    desk: Desk, tool: Tool[..., Any], payload: Payload, tree: Path, way: str
) -> None:
    failure = await desk.failure(tool, **payload(f"{tree}/x/y"))
    assert failure.code == "tool_execution_failed"
    assert "not a directory" in failure.message or "cannot do this" in failure.message


@pytest.mark.parametrize("name", ["read_file", "write_file", "edit_file"])
async def test_directories_pipes_and_devices_are_no_files(desk: Desk, way: str, name: str) -> None:
    tool, payload = next(pair for pair in TOOLS if pair[0].name == name)
    os.mkfifo(desk.work / "pipe")
    assert "is a directory" in (await desk.failure(tool, **payload(str(desk.work)))).message
    (desk.work / "sub").mkdir()
    assert "is a directory" in (await desk.failure(tool, **payload(str(desk.work / "sub")))).message
    assert "only regular files" in (await desk.failure(tool, **payload(str(desk.work / "pipe")))).message
    assert stat.S_ISFIFO((desk.work / "pipe").stat().st_mode)
    everywhere = ToolContext(session_id="s-1", working_directory="/")
    device = await tool.execute(payload("/dev/null"), everywhere)
    assert device.error is not None
    assert "only regular files" in device.error.message


@pytest.mark.proves("HC-28")
def test_the_readers_are_read_only_and_safe_together_and_the_writers_are_neither() -> None:
    flags = {tool.name: (tool.is_read_only(), tool.is_concurrency_safe()) for tool, _ in TOOLS}
    assert flags == {
        "read_file": (True, True),
        "list_files": (True, True),
        "search_text": (True, True),
        "write_file": (False, False),
        "edit_file": (False, False),
    }
    assert [tool.name for tool, _ in TOOLS if tool.consequential] == ["write_file", "edit_file"]
    assert not EditFileTool().idempotent


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReadFileTool(max_bytes=0),
        lambda: ListFilesTool(max_entries=-1),
        lambda: SearchTextTool(timeout=0),
        lambda: WriteFileTool(max_bytes=True),
        lambda: EditFileTool(max_bytes=0),
    ],
)
def test_a_limit_that_would_make_a_tool_useless_is_refused_when_it_is_made(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="must be a positive number"):
        make()
