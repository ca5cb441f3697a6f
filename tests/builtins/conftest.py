"""A working directory, and beside it things that no tool may touch."""

import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from handrail import Failure, Tool, ToolContext
from handrail.builtins import inside

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
    monkeypatch.setattr(inside, "_BY_DESCRIPTOR", request.param.startswith("descriptors"))
    if request.param.endswith("without /proc"):
        readlink = os.readlink

        def without_proc(path: Any, **options: Any) -> Any:
            if str(path).startswith("/proc/self/fd"):
                raise FileNotFoundError(path)
            return readlink(path, **options)

        monkeypatch.setattr(os, "readlink", without_proc)
    return request.param


def everything_in(folder: Path) -> dict[str, bytes | None]:
    """All that is in a directory, to compare before and after."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
