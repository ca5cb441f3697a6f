"""Tools that are not registered: another framework's, or the user's own dispatch."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.define.build import build_tool
from handrail.errors import ToolDefinitionError
from handrail.execute.desk import Desk
from handrail.execute.threads import Threads

Run = Callable[[ToolContext[Any]], Any]

_KEPT = 1_000
"""How many names are remembered: a model can make up any number of them."""


class Adopted:
    """Makes tools around handlers of somebody else, whose arguments are validated there.

    A registered tool of the same name says what it is (read-only, its key, its timeout); otherwise it is taken for the
    worst.
    """

    def __init__(self, *, desk_of: Callable[[Tool[..., Any]], Desk], threads: Threads) -> None:
        self._desk_of = desk_of
        self._threads = threads
        self._desks: dict[str, Desk] = {}

    def desk(self, name: str, run: Run, *, known: Desk | None = None, blocks: bool = False) -> Desk | None:
        """A desk for one call; None if the name is no name of a tool."""

        async def handler(arguments: Any, context: ToolContext[Any]) -> Any:
            result = await self._threads.run(lambda: run(context)) if blocks else run(context)
            return await result if inspect.isawaitable(result) else result

        model = self._desks.get(name) or self._modelled(name, known)
        if model is None:
            return None
        return model.for_handler(replace(model.tool, handler=handler))

    def _modelled(self, name: str, known: Desk | None) -> Desk | None:
        async def stands_for_it(arguments: Any, context: ToolContext[Any]) -> None: ...

        try:
            bare = build_tool({"name": name, "input_schema": {}, "execute": stands_for_it})
        except ToolDefinitionError:
            return None
        if known is not None:
            bare = replace(
                known.tool, function=stands_for_it, parse=bare.parse, dump=bare.dump, is_async=True, takes_context=True
            )
        desk = self._desk_of(bare)
        if len(self._desks) < _KEPT:
            self._desks[name] = desk
        return desk
