"""What a file tool answers: lines up to a size, and after them what the model should know about them."""

import json

from handrail.errors import ToolDefinitionError


class Answer:
    """Lines for the model, and notices in brackets.

    A line of an answer begins with a number or an absolute path, a notice with a bracket, so no text of a file can pass
    for a notice.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._left = max_bytes
        self._lines: list[str] = []
        self._notices: list[str] = []

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: str) -> bool:
        """Take a line, or say that there is no room for it. The first one always has room: every answer gets on."""
        size = len(line.encode("utf-8", "replace")) + 1
        if size > self._left and self._lines:
            return False
        self._left -= size
        self._lines.append(line)
        return True

    def note(self, sentence: str) -> None:
        """Say something about the lines."""
        self._notices.append(f"[{sentence}]")

    def text(self) -> str:
        """The whole answer."""
        return "\n".join(self._lines + self._notices)


def printable(path: str) -> str:
    """A path on one line: as it is, or as a JSON string if it has characters that would break the line.

    Bytes that are no UTF-8 are shown as �; such a file cannot be named in JSON.
    """
    clean = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return clean if clean.isprintable() else json.dumps(clean)


def require_positive(tool_name: str, **settings: float) -> None:
    """Refuse a setting that would make a tool useless."""
    for name, value in settings.items():
        if isinstance(value, bool) or not value > 0:
            raise ToolDefinitionError(f"`{tool_name}`: {name} must be a positive number, not {value!r}.")
