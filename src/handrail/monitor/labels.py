"""Label values of metrics, limited in number."""

from typing import Final

from handrail.core.values import ToolCall, ToolResult
from handrail.errors import shorten

OTHER: Final = "other"
UNKNOWN: Final = "unknown"
"""The label of every tool that does not exist: a model can invent any number of names."""


class LabelLimit:
    """Returns the first `max_labels` names unchanged, and `other` for all further names."""

    __slots__ = ("_max_labels", "_names")

    def __init__(self, max_labels: int) -> None:
        self._max_labels = max_labels
        self._names: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """Return the label of a name."""
        label = self._names.get(name)
        if label is None:
            if len(self._names) >= self._max_labels:
                return OTHER
            label = self._names[name] = shorten(name, 100)
        return label


def find_tool_label(call: ToolCall, result: ToolResult) -> str:
    """Return the tool's name, or `unknown` if there is no such tool."""
    return UNKNOWN if result.error is not None and result.error.code == "tool_not_found" else call.name
