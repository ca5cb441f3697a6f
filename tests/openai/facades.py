"""Both modules of the facade, under one form."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any

from handrail.openai import aio, core


@dataclass(frozen=True, slots=True, kw_only=True)
class Facade:
    """One of the two modules, so that a test can be written once for both."""

    module: ModuleType
    is_async: bool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def handler(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """A plain function as a handler of this module."""
        if not self.is_async:
            return function

        @wraps(function)
        async def handle(instance: Any, context: Any) -> Any:
            return function(instance, context)

        return handle

    def wait(self, running: Any) -> Any:
        """What a call of this module comes to."""
        assert inspect.iscoroutine(running) is self.is_async
        return asyncio.run(running) if self.is_async else running


CORE = Facade(module=core, is_async=False)
AIO = Facade(module=aio, is_async=True)
