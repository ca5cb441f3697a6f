"""Real processes for `handrail demo`: forked, killed, and waited for with a deadline."""

import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from handrail.cli.demo.bank import Bank

_DEADLINE: Final = 20
"""Seconds after which the system ends a process that hangs."""
KILLED: Final = "killed"
"""What is returned for a process that was killed."""


def die() -> NoReturn:
    """`kill -9` this process: nothing is cleaned up, and nothing is said."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def run_processes(*functions: Callable[[], Any]) -> list[Any]:
    """Run each function in a process of its own, all at the same time; what they returned, or `KILLED`."""
    children = [_fork(function) for function in functions]
    return [_wait(*child) for child in children]


def _fork(function: Callable[[], Any]) -> tuple[int, int]:
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
        raise RuntimeError(f"a process of the demo ended with {code}")
    return pickle.loads(written)  # what the child wrote


def wait_for_both(directory: Path) -> None:
    """Wait until two processes have come this far, so that they go on at the same moment."""
    (directory / f"arrived-{os.getpid()}").touch()
    while len(list(directory.glob("arrived-*"))) < 2:
        time.sleep(0.001)


@contextmanager
def serve_bank(bank: Bank) -> Generator[Callable[[str, int], str]]:
    """Start a bank in a process of its own, and yield a function that asks it to pay over a socket."""
    ours, theirs = socket.socketpair()
    with ours:
        process, reading = _fork(lambda: _answer(bank, ours, theirs))
        theirs.close()
        os.close(reading)

        def pay(invoice_id: str, amount: int) -> str:
            ours.sendall(f"{invoice_id} {amount}".encode())
            answer = ours.recv(100)
            if not answer:
                raise ConnectionError("the bank closed the connection without an answer")
            return answer.decode()

        try:
            yield pay
        finally:
            ours.close()
            os.waitpid(process, 0)


def _answer(bank: Bank, ours: socket.socket, theirs: socket.socket) -> None:
    """Answer until the other end is closed."""
    ours.close()
    while request := theirs.recv(100):
        invoice_id, amount = request.decode().split()
        theirs.sendall(bank.pay(invoice_id, int(amount)).encode())
