"""One simulated call on the clock of an event loop."""

import asyncio
from collections.abc import Callable

from .api_refusals import Refused
from .call_control import ControlResponse
from .engine import SimulatedCall
from .report import CallReport
from .script import Verb
from .state import Frame


class LiveCall:
    """A call on the clock of the event loop: what the server does for a socket, without one."""

    def __init__(self, call: SimulatedCall) -> None:
        self.call = call
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._handle: asyncio.TimerHandle | None = None
        self._senders: dict[int, Callable[[Frame], None]] = {}
        self._schedule()

    def request(self, verb: Verb, body: object = None) -> ControlResponse:
        """Do what a request of call control does; its delay is for the caller to wait."""
        self._catch_up()
        response = self.call.request(verb, body)
        self._schedule()
        return response

    def connect(self, send: Callable[[Frame], None]) -> int:
        """Open a sideband whose frames go to `send`; `LookupError` if the call is not open."""
        self._catch_up()
        try:
            number = self.call.connect()
        except Refused as refused:
            raise LookupError(refused.message) from refused
        self._senders[number] = send
        self._schedule()
        return number

    def feed(self, message: str | bytes) -> None:
        """Take a message of the client."""
        self._catch_up()
        self.call.feed(message)
        self._schedule()

    def disconnect(self, sideband: int) -> None:
        """The client closes a sideband."""
        self._senders.pop(sideband, None)
        self.call.disconnect(sideband)

    def report(self) -> CallReport:
        """CallReport on the call as it is now."""
        if not self.call.is_ended:
            self._tick()
        return self.call.report()

    def close(self) -> None:
        """Stop the clock of the call."""
        if self._handle is not None:
            self._handle.cancel()
        self.ended.set()

    def _catch_up(self) -> None:
        # A little more than the difference, which may be rounded to less than what was due.
        self.call.run_until(self._loop.time() - self._started + 1e-9)

    def _tick(self) -> None:
        self._catch_up()
        self._schedule()

    def _schedule(self) -> None:
        """Send what is to go out, and come back when the next thing is due."""
        for frame in self.call.take():
            if (send := self._senders.get(frame.sideband)) is not None:
                send(frame)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self.call.is_ended:
            self.ended.set()
        elif (due := self.call.next_due()) is not None:
            self._handle = self._loop.call_at(self._started + due, self._tick)
