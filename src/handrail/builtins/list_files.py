"""`list_files`: what there is, by pattern."""

from typing import Annotated, Any

import pydantic

from handrail.builtins import inside
from handrail.builtins.answer import Answer, printable, require_positive
from handrail.builtins.glob import parse_glob
from handrail.builtins.walk import Found, Walk
from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.define.function import tool
from handrail.errors import PermissionDeniedError, ToolError, shorten


def ListFilesTool(*, max_bytes: int = 100_000, max_entries: int = 100_000) -> Tool[..., str]:
    """The tool `list_files`.

    An answer holds about `max_bytes`; `max_entries` is how many names are looked at before the tool gives up. Paths are
    absolute, so that each can be handed to another tool as it is.
    """
    require_positive("list_files", max_bytes=max_bytes, max_entries=max_entries)

    @tool(name="list_files", read_only=True, concurrency_safe=True, permission_check=inside.check("directory"))
    def list_files(
        context: ToolContext[Any],
        directory: str | None = None,
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
        place = inside.locate(directory, context)
        if place.kind() != "folder":
            raise ToolError(f"`{place.shown}` is not a directory. read_file reads a file.")
        walk = Walk(place, parse_glob(pattern, argument="pattern"), max_entries=max_entries)
        answer = Answer(max_bytes=max_bytes)
        for found in walk:
            line = _line(found, context)
            if line is None:
                continue
            if len(answer) == limit or not answer.add(line):
                answer.note(f"There are more than these {len(answer)}. Narrow the pattern or the directory.")
                break
        if not answer:
            answer.note(f"Nothing in `{place.shown}` matches `{shorten(pattern)}`.")
        walk.explain(answer)
        return answer.text()

    return list_files


def _line(found: Found, context: ToolContext[Any]) -> str | None:
    place, kind = found
    if kind == "link":
        try:
            kind = inside.locate(place.path, context).kind()
        except PermissionDeniedError:
            return None
        except ToolError:  # it leads to nothing, but inside: a name that can be written to
            kind = "file"
    return printable(place.path) + ("/" if kind == "folder" else "")
