"""`edit_file`: replaces a text in a file; the rest of the file stays unchanged."""

import os
import re
from collections import Counter
from typing import Annotated, Any, Final

import pydantic

from handrail.builtins import workspace
from handrail.builtins.workspace import BOM, build_not_text_error, check_positive, encode_text
from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.define.function import tool
from handrail.errors import ToolError

# The lookbehind keeps a long run of CR from being tried again from each of its bytes.
_NEWLINE: Final = re.compile(rb"(?<!\r)\r*+\n")
"""LF, CRLF, or CR CR LF, which a wrong conversion produces."""
_MAX_NAMED_LINES: Final = 10
"""The most line numbers that the output lists."""


def EditFileTool(*, max_bytes: int = 10_000_000) -> Tool[..., str]:
    """The tool `edit_file`; `max_bytes` is how large a file may be, before and after."""
    check_positive("edit_file", max_bytes=max_bytes)

    @tool(name="edit_file", repeatable=True, permission_check=workspace.build_permission_check("file_path"))
    def edit_file(
        file_path: workspace.AbsolutePath,
        old_text: Annotated[str, pydantic.Field(min_length=1)],
        new_text: str,
        context: ToolContext[Any],
        replace_all: bool = False,
    ) -> str:
        """Replace a text in a file inside the working directory; the rest of the file stays as it is.

        A newline in either text stands for the newlines of the file, LF or CRLF.

        Args:
            file_path: Absolute path of the file to change.
            old_text: The text to replace, exactly as it is in the file, without the line numbers of read_file. It must
                occur once; take in neighbouring lines to make it so.
            new_text: The text to put in its place.
            replace_all: Replace the text wherever it occurs.
        """
        target = workspace.resolve_argument("file_path", file_path, context)
        old, new = (
            _normalize_newlines(encode_text(old_text, argument="old_text")),
            _normalize_newlines(encode_text(new_text, argument="new_text")),
        )
        if old == new:
            raise ToolError("`old_text` and `new_text` are the same, so there is nothing to change.")
        path = target.display_path
        with target.translate_errors(), target.open() as file:
            before = os.fstat(file.fileno())
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise ToolError(f"`{path}` is larger than {max_bytes} bytes, the most that can be edited.")
        if b"\0" in data:
            raise build_not_text_error(path, data)
        mark = BOM if data.startswith(BOM) else b""
        text = data.removeprefix(mark)
        count = _count_occurrences(_normalize_newlines(text), old, replace_all=replace_all, path=path)
        if len(data) + count * (len(new) - len(old)) > max_bytes:
            raise ToolError(f"`{path}` would grow beyond {max_bytes} bytes, the most that can be edited.")
        target.replace(mark + _replace_text(text, old, new), expected=before)
        lines = _list_line_numbers(_normalize_newlines(text), old, count)
        return f"Replaced {count} occurrence{'s' * (count > 1)} in `{path}`, on line {lines}."

    return edit_file


def _normalize_newlines(text: bytes) -> bytes:
    """The text with LF for every newline, which is what a model sees and writes."""
    return _NEWLINE.sub(b"\n", text)


def _count_occurrences(text: bytes, old: bytes, *, replace_all: bool, path: str) -> int:
    """Count the old text; raises `ToolError` if it does not occur, or occurs more than once without `replace_all`."""
    count = text.count(old)
    if not count:
        raise ToolError(
            f"`old_text` does not occur in `{path}`. It must be exactly what the file has, spaces and all, without the "
            "line numbers of read_file."
        )
    # Two occurrences that overlap count as one for count(), and still leave open which one is meant.
    overlaps = count == 1 and text.find(old, text.find(old) + 1) >= 0
    if not replace_all and (count > 1 or overlaps):
        raise ToolError(
            f"`old_text` occurs {'2 times, overlapping,' if overlaps else f'{count} times'} in `{path}`, on line "
            f"{_list_line_numbers(text, old, count)}. Include neighbouring lines to select one, or set replace_all."
        )
    return count


def _list_line_numbers(text: bytes, old: bytes, count: int) -> str:
    """The numbers of the lines on which the old text begins."""
    numbers: list[str] = []
    line, at = 1, 0
    while len(numbers) < min(count, _MAX_NAMED_LINES):
        found = text.find(old, at)
        line += text.count(b"\n", at, found)
        numbers.append(str(line))
        line += old.count(b"\n")
        at = found + len(old)
    return ", ".join(numbers) + (f" and {count - _MAX_NAMED_LINES} more" if count > _MAX_NAMED_LINES else "")


def _replace_text(text: bytes, old: bytes, new: bytes) -> bytes:
    """Replace `old` with `new`; newlines outside of the replaced text stay unchanged.

    A new newline is like the first one that it replaces, or like most of the file.
    """
    newlines: list[bytes] = _NEWLINE.findall(text)
    most = Counter(newlines or [b"\n"]).most_common(1)[0][0]
    done = 0
    parts: list[bytes] = []
    for index, kept in enumerate(_normalize_newlines(text).split(old)):
        if index:
            replaced = newlines[done : done + old.count(b"\n")]
            parts.append(new.replace(b"\n", replaced[0] if replaced else most))
            done += len(replaced)
        first, *rest = kept.split(b"\n")
        parts.append(first)
        for line in rest:
            parts += newlines[done], line
            done += 1
    return b"".join(parts)
