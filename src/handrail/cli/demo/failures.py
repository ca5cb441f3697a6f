"""The five failures of `handrail demo`, each without Handrail and with it. `handrail demo --explain N` shows one."""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolResult, tool
from handrail.cli.demo.store import use_file
from handrail.cli.processes import die, fork, run_processes, wait_for_both
from handrail.execute import Timeouts


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


CALL: Final = ToolCall(id="call_1", name="pay", arguments_json='{"invoice_id": "R-7", "amount": 90}')
"""What the model asks for in every failure."""
CONTEXT: Final = ToolContext(session_id="s-1", customer_id="c-1", turn=1)


# 1. The worker is killed after the bank has booked, and the queue delivers the call again.


def worker_dies_without(directory: Path) -> str:
    def worker(bank: Bank) -> str:
        return bank.pay(**json.loads(CALL.arguments_json))

    run_processes(lambda: worker(Bank(directory, after_booking=die)))
    [told] = run_processes(lambda: worker(Bank(directory)))
    return told


def worker_dies_with(directory: Path) -> ToolResult:
    def worker(bank: Bank) -> ToolResult:
        def find_payment(arguments: dict[str, Any], context: ToolContext) -> str | bool:
            paid = bank.find(arguments["invoice_id"])
            return False if paid is None else f"Paid {paid} EUR."

        @tool(key="invoice_id", verify=find_payment)
        def pay(invoice_id: str, amount: int) -> str:
            """Pay an invoice."""
            return bank.pay(invoice_id, amount)

        executor = Executor(
            [pay],
            policy=Policy([Rule.allow("pay")]),
            timeouts=Timeouts(lease=0.1),  # How long a worker that died is believed to be alive.
            **use_file(directory / "ledger"),
        )
        return asyncio.run(executor.run(CALL, CONTEXT))

    run_processes(lambda: worker(Bank(directory, after_booking=die)))
    [told] = run_processes(lambda: worker(Bank(directory)))
    return told


# 2. Between the approval and the run, the arguments change: 900 EUR, in the place of 90 EUR.

CHANGED: Final = ToolCall(id="call_1", name="pay", arguments_json='{"invoice_id": "R-7", "amount": 900}')


def arguments_change_without(directory: Path) -> str:
    conversation = directory / "conversation.json"
    conversation.write_text(json.dumps({"call_1": CALL.arguments_json}))
    approved = ["call_1"]  # A person has seen 90 EUR, and said yes to call_1.

    conversation.write_text(json.dumps({"call_1": CHANGED.arguments_json}))  # A defect, or somebody who may write it.
    stored = json.loads(conversation.read_text())
    return Bank(directory).pay(**json.loads(stored["call_1"])) if "call_1" in approved else "not approved"


def arguments_change_with(directory: Path) -> ToolResult:
    @tool(key="invoice_id")
    def pay(invoice_id: str, amount: int) -> str:
        """Pay an invoice."""
        return Bank(directory).pay(invoice_id, amount)

    async def run() -> ToolResult:
        executor = Executor([pay], policy=Policy([Rule.ask("pay", by="operator")]), **use_file(directory / "ledger"))
        question = (await executor.run(CALL, CONTEXT)).approval
        assert question is not None
        await executor.approvals.approve(question.token, by="operator", who="ann")
        return await executor.run(CHANGED, CONTEXT)

    [told] = run_processes(lambda: asyncio.run(run()))
    return told


# 3. The person has said yes once, and two processes resume the conversation.


def two_processes_without(directory: Path) -> str:
    approval = directory / "approval"
    approval.write_text("approved")

    def resume() -> str:
        if approval.read_text() != "approved":
            return "not approved"
        wait_for_both(directory)  # Both have read it: the moment that is rare in a test, and not in production.
        told = Bank(directory).pay(**json.loads(CALL.arguments_json))
        approval.write_text("used")
        return told

    return run_processes(resume, resume)[1]


def two_processes_with(directory: Path) -> ToolResult:
    @tool(key="invoice_id")
    def pay(invoice_id: str, amount: int) -> str:
        """Pay an invoice."""
        return Bank(directory).pay(invoice_id, amount)

    def open_executor() -> Executor:
        return Executor([pay], policy=Policy([Rule.ask("pay", by="operator")]), **use_file(directory / "ledger"))

    async def ask_and_approve() -> None:
        executor = open_executor()
        question = (await executor.run(CALL, CONTEXT)).approval
        assert question is not None
        await executor.approvals.approve(question.token, by="operator", who="ann")

    async def resume() -> ToolResult:
        executor = open_executor()
        wait_for_both(directory)
        return await executor.run(CALL, CONTEXT)

    run_processes(lambda: asyncio.run(ask_and_approve()))
    results = run_processes(lambda: asyncio.run(resume()), lambda: asyncio.run(resume()))
    return max(results, key=lambda result: result.origin != "run")  # Of the process that came second.


# 4. The model asks for the same payment again, under a new id.

REPEATED: Final = ToolCall(id="call_2", name="pay", arguments_json='{"amount": 90, "invoice_id": "R-7"}')


def model_repeats_without(directory: Path) -> str:
    told = ""
    for call in (CALL, REPEATED):
        told = Bank(directory).pay(**json.loads(call.arguments_json))
    return told


def model_repeats_with(directory: Path) -> ToolResult:
    @tool(key="invoice_id")
    def pay(invoice_id: str, amount: int) -> str:
        """Pay an invoice."""
        return Bank(directory).pay(invoice_id, amount)

    async def run() -> ToolResult:
        executor = Executor([pay], policy=Policy([Rule.allow("pay")]), **use_file(directory / "ledger"))
        results = [await executor.run(call, CONTEXT) for call in (CALL, REPEATED)]
        return results[-1]

    [told] = run_processes(lambda: asyncio.run(run()))
    return told


# 5. The bank books the payment and is killed before it answers; the model tries again.


def answer_is_lost_without(directory: Path) -> str:
    told, arguments = "", json.loads(CALL.arguments_json)
    for bank in (Bank(directory, after_booking=die), Bank(directory)):
        with serve_bank(bank) as pay:
            try:
                told = pay(arguments["invoice_id"], arguments["amount"])
            except ConnectionError as error:
                told = f"error: {error}"  # The model reads this, and tries again.
    return told


def answer_is_lost_with(directory: Path) -> ToolResult:
    async def run(bank: Bank, call: ToolCall) -> ToolResult:
        with serve_bank(bank) as ask_bank:

            @tool(key="invoice_id")
            def pay(invoice_id: str, amount: int) -> str:
                """Pay an invoice."""
                return ask_bank(invoice_id, amount)

            executor = Executor([pay], policy=Policy([Rule.allow("pay")]), **use_file(directory / "ledger"))
            return await executor.run(call, CONTEXT)

    run_processes(lambda: asyncio.run(run(Bank(directory, after_booking=die), CALL)))
    [told] = run_processes(lambda: asyncio.run(run(Bank(directory), REPEATED)))
    return told


class Demonstration(Struct, frozen=True, kw_only=True):
    """One of the five: what goes wrong, the two programs, and what they show.

    A program gets a directory of its own, and returns what the model is told in the end.
    """

    title: str
    without: Callable[[Path], str]
    guarded: Callable[[Path], ToolResult]
    payments: int = 1
    """How many payments of 90 EUR are right."""
    why: str
    """Why it goes wrong without Handrail."""
    shows: str
    """What the result shows with Handrail: its error code, or its origin."""
    means: str
    """What that means."""


FAILURES: Final = (
    Demonstration(
        title="A worker is killed after the bank has booked; its call is delivered again.",
        without=worker_dies_without,
        guarded=worker_dies_with,
        why="the new worker cannot know, and pays",
        shows="verified",
        means="the new worker asks the bank first",
    ),
    Demonstration(
        title="After the approval the arguments change, from 90 to 900 EUR.",
        without=arguments_change_without,
        guarded=arguments_change_with,
        payments=0,
        why="the approval is for an id",
        shows="approval_required",
        means="the approval is for 90 EUR",
    ),
    Demonstration(
        title="Two processes resume with one approval.",
        without=two_processes_without,
        guarded=two_processes_with,
        why="both find it approved",
        shows="replayed",
        means="one pays, the other gets its result",
    ),
    Demonstration(
        title="The model repeats its call, under a new id.",
        without=model_repeats_without,
        guarded=model_repeats_with,
        why="a new id is a new payment",
        shows="replayed",
        means="the same invoice is the same payment",
    ),
    Demonstration(
        title="The bank is killed after it has booked: its answer is lost, and the model tries again.",
        without=answer_is_lost_without,
        guarded=answer_is_lost_with,
        why="the model reads an error, and retries",
        shows="outcome_unknown",
        means="not run again, an operator is asked",
    ),
)
