"""Label values of metrics, limited in number, and the metrics that have them."""

import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from handrail.core.values import ToolCall, ToolResult
from handrail.errors import shorten

if TYPE_CHECKING:
    from prometheus_client.metrics import MetricWrapperBase

M = TypeVar("M", bound="MetricWrapperBase")

OTHER: Final = "other"
UNKNOWN: Final = "unknown"
"""The label of every tool that does not exist: a model can invent any number of names."""


class LabelLimit:
    """Returns the first `max_labels` names unchanged, and `other` for all further names."""

    __slots__ = ("_lock", "_max_labels", "_names")

    def __init__(self, max_labels: int) -> None:
        self._max_labels = max_labels
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str) -> str:
        """Return the label of a name."""
        label = self._names.get(name)
        if label is not None:
            return label
        with self._lock:
            if name not in self._names and len(self._names) >= self._max_labels:
                return OTHER
            # Half of a surrogate pair, which a model can write in JSON, would fail every later scrape.
            text = name.encode("utf-8", "replace").decode()
            return self._names.setdefault(name, shorten(text, 100))


class Children(Generic[M]):
    """The children of one metric by their labels, kept: `labels()` costs three times as much as an increment."""

    __slots__ = ("_children", "_metric")

    def __init__(self, metric: M) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], M] = {}

    def __call__(self, *labels: str) -> M:
        """Return the child with these labels."""
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._metric.labels(*labels)
        return child


def find_tool_label(call: ToolCall, result: ToolResult) -> str:
    """Return the tool's name, or `unknown` if there is no such tool."""
    return UNKNOWN if result.error is not None and result.error.code == "tool_not_found" else call.name
