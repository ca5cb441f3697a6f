"""`write_file`: writes a file atomically."""

from typing import Any

from handrail.builtins import workspace
from handrail.builtins.workspace import check_positive, encode_text
from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.define.function import tool
from handrail.errors import ToolError


def WriteFileTool(*, max_bytes: int = 10_000_000) -> Tool[..., str]:
    """The tool `write_file`; `max_bytes` is how large a file may become."""
    check_positive("write_file", max_bytes=max_bytes)

    @tool(
        name="write_file",
        idempotent=True,
        repeatable=True,
        permission_check=workspace.build_permission_check("file_path"),
    )
    def write_file(file_path: workspace.AbsolutePath, content: str, context: ToolContext[Any]) -> str:
        """Write a text file (UTF-8) inside the working directory; a file that is there already is replaced as a whole.

        Directories that are missing on the way are made.

        Args:
            file_path: Absolute path of the file to write.
            content: The whole text of the file, exactly as it shall be.
        """
        target = workspace.resolve_argument("file_path", file_path, context)
        data = encode_text(content, argument="content")
        if len(data) > max_bytes:
            raise ToolError(f"`content` has {len(data)} bytes; {max_bytes} are the most.")
        is_new = target.replace(data, create_folders=True)
        return f"{'Created' if is_new else 'Replaced'} `{target.display_path}`: {len(data)} bytes."

    return write_file
