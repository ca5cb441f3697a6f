"""Tests in time that jumps: what waits for an hour takes no time, and nothing depends on how busy the machine is."""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec
from unittest.mock import patch

from handrail.testing.phone import run_warped

P = ParamSpec("P")


def warped(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in a loop whose clock moves to the next timer when nothing is ready; the clocks of `time` go along.

    For tests within one process, whose fixtures are not asynchronous.
    """

    async def run(*arguments: P.args, **options: P.kwargs) -> None:
        loop = asyncio.get_running_loop()
        offset = time.time() - loop.time()
        with patch.object(time, "time", lambda: loop.time() + offset), patch.object(time, "monotonic", loop.time):
            await test(*arguments, **options)

    @functools.wraps(test)
    def play(*arguments: P.args, **options: P.kwargs) -> None:
        run_warped(run(*arguments, **options))

    return play
