"""The bank of `handrail demo`: a file with one line for each payment, which survives whoever is killed."""

import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from handrail.cli.processes import fork


class Bank:
    """Books payments. `after_booking` is called when one is booked, before the caller learns about it."""

    def __init__(self, directory: Path, *, after_booking: Callable[[], object] | None = None) -> None:
        self._path = directory / "payments"
        self._after_booking = after_booking

    def pay(self, invoice_id: str, amount: int) -> str:
        """Book a payment. Like many real ones, this bank does not know that it has booked it before."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{invoice_id} {amount}\n")
            file.flush()
            os.fsync(file.fileno())
        if self._after_booking is not None:
            self._after_booking()
        return f"Paid {amount} EUR."

    def find(self, invoice_id: str) -> int | None:
        """The amount that was paid for an invoice; None if nothing was paid."""
        return next((amount for paid, amount in self._list_payments() if paid == invoice_id), None)

    def list_amounts(self) -> list[int]:
        """The amount of each payment that was booked."""
        return [amount for _, amount in self._list_payments()]

    def _list_payments(self) -> list[tuple[str, int]]:
        lines = self._path.read_text("utf-8").splitlines() if self._path.exists() else []
        return [(invoice_id, int(amount)) for invoice_id, _, amount in (line.partition(" ") for line in lines)]


@contextmanager
def serve_bank(bank: Bank) -> Generator[Callable[[str, int], str]]:
    """Start a bank in a process of its own, and yield a function that asks it to pay over a socket."""
    ours, theirs = socket.socketpair()
    with ours:
        process, reading = fork(lambda: _answer(bank, ours, theirs))
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
