"""Tools that are not registered: another framework's, or the user's own dispatch."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.define.build import build_tool


def adopted(
    name: str, run: Callable[[ToolContext[Any]], Any], *, known: Tool[..., Any] | None = None
) -> Tool[..., Any]:
    """A tool around somebody else's handler, whose arguments are validated there.

    A registered tool of this name says what it is (read-only, its key, its timeout); otherwise it is taken for the
    worst.
    """

    async def handler(arguments: Any, context: ToolContext[Any]) -> Any:
        result = run(context)
        return await result if inspect.isawaitable(result) else result

    bare = build_tool({"name": name, "input_schema": {}, "execute": handler})
    if known is None:
        return bare
    return replace(
        known, handler=handler, parse=bare.parse, dump=bare.dump, is_async=True, input_schema={**known.input_schema}
    )
