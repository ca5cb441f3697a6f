"""How a call ends: one transfer or one hang-up at a time, what speaks against a hang-up, and what may still finish."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from msgspec import Struct

from handrail.execute.executor import Executor
from handrail.phone import signals as s
from handrail.phone.call_limits import MachineOptions
from handrail.phone.signals import Command, Purpose
from handrail.tenants.texts import Texts

SETTLE_GRACE: Final = 5.0
"""Seconds in which consequential calls may finish once the phone call is over."""
_CLOSING_TIMEOUT = 2.0
"""Seconds that the tool which ends the call has to give its result."""


class _Transfer(Struct, kw_only=True):
    request: s.TransferRequested
    state: Literal["announcing", "requested", "unknown", "taken"] = "announcing"
    """`taken`: the provider agreed; the call leaves, or is still here after a while."""
    is_trying_told: bool = False


class CallEnding:
    """The transfer state machine of a call, and its hang-up.

    A transfer is announced, then requested once, and has happened when the call leaves. `unknown` is a request without
    an answer: if the call goes on, it did not happen.
    """

    def __init__(
        self,
        *,
        do: Callable[[Command], None],
        say: Callable[[Purpose, str], None],
        texts: Texts,
        options: MachineOptions,
    ) -> None:
        self._do = do
        self._say = say
        self._texts = texts
        self._options = options
        self.is_under_way = False
        """Whether the agent says nothing more than what ends the call."""
        self._transfer: _Transfer | None = None
        self.transfer_call: str | None = None
        """The tool call that transferred the phone call: its result comes after the end."""
        self._hang_up: s.HangUpRequested | None = None
        self.asked: s.HangUpRequested | None = None
        """A tool's request that waits for the end of a response: what is said decides about it."""
        self.doubt: str | None = None
        """What the caller says over the announcement, until it is known whether that stops the transfer."""
        self.is_closing = False
        """Whether the goodbye was heard, so that only the hang-up is left."""
        self._has_hung_up = False

    @property
    def is_announcing(self) -> bool:
        """Whether a transfer was asked for, and not requested of the provider yet."""
        return self._transfer is not None and self._transfer.state == "announcing"

    @property
    def closing_call(self) -> str | None:
        """The tool call that ends the phone call."""
        return self._hang_up.call_id if self._hang_up is not None else None

    def request_transfer(self, signal: s.TransferRequested, *, is_caller_speaking: bool) -> None:
        """Begin a transfer, unless one is under way or the caller speaks."""
        if self.is_under_way or is_caller_speaking:
            outcome = "in_progress" if self.is_under_way else "interrupted"
            self._do(s.FinishTransfer(request_id=signal.request_id, outcome=outcome))
            return
        self.is_under_way = True
        self._transfer = _Transfer(request=signal)
        if signal.announcement:
            self._say("announcement", self._texts("say.exactly", text=signal.announcement))
        else:  # What is being said is heard first.
            self._do(s.StartTimer(name="playout", seconds=self._options.playout_timeout))

    def start_transfer(self) -> None:
        """The announcement was heard: transfer the call, once."""
        if self._transfer is not None and self._transfer.state == "announcing":
            self._transfer.state = "requested"
            self._do(s.StartTimer(name="trying", seconds=self._options.trying_after))
            self._do(s.TransferCall(target_uri=self._transfer.request.target_uri))

    def answer_transfer(self, answer: s.TransferAnswer) -> s.TransferRequested | None:
        """The provider answered, or nobody knows what it did; the request, if the provider has taken it."""
        transfer = self._transfer
        if transfer is None or transfer.state != "requested":
            return None
        if answer == "failed":
            self.finish_transfer("failed")
            return None
        self._do(s.StartTimer(name="transfer", seconds=self._options.transfer_grace))
        if answer == "unknown":
            transfer.state = "unknown"
            if not transfer.is_trying_told:
                self.tell_trying()
            return None
        transfer.state = "taken"
        self._do(s.StartTimer(name="trying", seconds=self._options.trying_every))
        self._do(s.Note(name="call_transfer_accepted"))
        return transfer.request

    def tell_trying(self) -> None:
        """The transfer takes long, or the provider failed: the caller hears that it is being tried."""
        if self._transfer is not None and self._transfer.state != "announcing":
            self._transfer.is_trying_told = True
            self._do(s.StartTimer(name="trying", seconds=self._options.trying_every))
            self._say("announcement", self._texts("say.exactly", text=self._texts("transfer.trying")))

    def doubt_announcement(self, item_id: str) -> None:
        """The caller speaks over the announcement: what they say decides whether that stops the transfer."""
        self.doubt = item_id
        self._do(s.StartTimer(name="words", seconds=self._options.words_timeout))

    def settle_doubt(self) -> None:
        """What the caller said over the announcement does not stop it, or nobody knows: that is decided elsewhere."""
        self.doubt = None
        self._do(s.StopTimer(name="words"))

    def finish_transfer(self, outcome: s.TransferOutcome) -> None:
        """The transfer is over, and the conversation goes on."""
        transfer = self._take_transfer()
        if transfer is not None:
            self._do(s.StopTimer(name="transfer"))
            self._do(s.StopTimer(name="trying"))
            self._do(s.FinishTransfer(request_id=transfer.request.request_id, outcome=outcome))

    def _take_transfer(self) -> _Transfer | None:
        transfer, self._transfer = self._transfer, None
        self.is_under_way = self._hang_up is not None
        return transfer

    def expire_transfer(self) -> bool:
        """The call is still here after the grace: it was not transferred; True if no tool tells the model so."""
        transfer = self._transfer
        if transfer is None or transfer.state not in ("unknown", "taken"):
            return False
        if transfer.state == "taken":
            self._do(s.Note(name="call_transfer_not_taken", severity="warning"))
        self.finish_transfer("not_taken" if transfer.state == "taken" else "failed")
        return transfer.request.call_id is None

    def request_hang_up(
        self,
        signal: s.HangUpRequested,
        *,
        is_caller_speaking: bool,
        has_caller_spoken: bool,
        has_pending_results: bool,
        is_responding: bool,
    ) -> None:
        """Begin to end the call, unless something speaks against it. That is for tools: a limit is never refused.

        While a response is under way, nobody knows whether it tells the caller about the results that it covers: the
        request waits as `asked`, and is made again when the response is over.

        Args:
            signal: The request, of a tool or of a limit.
            is_caller_speaking: Whether the caller speaks now.
            has_caller_spoken: Whether the caller has said anything yet.
            has_pending_results: Whether other tools run, or have results that no response has spoken about.
            is_responding: Whether a response is under way, or asked for.
        """
        if signal.request_id is not None:
            refusal: s.HangUpOutcome | None = None
            if self.is_under_way or self.asked is not None:
                refusal = "failed"
            elif is_caller_speaking:
                refusal = "interrupted"
            elif not has_caller_spoken:
                refusal = "too_early"
            elif has_pending_results:
                refusal = "results_pending"
            if refusal is not None:
                self._do(s.FinishHangUp(request_id=signal.request_id, outcome=refusal))
                return
            if is_responding:
                self.asked = signal
                return
        if self.is_under_way:
            return
        self._hang_up = signal
        self.is_under_way = True
        if signal.goodbye:
            self._say("goodbye", self._texts("say.exactly", text=signal.goodbye))
        else:
            self.close()

    def _finish_asked(self, outcome: s.HangUpOutcome) -> None:
        asked, self.asked = self.asked, None
        if asked is not None and asked.request_id is not None:
            self._do(s.FinishHangUp(request_id=asked.request_id, outcome=outcome))

    def interrupt(self) -> Purpose | None:
        """The caller speaks before it was too late: nothing happens. What is not said any more; None if nothing."""
        self._finish_asked("interrupted")
        if self.is_announcing:
            self.finish_transfer("interrupted")
            return "announcement"
        hang_up = self._hang_up
        if hang_up is not None and hang_up.request_id is not None and not self.is_closing:
            self._hang_up = None
            self.is_under_way = False
            self._do(s.FinishHangUp(request_id=hang_up.request_id, outcome="interrupted"))
            return "goodbye"
        return None

    def close(self) -> None:
        """The goodbye was heard: give the tool its result, and hang up once that was sent."""
        if self._hang_up is None or self.is_closing:
            return
        self.is_closing = True
        if self._hang_up.request_id is not None:
            self._do(s.FinishHangUp(request_id=self._hang_up.request_id, outcome="ended"))
        self._do(s.StartTimer(name="hang_up", seconds=_CLOSING_TIMEOUT))

    def hang_up(self) -> None:
        """Hang up, once."""
        if not self._has_hung_up:
            self._has_hung_up = True
            self._do(s.StopTimer(name="hang_up"))
            self._do(s.HangUp())

    def refuse(self, signal: s.TransferRequested | s.HangUpRequested) -> None:
        """The call is over: there is nothing to transfer or to end."""
        if isinstance(signal, s.TransferRequested):
            self._do(s.FinishTransfer(request_id=signal.request_id, outcome="ended"))
        elif signal.request_id is not None:
            self._do(s.FinishHangUp(request_id=signal.request_id, outcome="ended"))

    def end(self, reason: s.EndReason) -> s.EndReason:
        """The call is over: whoever waits is told, and the reason is what the agent did, if it did something."""
        self._finish_asked("ended")
        transfer = self._take_transfer()
        if transfer is not None:
            # The call left while the provider was at it; if it was ended here, nobody knows how far that was.
            has_left = transfer.state != "announcing" and reason in ("caller", "lost", "agent")
            outcome = "transferred" if has_left else "ended" if transfer.state == "announcing" else "unknown"
            self._do(s.FinishTransfer(request_id=transfer.request.request_id, outcome=outcome))
            if has_left:
                self.transfer_call = transfer.request.call_id
                return "transferred"
        if self._hang_up is None:
            return reason
        if self._hang_up.request_id is not None and not self.is_closing:
            self._do(s.FinishHangUp(request_id=self._hang_up.request_id, outcome="ended"))
        return "agent" if reason == "caller" and self.is_closing else reason


async def settle_calls(
    executor: Executor, session_id: str, tasks: Iterable[asyncio.Task[Any]], *, grace: float
) -> None:
    """End what a phone call that is over has left running: reads at once, consequential calls after a grace."""
    await executor.cancel_all(session_id, grace=grace)
    waiting = [task for task in tasks if task is not asyncio.current_task()]
    if not waiting:
        return
    _, late = await asyncio.wait(waiting, timeout=grace)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
