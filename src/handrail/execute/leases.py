"""The leases of running consequential calls: how long they are, and a thread that renews them."""

import asyncio
import threading
import time
from typing import Final

from handrail.core.log import log
from handrail.execute.ledger import Entry, Ledger
from handrail.execute.scheduler import CallRef

LEASE_TIMEOUT: Final = 15.0
"""Seconds without a renewal after which a process counts as dead."""
LEASE_GRACE: Final = 60.0
"""Seconds after its longest duration in which a call of a dead process may still take effect."""

_IDLE_ROUNDS: Final = 6
"""After so many rounds without a call, the thread ends."""


class LeaseKeeper:
    """Keeps the leases of this process's calls alive while the process lives.

    A thread renews them, so that neither a handler that blocks the event loop nor one that outlives its timeout looks
    like a process that died; and a process that did die is known as soon as its last lease is over.
    """

    def __init__(self, ledger: Ledger, *, lease_timeout: float, lease_grace: float) -> None:
        self._ledger = ledger
        self._is_in_memory = getattr(ledger, "in_memory", False)
        """The leases of such a ledger end with the process."""
        self._lease = lease_timeout
        self._grace = lease_grace
        self._interval = lease_timeout / 3
        self._entries: dict[CallRef, Entry] = {}
        self._renewed: dict[CallRef, float] = {}
        self._wake = threading.Condition()
        self._is_running = False

    def begin(self, now: float, max_duration: float) -> tuple[float, float]:
        """Until when a call that is claimed now could run, and until when its first lease lasts."""
        run_until = now + max_duration + self._grace
        return run_until, run_until if self._is_in_memory else min(run_until, now + self._lease)

    def hold(self, entry: Entry) -> None:
        """Renew the lease of a claimed call from now on."""
        ref = (entry.session_id, entry.call_id)
        with self._wake:
            self._entries[ref] = entry
            self._renewed[ref] = entry.lease_until
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="handrail-leases", daemon=True).start()

    def release(self, entry: Entry) -> None:
        """The call is settled, or must not be held any longer."""
        ref = (entry.session_id, entry.call_id)
        with self._wake:
            self._entries.pop(ref, None)
            self._renewed.pop(ref, None)

    def _run(self) -> None:
        # A loop of its own, with connections of its own: the ledger is asked to renew from this thread only.
        with asyncio.Runner() as runner:
            idle = 0
            while True:
                with self._wake:
                    self._wake.wait(self._interval)
                    idle = 0 if self._entries else idle + 1
                    if idle > _IDLE_ROUNDS:
                        self._is_running = False
                        return
                    soon = time.time() + 2 * self._interval
                    due = [entry for ref, entry in self._entries.items() if self._renewed[ref] <= soon]
                if due:
                    self._renew(runner, due)

    def _renew(self, runner: asyncio.Runner, due: list[Entry]) -> None:
        until = time.time() + self._lease
        try:
            runner.run(asyncio.wait_for(self._ledger.renew(due, lease_until=until), self._interval))
        except Exception:  # The database is away: the next round tries again.
            log.warning("the leases of %d calls could not be renewed", len(due), exc_info=True)
            return
        with self._wake:
            for entry in due:
                ref = (entry.session_id, entry.call_id)
                if ref in self._renewed:
                    self._renewed[ref] = until
