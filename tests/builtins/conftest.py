"""A working directory, and beside it things that no tool may touch."""

import contextlib
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from handrail import Failure, Tool, ToolContext
from handrail.builtins import EditFileTool, ListFilesTool, ReadFileTool, SearchTextTool, WriteFileTool, workspace

SECRET = "the secret of somebody else"


@dataclass(frozen=True, kw_only=True)
class Desk:
    """One session with a working directory, `work`; `outside` and the `twin` of its name are not its business."""

    work: Path
    outside: Path
    twin: Path
    context: ToolContext

    async def answer(self, tool: Tool[..., Any], **payload: Any) -> str:
        """What the model reads when all goes well."""
        await tool.check_permissions(payload, self.context)
        result = await tool.execute(payload, self.context)
        assert result.error is None, result.error
        assert isinstance(result.output, str)
        return result.output

    async def failure(self, tool: Tool[..., Any], **payload: Any) -> Failure:
        """What the model reads when it does not."""
        result = await tool.execute(payload, self.context)
        assert result.error is not None, result.output
        return result.error


def set_up(parent: Path) -> Desk:
    work, outside, twin = parent / "work", parent / "outside", parent / "work-evil"
    for folder in (work, outside, twin):
        folder.mkdir()
    for folder in (outside, twin):
        (folder / "secret.txt").write_text(SECRET)
    return Desk(
        work=work, outside=outside, twin=twin, context=ToolContext(session_id="s-1", working_directory=str(work))
    )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return set_up(tmp_path)


@pytest.fixture(scope="module")
def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> Generator[Desk]:
    """One desk for all the examples of a property, which do not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield set_up(tmp_path_factory.mktemp("desk"))


@pytest.fixture(params=["descriptors", "descriptors without /proc", "paths", "paths without /proc"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the ways in which platforms let us reach a file."""
    monkeypatch.setattr(workspace, "_HAS_DIR_FD", request.param.startswith("descriptors"))
    if request.param.endswith("without /proc"):
        readlink = os.readlink

        def without_proc(path: Any, **options: Any) -> Any:
            if str(path).startswith("/proc/self/fd"):
                raise FileNotFoundError(path)
            return readlink(path, **options)

        monkeypatch.setattr(os, "readlink", without_proc)
    return request.param


READLINK = os.readlink


def count_open(desk: Desk) -> int:
    """How many descriptors of this process lead to the desk; those of other tests come and go meanwhile."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed them is closed by now
            found += READLINK(f"/proc/self/fd/{fd}").startswith(str(desk.work.parent))
    return found


def everything_in(folder: Path) -> dict[str, bytes | None]:
    """All that is in a directory, to compare before and after."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


Payload = Callable[[str], dict[str, Any]]

TOOLS: list[tuple[Tool[..., Any], Payload]] = [
    (ReadFileTool(), lambda path: {"file_path": path}),
    (ListFilesTool(), lambda path: {"directory": path}),
    (SearchTextTool(), lambda path: {"pattern": "e", "path": path}),
    (WriteFileTool(), lambda path: {"file_path": path, "content": "written"}),
    (EditFileTool(), lambda path: {"file_path": path, "old_text": "e", "new_text": "x", "replace_all": True}),
]
every_tool = pytest.mark.parametrize(("tool", "payload"), TOOLS, ids=[tool.name for tool, _ in TOOLS])


class Swap:
    """Does something at the moment when a certain file is opened, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, when: Callable[[str], bool]) -> None:
        self.happened = False
        self._when = when
        self._open = os.open
        self._before: Callable[[], object] = lambda: None
        self._after: Callable[[], object] = lambda: None
        monkeypatch.setattr(os, "open", self)

    def do(self, before: Callable[[], object], after: Callable[[], object] = lambda: None) -> None:
        self._before, self._after = before, after

    def __call__(self, path: Any, *args: Any, **options: Any) -> int:
        if self.happened or not self._when(os.fspath(path)):
            return self._open(path, *args, **options)
        self.happened = True
        self._before()
        try:
            return self._open(path, *args, **options)
        finally:
            self._after()


@pytest.fixture
def tree(desk: Desk) -> Path:
    """A file, with a twin outside at the same steps from the top."""
    (desk.work / "sub" / "deep").mkdir(parents=True)
    (desk.work / "sub" / "deep" / "secret.txt").write_text("one")
    (desk.outside / "deep").mkdir()
    (desk.outside / "deep" / "secret.txt").write_text(SECRET)
    return desk.work / "sub" / "deep" / "secret.txt"


def target(tool: Tool[..., Any], file: Path) -> str:
    """What to give to a tool so that it comes to this file: the file, or the directory that it is in."""
    return str(file.parent if tool.name in ("list_files", "search_text") else file)
