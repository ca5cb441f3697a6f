"""Cuts long outputs at a sensible place, with a notice, and lets the model read the rest with `read_more`.

How long an output may be is the tool's `max_output_chars`, else the executor's; `MAX_OUTPUT_CHARS` is the default.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from handrail.core.context import ToolContext
from handrail.core.lazy_loading import LazyModule
from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.define.function import tool
from handrail.errors import ToolError, shorten

if TYPE_CHECKING:
    import secrets
else:
    secrets = LazyModule("secrets")

MAX_PAGE_CHARS = 20_000
"""What `read_more` returns at a time."""


class OutputLimiter:
    """Cuts outputs, and keeps those that were cut in memory."""

    def __init__(self, *, max_outputs: int = 256, max_chars: int = 50_000_000) -> None:
        self._max_outputs = max_outputs
        self._max_chars = max_chars
        self._chars = 0
        self._texts: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """The session and the text of each handle, the oldest first."""
        self._handles: dict[str, set[str]] = {}
        """The handles of each session; no session is empty."""

    def limit(self, output: Any, *, max_chars: int, session_id: str | None) -> tuple[Any, int]:
        """The output, or its beginning with a notice, and how many characters that is as text.

        Without a session, the model has no `read_more`, and the rest is not kept.
        Raises `ValueError` for what cannot be written as JSON.
        """
        text = output if type(output) is str else compact_json(output)
        if len(text) <= max_chars:
            return output, len(text)
        beginning = text[: find_cut(text, max_chars)]
        notice = f"[Cut: {len(beginning):,} of {len(text):,} characters are shown."
        if session_id is not None:
            handle = self._keep(text, session_id)
            notice += f" Call read_more with handle={handle!r} and offset={len(beginning)} for the rest."
        limited = f"{beginning}\n{notice}]"
        return limited, len(limited)

    def forget_session(self, session_id: str) -> None:
        """Forget the outputs of a session."""
        for handle in self._handles.pop(session_id, ()):
            self._chars -= len(self._texts.pop(handle)[1])

    def _keep(self, text: str, session_id: str) -> str:
        handle = f"out_{secrets.token_urlsafe(9)}"
        kept = text[: self._max_chars]
        self._texts[handle] = (session_id, kept)
        self._handles.setdefault(session_id, set()).add(handle)
        self._chars += len(kept)
        while len(self._texts) > self._max_outputs or self._chars > self._max_chars:
            oldest, (owner, forgotten) = self._texts.popitem(last=False)
            self._chars -= len(forgotten)
            self._handles[owner].discard(oldest)
            if not self._handles[owner]:
                del self._handles[owner]
        return handle

    def read_more_tool(self) -> Tool[..., Any]:
        """The tool that reads the rest of an output that was cut."""

        @tool(read_only=True, concurrency_safe=True, inline=True, max_output_chars=MAX_PAGE_CHARS + 500)
        def read_more(handle: str, context: ToolContext, offset: int = 0, limit: int = MAX_PAGE_CHARS) -> str:
            """Read on in the output of a tool that was cut.

            Args:
                handle: The handle that the notice named.
                offset: How many characters to pass over.
                limit: How many characters to read at most.
            """
            known = self._texts.get(handle)
            if known is None or known[0] != context.session_id:
                raise ToolError(
                    f"There is no output under the handle {shorten(handle)!r} any more.", code="unavailable"
                )
            text = known[1]
            if offset < 0 or limit < 1:
                raise ToolError(
                    "offset is 0 or more, and limit is 1 or more.", code="invalid_arguments", retryable=True
                )
            piece = text[offset : offset + min(limit, MAX_PAGE_CHARS)]
            left = len(text) - offset - len(piece)
            if left <= 0:
                return piece or f"[The output ends at {len(text)}.]"
            return f"{piece}\n[{left:,} more characters: offset={offset + len(piece)}]"

        return read_more


def find_cut(text: str, max_chars: int) -> int:
    """Where to cut: after a line, else after a word, if one ends in the last fifth."""
    for mark in ("\n", " ", ","):
        end = text.rfind(mark, max_chars - max_chars // 5, max_chars)
        if end > 0:
            return end + 1
    return max_chars
