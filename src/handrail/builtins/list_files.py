"""`list_files`: the files and directories that match a pattern."""

from typing import Annotated, Any

import pydantic

from handrail.builtins import workspace
from handrail.builtins.glob import DirectoryWalk, WalkEntry, parse_glob
from handrail.builtins.workspace import ToolOutput, check_positive, format_path
from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.define.function import tool
from handrail.errors import PermissionDeniedError, ToolError, shorten


def ListFilesTool(*, max_bytes: int = 100_000, max_entries: int = 100_000) -> Tool[..., str]:
    """The tool `list_files`.

    The output has about `max_bytes`; `max_entries` limits how many names are looked at. Paths are absolute, so that
    each can be passed to another tool unchanged.
    """
    check_positive("list_files", max_bytes=max_bytes, max_entries=max_entries)

    @tool(
        name="list_files",
        read_only=True,
        concurrency_safe=True,
        permission_check=workspace.build_permission_check("directory"),
    )
    def list_files(
        context: ToolContext[Any],
        directory: workspace.AbsolutePath | None = None,
        pattern: str = "*",
        limit: Annotated[int, pydantic.Field(ge=1)] = 500,
    ) -> str:
        """List files and directories inside the working directory, as sorted absolute paths; a directory ends with "/".

        Links to directories are listed but not entered; links that lead outside the working directory are left out.

        Args:
            directory: Absolute path of the directory to look in; the working directory if left out.
            pattern: Glob relative to the directory: "*" lists the directory itself, "**/*.py" looks in all below it,
                "{a,b}" means either. Names that begin with a dot only match where the pattern has the dot.
            limit: How many paths to list at most.
        """
        target = workspace.resolve_argument("directory", directory, context)
        if target.get_kind() != "folder":
            raise ToolError(f"`{target.display_path}` is not a directory. read_file reads a file.")
        walk = DirectoryWalk(target, parse_glob(pattern, argument="pattern"), max_entries=max_entries)
        output = ToolOutput(max_bytes=max_bytes)
        for found in walk:
            line = _line(found, context)
            if line is None:
                continue
            if len(output) == limit or not output.add_line(line):
                output.add_notice(f"There are more than these {len(output)}. Narrow the pattern or the directory.")
                break
        if not output:
            output.add_notice(f"Nothing in `{target.display_path}` matches `{shorten(pattern)}`.")
        walk.add_notices(output)
        return output.render()

    return list_files


def _line(found: WalkEntry, context: ToolContext[Any]) -> str | None:
    target, kind = found
    if kind == "link":
        try:
            kind = workspace.resolve_path(target.path, context).get_kind()
        except PermissionDeniedError:
            return None
        except ToolError:  # it leads to nothing, but inside the working directory: a name that can be written to
            kind = "file"
    return format_path(target.path) + ("/" if kind == "folder" else "")
