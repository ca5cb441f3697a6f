"""The store of `handrail demo`: the ledger and the approvals in memory, kept in a file that all processes share.

The demo runs on the base install, without the extra `sql`. Your own program has a real one:
`Executor(tools, store="sqlite:///handrail.db")`.
"""

import os
import pickle
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar, cast

from filelock import FileLock

from handrail.authorize.approvals import MemoryApprovals
from handrail.execute.ledger import MemoryLedger

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


class _FileTransactions:
    """Read and write one file: of several processes and threads, one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread_lock = threading.RLock()
        self._process_lock = FileLock(f"{path}.lock", timeout=10, thread_local=False)
        self._depth = 0
        self.parts: list[object] = []
        """The objects whose attributes are kept in the file."""

    @contextmanager
    def begin(self) -> Generator[None]:
        """Read what other processes wrote, and write what is changed here: all of it, or nothing.

        A process that is killed inside leaves the file as it was, and the lock free.
        """
        with self._thread_lock, self._process_lock:
            self._depth += 1
            try:
                if self._depth == 1 and self._path.exists():
                    stored = pickle.loads(self._path.read_bytes())  # written by this demo, in its own directory
                    for part, attributes in zip(self.parts, stored, strict=True):
                        vars(part).update(attributes)
                yield
                if self._depth == 1:
                    new = self._path.with_suffix(".new")
                    new.write_bytes(pickle.dumps([_get_attributes(part) for part in self.parts]))
                    os.replace(new, self._path)
            finally:
                self._depth -= 1


def _get_attributes(part: object) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if name not in ("transactions", "events")}


def _in_transaction(method: F) -> F:
    """The same method of a ledger or of approvals in memory, in a transaction of the file."""

    async def run(self: "_FileLedger | _FileApprovals", *args: Any, **kwargs: Any) -> Any:
        with self.transactions.begin():
            return await method(self, *args, **kwargs)

    return cast(F, run)


class _FileLedger(MemoryLedger):
    is_immediate: ClassVar[bool] = False
    needs_lease: ClassVar[bool] = True
    is_written: ClassVar[bool] = True

    def __init__(self, transactions: _FileTransactions) -> None:
        super().__init__()
        self.transactions = transactions

    recall = _in_transaction(MemoryLedger.recall)
    claim = _in_transaction(MemoryLedger.claim)
    settle = _in_transaction(MemoryLedger.settle)
    take_over = _in_transaction(MemoryLedger.take_over)
    renew = _in_transaction(MemoryLedger.renew)
    find_doubts = _in_transaction(MemoryLedger.find_doubts)
    record_answer = _in_transaction(MemoryLedger.record_answer)
    resolve = _in_transaction(MemoryLedger.resolve)


class _FileApprovals(MemoryApprovals):
    is_immediate: ClassVar[bool] = False

    def __init__(self, transactions: _FileTransactions) -> None:
        super().__init__()
        self.transactions = transactions

    ask = _in_transaction(MemoryApprovals.ask)
    find = _in_transaction(MemoryApprovals.find)
    get = _in_transaction(MemoryApprovals.get)
    consume = _in_transaction(MemoryApprovals.consume)
    restore = _in_transaction(MemoryApprovals.restore)
    withdraw = _in_transaction(MemoryApprovals.withdraw)
    withdraw_pending = _in_transaction(MemoryApprovals.withdraw_pending)
    approve = _in_transaction(MemoryApprovals.approve)
    deny = _in_transaction(MemoryApprovals.deny)
    pending = _in_transaction(MemoryApprovals.pending)
    history = _in_transaction(MemoryApprovals.history)


class StoreOptions(TypedDict):
    """The options of an executor that say where it keeps its calls."""

    ledger: MemoryLedger
    approvals: MemoryApprovals


def use_file(path: Path) -> StoreOptions:
    """The ledger and the approvals of all processes that use this file."""
    transactions = _FileTransactions(path)
    ledger, approvals = _FileLedger(transactions), _FileApprovals(transactions)
    transactions.parts += (ledger, approvals)
    with transactions.begin():  # The first process decides about the key of all digests.
        return {"ledger": ledger, "approvals": approvals}
