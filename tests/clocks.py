"""The clock of an event loop, moved by a test: timeouts end when it says so, and files and sockets work as usual."""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch


@contextmanager
def stopped_clock() -> Generator[Any]:
    """The running loop's clock, which only moves when the test moves `now`: whoever waits is woken, or waits on."""
    loop = asyncio.get_running_loop()
    clock = SimpleNamespace(now=loop.time())
    with patch.object(loop, "time", lambda: clock.now):
        yield clock


async def eventually(is_so: Callable[[], object]) -> None:
    """Wait for what another thread or the database brings about; it works while the clock is stopped."""
    ends = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < ends
        await asyncio.to_thread(time.sleep, 0.002)
