"""Threads for what takes seconds of the processor: the event loop goes on meanwhile, and so do other owners."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

P = ParamSpec("P")
T = TypeVar("T")


class FairThreads:
    """Runs functions in threads of its own, of each owner one at a time: what one asks for keeps no other waiting."""

    def __init__(self, name: str, *, max_workers: int = 4) -> None:
        self._threads = ThreadPoolExecutor(max_workers=max_workers, thread_name_prefix=f"handrail-{name}")
        self._turns: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock] = WeakValueDictionary()
        """A lock belongs to one event loop."""

    async def run(self, owner: str, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a function. It goes on if its caller is cancelled, and the next one of the owner waits for its end."""
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault((loop, owner), asyncio.Lock())
        await turn.acquire()
        try:
            running = loop.run_in_executor(self._threads, partial(function, *args, **options))
        except BaseException:
            turn.release()
            raise
        running.add_done_callback(lambda _: turn.release())
        return await asyncio.shield(running)
