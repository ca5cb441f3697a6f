"""A lock file between processes, which the operating system releases when the process ends."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@contextmanager
def hold_lock(path: Path, *, on_wait: Callable[[], object] | None = None) -> Generator[None]:
    """Hold the lock; `on_wait` is called once if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        has_reported = False
        while not _try_lock(file.fileno()):
            if on_wait is not None and not has_reported:
                on_wait()
            has_reported = True
            time.sleep(0.2)  # Polled: a blocking wait cannot be interrupted, and downloads take seconds to minutes.
        try:
            yield
        finally:
            _release(file.fileno())


if sys.platform == "win32":

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _release(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _release(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
