"""The sync edge: one loop in one thread, for callers who have none."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from handrail.errors import ConfigError
from handrail.execute.threads import OWNER

T = TypeVar("T")


class Portal:
    """Runs coroutines for callers that are not async. Its loop lives as long as the process."""

    def __init__(self, *, used_by: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._used_by = used_by
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return what it returns."""
        if _in_a_loop():
            coroutine.close()
            raise ConfigError("This would block a running event loop: await the async form instead.")
        # A handler in a worker thread goes back to the loop that it came from; any other thread, to the loop that uses
        # the executor already: it serves one at a time.
        loop = OWNER.get() or self._used_by()
        if loop is None or not loop.is_running():
            loop = self._started()
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        finally:
            future.cancel()  # If the caller was interrupted; what is done is done.

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="handrail-portal", daemon=True).start()
            return self._loop


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
