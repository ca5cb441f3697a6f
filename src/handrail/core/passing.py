"""What no catch-all may keep: a real cancellation, and an interrupt of the program."""

import asyncio


def must_pass(error: BaseException, *, before: int = 0) -> bool:
    """Whether an exception is not for us to turn into an answer.

    A cancellation is real if somebody asked for this task to be cancelled (more often than `before`), rather than the
    code that was called making it up.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > before
    return isinstance(error, KeyboardInterrupt)
