"""Outputs of bounded length: cut at a sensible place, with a notice, and readable further on."""

import secrets
from collections import OrderedDict
from typing import Any

from handrail.core.context import ToolContext
from handrail.core.text import compact_json
from handrail.core.tool import Tool
from handrail.define.function import tool
from handrail.errors import ToolError

PAGE = 20_000


class Outputs:
    """The outputs of this process that were too long, so that a model can read on."""

    def __init__(self, *, most: int = 256, most_characters: int = 50_000_000) -> None:
        self._most = most
        self._most_characters = most_characters
        self._characters = 0
        self._texts: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self.offers_more = False
        """Whether the model has the `read_more` tool."""

    def limited(self, output: Any, *, most: int, session_id: str) -> Any:
        """The output, or its beginning with a notice. Raises `ValueError` for what cannot be written as JSON."""
        if type(output) is str:
            if len(output) <= most:
                return output
            text = output
        else:
            text = compact_json(output)
            if len(text) <= most:
                return output
        shown = text[: sensible_end(text, most)]
        notice = f"[Cut: {len(shown):,} of {len(text):,} characters are shown."
        if self.offers_more:
            handle = self._keep(text, session_id)
            notice += f" Call read_more with handle={handle!r} and offset={len(shown)} for the rest."
        return f"{shown}\n{notice}]"

    def _keep(self, text: str, session_id: str) -> str:
        handle = f"out_{secrets.token_urlsafe(9)}"
        kept = text[: self._most_characters]
        self._texts[handle] = (session_id, kept)
        self._characters += len(kept)
        while len(self._texts) > self._most or (self._characters > self._most_characters and len(self._texts) > 1):
            _, (_, forgotten) = self._texts.popitem(last=False)
            self._characters -= len(forgotten)
        return handle

    def read_more_tool(self) -> Tool[..., Any]:
        """The tool that reads on."""
        self.offers_more = True

        @tool(read_only=True, concurrency_safe=True, inline=True, max_output_chars=PAGE + 500)
        def read_more(handle: str, context: ToolContext, offset: int = 0, limit: int = PAGE) -> str:
            """Read on in the output of a tool that was cut.

            Args:
                handle: The handle that the notice named.
                offset: How many characters to pass over.
                limit: How many characters to read at most.
            """
            known = self._texts.get(handle)
            if known is None or known[0] != context.session_id:
                raise ToolError(f"There is no output under the handle {handle!r} any more.", code="unavailable")
            text = known[1]
            if offset < 0 or limit < 1:
                raise ToolError(
                    "offset is 0 or more, and limit is 1 or more.", code="invalid_arguments", retryable=True
                )
            piece = text[offset : offset + min(limit, PAGE)]
            left = len(text) - offset - len(piece)
            if left <= 0:
                return piece or f"[The output ends at {len(text)}.]"
            return f"{piece}\n[{left:,} more characters: offset={offset + len(piece)}]"

        return read_more


def sensible_end(text: str, most: int) -> int:
    """Where to cut: after a line, else after a word, if one ends in the last fifth; never inside a surrogate pair."""
    for mark in ("\n", " ", ","):
        end = text.rfind(mark, most - most // 5, most)
        if end > 0:
            return end + 1
    return most
