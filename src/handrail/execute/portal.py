"""The sync edge: one loop in one thread, for callers who have none."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from handrail.errors import ConfigError

T = TypeVar("T")


class Portal:
    """Runs coroutines for callers that are not async. Its loop lives as long as the process."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return what it returns."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(coroutine, self._started()).result()
        coroutine.close()
        raise ConfigError("This would block a running event loop: await the async form instead.")

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="handrail-portal", daemon=True).start()
            return self._loop
