"""The output of the file tools: lines up to a size with notices after them, and the checks of what counts as text."""

import json
from typing import Final

from handrail.errors import ToolDefinitionError, ToolError

BOM: Final = b"\xef\xbb\xbf"


class ToolOutput:
    """Lines for the model, followed by notices in brackets.

    A line begins with a number or an absolute path, a notice with a bracket, so that no text of a file can look like a
    notice.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._left = max_bytes
        self._lines: list[str] = []
        self._notices: list[str] = []

    def __len__(self) -> int:
        return len(self._lines)

    def add_line(self, line: str) -> bool:
        """Add a line; False if the output is full. The first line is always added, so that a call makes progress."""
        size = len(line.encode("utf-8", "replace")) + 1
        if size > self._left and self._lines:
            return False
        self._left -= size
        self._lines.append(line)
        return True

    def add_notice(self, sentence: str) -> None:
        """Add a notice."""
        self._notices.append(f"[{sentence}]")

    def render(self) -> str:
        """The lines and the notices as one text."""
        return "\n".join(self._lines + self._notices)


def format_path(path: str) -> str:
    """A path on one line: unchanged, or as a JSON string if it has characters that would break the line.

    Bytes that are not UTF-8 are shown as �; such a file cannot be named in JSON.
    """
    clean = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return clean if clean.isprintable() else json.dumps(clean)


def check_positive(tool_name: str, **settings: float) -> None:
    """Raise `ToolDefinitionError` unless every setting is a positive number."""
    for name, value in settings.items():
        if isinstance(value, bool) or not value > 0:
            raise ToolDefinitionError(f"`{tool_name}`: {name} must be a positive number, got {value!r}.")


def build_not_text_error(path: str, beginning: bytes) -> ToolError:
    """The error for a file with NUL bytes, which is not text."""
    if beginning.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ToolError(f"`{path}` is text in UTF-16; only UTF-8 can be used here.")
    return ToolError(f"`{path}` is a binary file (it has NUL bytes); only text can be used here.")


def encode_text(text: str, *, argument: str) -> bytes:
    """Encode text as UTF-8; raises `ToolError` for half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(
            f"`{argument}` has half of a surrogate pair at character {error.start}, which is no text; "
            "send the whole character."
        ) from error
