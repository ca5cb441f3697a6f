"""Nothing outside the working directory, whatever happens between the check and the use."""

import os
from pathlib import Path
from typing import Any

import pytest

from handrail import Tool, ToolContext
from handrail.builtins import ListFilesTool, ReadFileTool, WriteFileTool, workspace
from tests.builtins.conftest import SECRET, TOOLS, Desk, Payload, Swap, count_open, every_tool, everything_in, target


@pytest.mark.proves("HC-D3")
@every_tool
async def test_a_file_swapped_for_a_link_after_the_check_is_refused(
    desk: Desk, tool: Tool[..., Any], payload: Payload, way: str
) -> None:
    file = desk.work / "a.txt"
    folder = tool.name == "list_files"
    file.mkdir() if folder else file.write_text("one")
    await tool.check_permissions(payload(str(file)), desk.context)
    file.rmdir() if folder else file.unlink()
    file.symlink_to(desk.outside if folder else desk.outside / "secret.txt")
    failure = await desk.failure(tool, **payload(str(file)))
    assert failure.code == "permission_denied"
    assert everything_in(desk.outside) == {"secret.txt": SECRET.encode()}


@pytest.mark.proves("HC-D3")
@every_tool
async def test_a_directory_swapped_for_a_link_on_the_way_is_refused(
    desk: Desk, tool: Tool[..., Any], payload: Payload, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The walk begins with the working directory itself: at that moment everything was found to be in order.
    swap = Swap(monkeypatch, when=lambda path: path == str(desk.work))
    before = everything_in(desk.outside)

    def put_a_link() -> None:
        (desk.work / "sub").rename(desk.work / "away")
        (desk.work / "sub").symlink_to(desk.outside)

    swap.do(put_a_link)
    failure = await desk.failure(tool, **payload(target(tool, tree)))
    assert swap.happened
    assert failure.code == "permission_denied"
    assert everything_in(desk.outside) == before


@pytest.mark.parametrize("swapped", ["sub", "sub/deep", "sub/deep/secret.txt"])
async def test_a_link_that_comes_after_the_check_is_not_followed_even_to_a_place_inside(
    desk: Desk, tree: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    swap = Swap(monkeypatch, when=lambda path: path == Path(swapped).name)

    def put_a_link() -> None:
        (desk.work / swapped).rename(desk.work / "away")
        (desk.work / swapped).symlink_to(desk.work / "away")

    swap.do(put_a_link)
    failure = await desk.failure(ReadFileTool(), file_path=str(tree))
    assert swap.happened
    assert failure.code == "permission_denied"


@pytest.mark.proves("HC-D3")
@pytest.mark.parametrize("swap_back", [False, True])
async def test_a_link_that_is_there_only_while_a_file_is_opened_is_found_out(
    desk: Desk, way: str, tree: Path, monkeypatch: pytest.MonkeyPatch, swap_back: bool
) -> None:
    """Where no directory descriptors keep a link from being followed, the second look sees where it led."""
    swap = Swap(monkeypatch, when=lambda path: path.endswith("secret.txt"))

    def put_a_link() -> None:
        (desk.work / "sub").rename(desk.work / "away")
        (desk.work / "sub").symlink_to(desk.outside)

    def take_it_away() -> None:
        (desk.work / "sub").unlink()
        (desk.work / "away").rename(desk.work / "sub")

    swap.do(put_a_link, take_it_away if swap_back else lambda: None)
    result = await ReadFileTool().execute({"file_path": str(tree)}, desk.context)
    assert swap.happened
    assert SECRET not in result.for_model()
    if way.startswith("paths"):
        assert result.error is not None
        assert result.error.code == "permission_denied"


@pytest.mark.proves("HC-D3")
@pytest.mark.parametrize("name", ["read_file", "edit_file", "search_text"])
async def test_a_file_swapped_for_a_link_while_it_is_opened_is_refused(
    desk: Desk, way: str, tree: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tool, payload = next(pair for pair in TOOLS if pair[0].name == name)
    swap = Swap(monkeypatch, when=lambda path: path.endswith("secret.txt"))

    def put_a_link() -> None:
        tree.unlink()
        tree.symlink_to(desk.outside / "secret.txt")

    swap.do(put_a_link)
    result = await tool.execute(payload(str(tree)), desk.context)
    assert swap.happened
    assert SECRET not in result.for_model()
    assert (desk.outside / "secret.txt").read_text() == SECRET
    if name != "search_text":  # which passes over what it cannot read
        assert result.error is not None
        assert result.error.code == "permission_denied"


@pytest.mark.proves("HC-D3")
@pytest.mark.parametrize(
    ("name", "opened_last"),
    [("read_file", "secret.txt"), ("write_file", ".tmp"), ("edit_file", "secret.txt"), ("list_files", "deep")],
)
async def test_a_directory_moved_out_while_something_in_it_is_opened_is_outside(
    desk: Desk, tree: Path, monkeypatch: pytest.MonkeyPatch, name: str, opened_last: str
) -> None:
    tool, payload = next(pair for pair in TOOLS if pair[0].name == name)
    if name == "list_files":  # which first looks what is there, and goes the same way again to list it
        monkeypatch.setattr(workspace.WorkspacePath, "get_kind", lambda self: "folder")
    swap = Swap(monkeypatch, when=lambda path: path.endswith(opened_last))
    swap.do(lambda: (desk.work / "sub").rename(desk.outside / "sub"))
    failure = await desk.failure(tool, **payload(target(tool, tree)))
    assert swap.happened
    assert failure.code == "permission_denied"
    assert everything_in(desk.outside / "sub") == {"deep": None, "deep/secret.txt": b"one"}


async def test_a_file_written_through_a_link_that_came_too_late_leaves_nothing_outside(
    desk: Desk, way: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = Swap(monkeypatch, when=lambda path: path.endswith(".tmp"))
    before = everything_in(desk.outside)

    def put_a_link() -> None:
        (desk.work / "sub").rename(desk.work / "away")
        (desk.work / "sub").symlink_to(desk.outside)

    swap.do(put_a_link)
    await WriteFileTool().execute({"file_path": str(tree), "content": "written"}, desk.context)
    assert swap.happened
    assert everything_in(desk.outside) == before


async def test_a_pipe_put_in_the_place_of_a_file_does_not_hang_the_reader(
    desk: Desk, way: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = Swap(monkeypatch, when=lambda path: path.endswith("secret.txt"))

    def put_a_pipe() -> None:
        tree.unlink()
        os.mkfifo(tree)

    swap.do(put_a_pipe)
    failure = await desk.failure(ReadFileTool(), file_path=str(tree))
    assert swap.happened
    assert "only regular files" in failure.message
    assert count_open(desk) == 0


async def test_a_pipe_is_not_even_opened(desk: Desk, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening can already do something: wake whoever waits at the other end, rewind a tape."""
    os.mkfifo(desk.work / "pipe")
    swap = Swap(monkeypatch, when=lambda path: path.endswith("pipe"))
    await desk.failure(ReadFileTool(), file_path=str(desk.work / "pipe"))
    assert not swap.happened


@pytest.mark.parametrize("moment", ["before it is opened", "while it is read"])
async def test_a_directory_swapped_for_a_link_is_not_listed(
    desk: Desk, way: str, tree: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    tree.rename(tree.parent / "mine.txt")
    scandir = os.scandir
    moments: list[str] = []

    def put_a_link() -> None:
        if moments:
            return
        moments.append(moment)
        (desk.work / "sub").rename(desk.work / "away")
        (desk.work / "sub").symlink_to(desk.outside)

    def swapped_scandir(path: Any) -> Any:
        put_a_link()
        return scandir(path)

    def swapped_kind(place: workspace.WorkspacePath) -> str:
        put_a_link()
        return "folder"

    if moment == "while it is read":
        monkeypatch.setattr(os, "scandir", swapped_scandir)
    else:
        monkeypatch.setattr(workspace.WorkspacePath, "get_kind", swapped_kind)
    result = await ListFilesTool().execute({"directory": str(tree.parent)}, desk.context)
    assert moments == [moment]
    assert "secret.txt" not in result.for_model()
    if way.startswith("paths") or moment == "before it is opened":
        assert result.error is not None
        assert result.error.code == "permission_denied"
    else:
        assert result.output == str(tree.parent / "mine.txt"), "an open directory stays what it is"


@pytest.mark.proves("HC-D3")
@every_tool
async def test_a_directory_swapped_right_after_the_path_was_resolved_is_refused(
    desk: Desk, tool: Tool[..., Any], payload: Payload, way: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locate = workspace.resolve_argument
    before = everything_in(desk.outside)

    def locate_then_swap(argument: str, path: str, context: ToolContext) -> workspace.WorkspacePath:
        place = locate(argument, path, context)
        (desk.work / "sub").rename(desk.work / "away")
        (desk.work / "sub").symlink_to(desk.outside)
        return place

    monkeypatch.setattr(workspace, "resolve_argument", locate_then_swap)
    path = str(tree.parent / "new" / "a.txt") if tool.name == "write_file" else target(tool, tree)
    failure = await desk.failure(tool, **payload(path))
    assert failure.code == "permission_denied"
    assert everything_in(desk.outside) == before, "not even a directory was made"
