"""The leases of consequential calls: this process renews its own, and sees when those of another are given up."""

import asyncio
import math
import threading
import time
from typing import Final

from handrail.core.log import log
from handrail.execute.ledger import Entry, Ledger, begin_lease
from handrail.execute.scheduler import CallRef
from handrail.execute.stored_calls import Work

_IDLE_ROUNDS: Final = 6
"""After so many rounds without a call, the thread ends."""


_MAX_OBSERVED: Final = 10_000
"""Entries of other owners that are watched at once; above it, all are watched anew."""


_FAILURES: Final = (Exception, asyncio.CancelledError)
"""What a ledger can raise; a cancellation is one of its own, since nobody cancels a renewal."""


class LeaseKeeper:
    """Keeps the leases of this process's calls alive while the process lives.

    A thread renews them, so that neither a handler that blocks the event loop nor one that outlives its timeout looks
    like a process that died; and a process that did die is known as soon as its last lease is over.
    """

    def __init__(
        self, ledger: Ledger, *, lease_timeout: float, lease_grace: float, owner: str = "", work: Work | None = None
    ) -> None:
        self._ledger = ledger
        self._work = work
        self._owner = owner
        self._rows: set[CallRef] = set()
        """The stored calls that are this owner's."""
        self._needs_lease = ledger.needs_lease
        self._lease = lease_timeout
        self._grace = lease_grace
        self.interval = lease_timeout / 3
        """Seconds between two renewals."""
        self._entries: dict[CallRef, Entry] = {}
        self._renewed: dict[CallRef, float] = {}
        """Until when the leases last, by the monotonic clock."""
        self._observed: dict[CallRef, tuple[tuple[str, float], float]] = {}
        """Owner and lease of entries whose lease is over, and when they were first seen so, by the monotonic clock."""
        self._wake = threading.Condition()
        self._is_running = False

    def begin(self, now: float, max_duration: float) -> tuple[float, float]:
        """Until when a call that is claimed now could run, and until when its first lease lasts."""
        lease = self._lease if self._needs_lease else math.inf
        return begin_lease(now, max_duration, lease=lease, grace=self._grace)

    def hold(self, entry: Entry) -> None:
        """Renew the lease of a claimed call from now on."""
        ref = (entry.session_id, entry.call_id)
        with self._wake:
            self._entries[ref] = entry
            # The clock may jump: how long a lease lasts is measured by the monotonic clock.
            left = min(max(entry.lease_until - time.time(), 0.0), self._lease)
            self._renewed[ref] = time.monotonic() + left
            if entry.is_durable:
                self._rows.add(ref)
            self._start()

    def hold_row(self, ref: CallRef) -> None:
        """Renew the lease of a stored call that was taken, from now on; its entry comes later."""
        with self._wake:
            self._rows.add(ref)
            self._start()

    def release_row(self, ref: CallRef) -> None:
        """The stored call is not this owner's any more."""
        with self._wake:
            self._rows.discard(ref)

    def _start(self) -> None:
        if self._is_running:
            return
        try:
            threading.Thread(target=self._run, name="handrail-leases", daemon=True).start()
        except RuntimeError:  # The system has none left: the next call tries again.
            log.exception("leases are not renewed for now")
        else:
            self._is_running = True

    def is_abandoned(self, entry: Entry) -> bool:
        """Whether the owner of an entry has ended it, or is known to be gone: what it had begun may be taken over.

        A lease that is over by the clock counts only after it was seen unchanged for as long as a lease lasts, by the
        monotonic clock of this process: a clock that jumps shows a doubt, and runs nothing.
        """
        if entry.state == "unknown" or not self._needs_lease:
            return True
        return self.observe((entry.session_id, entry.call_id), entry.owner, entry.lease_until) >= self._lease

    def observe(self, ref: CallRef, owner: str, lease_until: float) -> float:
        """For how many seconds an entry has been seen with this owner and this lease."""
        now, seen = time.monotonic(), (owner, lease_until)
        if len(self._observed) > _MAX_OBSERVED:
            self._observed.clear()
        first = self._observed.get(ref)
        if first is None or first[0] != seen:
            self._observed[ref] = first = (seen, now)
        return now - first[1]

    def release(self, entry: Entry) -> None:
        """The call is settled, or must not be held any longer."""
        ref = (entry.session_id, entry.call_id)
        with self._wake:
            self._entries.pop(ref, None)
            self._renewed.pop(ref, None)
            if entry.is_durable:
                self._rows.discard(ref)

    def _run(self) -> None:
        # A loop of its own, with connections of its own: the ledger is asked to renew from this thread only.
        with asyncio.Runner() as runner:
            idle = 0
            while True:
                with self._wake:
                    self._wake.wait(self.interval)
                    idle = 0 if self._entries or self._rows else idle + 1
                    if idle > _IDLE_ROUNDS:
                        self._is_running = False
                        return
                    soon = time.monotonic() + 2 * self.interval
                    due = [entry for ref, entry in self._entries.items() if self._renewed[ref] <= soon]
                    rows = list(self._rows)
                if rows and self._work is not None:
                    self._renew_rows(runner, self._work, rows)
                if due:
                    self._renew(runner, due)
                elif idle == 1:
                    self._end_renewals(runner)

    def _end_renewals(self, runner: asyncio.Runner) -> None:
        try:
            runner.run(asyncio.wait_for(self._ledger.end_renewals(), self.interval))
        except _FAILURES:
            log.warning("the connection that renews leases could not be closed", exc_info=True)

    def _renew_rows(self, runner: asyncio.Runner, work: Work, rows: list[CallRef]) -> None:
        try:
            renewing = work.renew(rows, owner=self._owner, lease=self._lease)
            runner.run(asyncio.wait_for(renewing, self.interval))
        except _FAILURES:
            log.warning("the leases of %d stored calls could not be renewed", len(rows), exc_info=True)

    def _renew(self, runner: asyncio.Runner, due: list[Entry]) -> None:
        until = time.monotonic() + self._lease
        try:
            renewing = self._ledger.renew(due, lease_until=time.time() + self._lease)
            runner.run(asyncio.wait_for(renewing, self.interval))
        except _FAILURES:  # The database is away: the next round tries again.
            log.warning("the leases of %d calls could not be renewed", len(due), exc_info=True)
            return
        with self._wake:
            for entry in due:
                ref = (entry.session_id, entry.call_id)
                if ref in self._renewed:
                    self._renewed[ref] = until
