"""Processes that are forked, killed and waited for with a deadline, for `handrail demo` and `handrail verify`."""

import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

_DEADLINE: Final = 60
"""Seconds after which the system ends a process that hangs."""
KILLED: Final = "killed"
"""What is returned for a process that was killed."""


def die() -> NoReturn:
    """`kill -9` this process: nothing is cleaned up, and nothing is said."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def run_processes(*functions: Callable[[], Any]) -> list[Any]:
    """Run each function in a process of its own, all at the same time; what they returned, or `KILLED`."""
    children = [fork(function) for function in functions]
    return [_wait(*child) for child in children]


def fork(function: Callable[[], Any]) -> tuple[int, int]:
    """Run a function in a process of its own: the id of the process, and the pipe with what it returned."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if (process := os.fork()) != 0:
        os.close(writing)
        return process, reading
    code = 1
    try:
        signal.alarm(_DEADLINE)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(function()))
        code = 0
    except KeyboardInterrupt:  # Ctrl-C is for the parent, too, which says what there is to say.
        pass
    except BaseException:  # noqa: BLE001  # A child never returns into its parent's program.
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(process: int, reading: int) -> Any:
    with os.fdopen(reading, "rb") as pipe:
        written = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code == -signal.SIGKILL:
        return KILLED
    if code:
        raise RuntimeError(f"a process ended with {code}")
    return pickle.loads(written)  # what the child wrote


def wait_for_both(directory: Path) -> None:
    """Wait until two processes have come this far, so that they go on at the same moment."""
    (directory / f"arrived-{os.getpid()}").touch()
    while len(list(directory.glob("arrived-*"))) < 2:
        time.sleep(0.001)
