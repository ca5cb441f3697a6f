"""Names as labels of metrics: a bounded number of them, whoever chooses the names."""

from typing import Final

from handrail.core.values import ToolCall, ToolResult
from handrail.errors import shorten

OTHER: Final = "other"
UNKNOWN: Final = "unknown"
"""The label of every tool that does not exist: its name is a model's invention."""


class Labels:
    """Lets the first names through as they are; those that come when it is full are all called `other`."""

    __slots__ = ("_most", "_names")

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """The label of a name."""
        label = self._names.get(name)
        if label is None:
            if len(self._names) >= self._most:
                return OTHER
            label = self._names[name] = shorten(name, 100)
        return label


def tool_of(call: ToolCall, result: ToolResult) -> str:
    """The name that stands for a call's tool."""
    return UNKNOWN if result.error is not None and result.error.code == "tool_not_found" else call.name
