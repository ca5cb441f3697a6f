"""The variables of a session: values that the judge knows, read again when they are no longer fresh."""

import asyncio
import inspect
import time
from collections.abc import Sequence
from typing import Any, Final

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.text import compact_json
from handrail.guide.definition import Variable

_TIMEOUT: Final = 10.0


class VariableReader:
    """Reads the variables of one session, and keeps each for as long as it is fresh."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, Any]] = {}

    async def read(self, variables: Sequence[Variable], context: ToolContext[Any]) -> dict[str, Any]:
        """The values by name; a variable that cannot be read is left out, and logged."""
        found: dict[str, Any] = {}
        for one in variables:
            if one.read is None:
                found[one.name] = one.value
                continue
            until, value = self._kept.get(one.name, (0.0, None))
            if time.monotonic() >= until:
                try:
                    value = await _read(one, context)
                except Exception as error:  # the developer's code; the turn goes on without the value
                    log.error("the variable %s could not be read", one.name, exc_info=error)
                    continue
                self._kept[one.name] = (time.monotonic() + one.fresh_for, value)
            found[one.name] = value
        return found


async def _read(variable: Variable, context: ToolContext[Any]) -> Any:
    assert variable.read is not None
    async with asyncio.timeout(_TIMEOUT):
        value: Any = variable.read(context)
        if inspect.isawaitable(value):
            value = await value
    compact_json(value)  # It has to be JSON, as a judge will read it.
    return value
