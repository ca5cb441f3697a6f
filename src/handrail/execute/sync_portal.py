"""Runs coroutines for callers that have no event loop: one loop in one thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from handrail.errors import ConfigError
from handrail.execute.threads import OWNER

T = TypeVar("T")


class SyncPortal:
    """Runs coroutines for synchronous callers. Its loop lives as long as the process."""

    def __init__(self, *, current_loop: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._current_loop = current_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return what it returns."""
        if _has_running_loop():
            coroutine.close()
            raise ConfigError("This would block a running event loop: await the async form instead.")
        # A handler in a worker thread uses the loop of its call; any other thread uses the loop that already uses the
        # executor, because an executor serves one loop at a time.
        loop = OWNER.get() or self._current_loop()
        if loop is None or not loop.is_running():
            loop = self._start_loop()
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        finally:
            future.cancel()  # Only has an effect if the caller was interrupted.

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="handrail-portal", daemon=True).start()
            return self._loop


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
