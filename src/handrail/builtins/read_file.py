"""`read_file`: lines of a text file, with their numbers."""

from io import BufferedReader
from typing import Annotated, Any, Final, NamedTuple

import pydantic

from handrail.builtins import workspace
from handrail.builtins.workspace import BOM, ToolOutput, build_not_text_error, check_positive
from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.define.function import tool
from handrail.errors import ToolError

_MAX_NAMED_LINES: Final = 20
"""The most line numbers that a notice lists."""


def ReadFileTool(
    *, max_bytes: int = 100_000, max_line_chars: int = 2_000, max_skipped_bytes: int = 2**30
) -> Tool[..., str]:
    """The tool `read_file`.

    The output has about `max_bytes`, each line at most `max_line_chars` characters. The lines before the first one
    are read and discarded, at most `max_skipped_bytes` of them.
    """
    check_positive("read_file", max_bytes=max_bytes, max_line_chars=max_line_chars, max_skipped_bytes=max_skipped_bytes)

    @tool(
        name="read_file",
        read_only=True,
        concurrency_safe=True,
        permission_check=workspace.build_permission_check("file_path"),
    )
    def read_file(
        file_path: workspace.AbsolutePath,
        context: ToolContext[Any],
        offset: Annotated[int, pydantic.Field(ge=1)] = 1,
        limit: Annotated[int, pydantic.Field(ge=1)] = 2_000,
    ) -> str:
        """Read lines of a text file (UTF-8) inside the working directory.

        Each line comes as its number, a tab and its text. Notices in brackets after the last line are not part of the
        file; they say what was left out and where to read on.

        Args:
            file_path: Absolute path of the file to read.
            offset: Number of the line to start at, counted from 1.
            limit: How many lines to read at most.
        """
        target = workspace.resolve_argument("file_path", file_path, context)
        with target.translate_errors(), target.open() as file:
            lines = _LineReader(file, path=target.display_path, max_chars=max_line_chars, max_skipped=max_skipped_bytes)
            return _read_excerpt(lines, offset=offset, limit=limit, output=ToolOutput(max_bytes=max_bytes))

    return read_file


def _read_excerpt(lines: "_LineReader", *, offset: int, limit: int, output: ToolOutput) -> str:
    if lines.empty:
        return "[The file is empty.]"
    passed = 0
    while passed < offset - 1 and lines.skip():
        passed += 1
    cut: list[int] = []
    replaced = is_truncated = False
    number = offset
    while number < offset + limit:
        line = lines.next()
        if line is None:
            break
        if not output.add_line(f"{number}\t{line.text}"):
            is_truncated = True
            break
        if line.cut:
            cut.append(number)
        replaced |= line.replaced
        number += 1
    else:
        is_truncated = lines.has_more()
    if not output:
        raise ToolError(f"`{lines.path}` has {passed} line{'s' * (passed != 1)}, so there is no line {offset}.")
    if cut:
        output.add_notice(f"Cut after {lines.max_chars} characters: line {_format_numbers(cut)}.")
    if replaced:
        output.add_notice("Bytes that are not UTF-8 are shown as �.")
    if is_truncated:
        output.add_notice(f"The file goes on after line {number - 1}. Read on with offset={number}.")
    return output.render()


def _format_numbers(numbers: list[int]) -> str:
    named = ", ".join(map(str, numbers[:_MAX_NAMED_LINES]))
    return f"{named} and {len(numbers) - _MAX_NAMED_LINES} more" if len(numbers) > _MAX_NAMED_LINES else named


class _Line(NamedTuple):
    text: str
    cut: bool
    replaced: bool
    """Whether some of its bytes are not UTF-8."""


class _LineReader:
    """The lines of an open file, one after the other; a line ends with LF or CRLF and nothing else."""

    def __init__(self, file: BufferedReader, *, path: str, max_chars: int, max_skipped: int) -> None:
        self.path = path
        self.max_chars = max_chars
        self._file = file
        self._window = 4 * max_chars + 2  # no more bytes are needed to see that a line is too long
        self._may_skip = max_skipped
        self._inside_line = False
        head = file.peek(workspace.CHUNK)
        if b"\0" in head:
            raise build_not_text_error(path, head)
        if head.startswith(BOM):
            file.read(len(BOM))
        self.empty = not file.peek(1)

    def next(self) -> _Line | None:
        """The next line, or None after the last one."""
        if self._inside_line:
            self.skip()
        raw = self._file.readline(self._window)
        if not raw:
            return None
        if b"\0" in raw:
            raise build_not_text_error(self.path, raw)
        self._inside_line = len(raw) == self._window and not raw.endswith(b"\n")
        body = raw.removesuffix(b"\n").removesuffix(b"\r") if raw.endswith(b"\n") else raw
        whole = body.decode("utf-8", "replace")
        text = whole[: self.max_chars]
        # A character that the window cut in half is past max_chars, so it does not count as damage.
        replaced = "�" in text and not body.startswith(text.encode())
        return _Line(text, len(whole) > self.max_chars, replaced)

    def skip(self) -> bool:
        """Skip a line, or the rest of one; False at the end of the file."""
        skipped = False
        while part := self._file.readline(workspace.CHUNK):
            skipped = True
            self._may_skip -= len(part)
            if self._may_skip < 0:
                raise ToolError(
                    f"`{self.path}` is too large to get to this line; search_text finds lines by their text."
                )
            if part.endswith(b"\n"):
                break
        self._inside_line = False
        return skipped

    def has_more(self) -> bool:
        """Whether there is more; True after a line that was cut, whose end is not known."""
        return self._inside_line or bool(self._file.peek(1))
