"""The state machine against the simulated provider, in memory and in virtual time: no loop, no socket, no SDK."""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from handrail import ToolCall
from handrail.phone import MachineOptions
from handrail.phone import signals as s
from handrail.phone.realtime import RealtimeAdapter
from handrail.phone.state_machine import CallMachine
from handrail.testing.phone import SimulatedCall

Work = Callable[[ToolCall], tuple[float, str]]
"""How long a tool takes, and its output."""


class Drive:
    """One call: the machine's commands go to the provider, the provider's events to the machine."""

    def __init__(
        self,
        script: Mapping[str, Any],
        *,
        work: Work = lambda call: (0.5, "done"),
        interrupts: bool = False,
        options: MachineOptions | None = None,
        reconnect_after: float = 0.3,
        background_after: float | None = None,
        is_transient: bool = False,
    ) -> None:
        self.call = SimulatedCall({"timing": {"linger": 8}, **script})
        self.machine = CallMachine(options or MachineOptions(greeting="Say hello.", idle_timeout=None))
        self.adapter = RealtimeAdapter()
        self.runs: Counter[str] = Counter()
        self.commands: list[s.Command] = []
        self.after_the_end: list[s.Command] = []
        self._script = script
        self._work = work
        self._interrupts = interrupts
        self._reconnect_after = reconnect_after
        self._background_after = background_after
        self._is_transient = is_transient
        self._timers: dict[str, float] = {}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._sideband: int | None = None
        self._running: dict[str, str | None] = {}

    def __repr__(self) -> str:
        return f"Drive({self._script}, interrupts={self._interrupts})"

    def play(self, *, until: float = 3700.0) -> "Drive":
        """Play the call to its end."""
        self.call.request("accept", {"type": "realtime", "model": "m", "tools": [{"type": "function", "name": "t"}]})
        self._connect(resumed=False)
        while not self.call.is_ended:
            moments = [moment for moment in (self.call.next_due(), self._next_due()) if moment is not None]
            if not moments or min(moments) > until:
                raise AssertionError(f"the call does not end; it is {self.call.now} s old")
            self._run_until(min(moments))
        self._pump()
        self.feed(s.Ended(reason="caller"))
        for call_id in list(self._running):
            self._finish(call_id, "late")
        return self

    def _run_until(self, moment: float) -> None:
        due = self._next_due()
        if due is not None and due <= moment:
            self.call.run_until(due)
            self._pump()
            self._fire(due)
        else:
            self.call.run_until(moment)
        self._pump()

    def _next_due(self) -> float | None:
        moments = [*self._timers.values(), *(self._later[0][:1] if self._later else ())]
        return min(moments) if moments else None

    def _fire(self, due: float) -> None:
        for name, moment in sorted(self._timers.items(), key=lambda item: item[1]):
            if moment <= due and self._timers.get(name) == moment:
                del self._timers[name]
                self.feed(s.TimerFired(name=name))
        while self._later and self._later[0][0] <= due:
            heapq.heappop(self._later)[2]()

    def _pump(self) -> None:
        """Bring the provider's events to the machine, and what it answers back, until both are still."""
        while frames := self.call.take():
            for frame in frames:
                if frame.sideband != self._sideband:
                    continue
                if frame.close is not None:
                    self._sideband = None
                    self.feed(s.Disconnected())
                    if frame.close != 1000:
                        self._at(self._reconnect_after, lambda: self._connect(resumed=True))
                elif frame.event is not None and isinstance(frame.event.get("type"), str):
                    for signal in self.adapter.read(frame.event):
                        self.feed(signal)

    def _connect(self, *, resumed: bool) -> None:
        if not self.call.is_ended and self._sideband is None:
            self._sideband = self.call.connect()
            self.feed(s.Connected(resumed=resumed))

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.call.now + seconds, next(self._numbers), action))

    def feed(self, signal: s.Signal) -> None:
        was_over = self.machine.ended is not None
        for command in self.machine.handle(signal):
            self.commands.append(command)
            if was_over and not isinstance(command, s.Note):
                self.after_the_end.append(command)
            self._do(command)

    def _do(self, command: s.Command) -> None:
        if isinstance(command, s.ProviderCommand):
            assert self._sideband is not None, f"{command} while disconnected"
            self.call.feed(self.adapter.write(command))
            return
        match command:
            case s.RunTool(call=call):
                self.runs[call.wire_id] += 1
                self._running[call.id] = call.response_id
                seconds, output = self._work(call)
                self._at(seconds, lambda: self._finish(call.id, output))
                if self._background_after is not None:
                    self._at(self._background_after, lambda: self._continue(call.id))
            case s.InterruptTools(response_id=response_id) if self._interrupts:
                for call_id in [id for id, of in self._running.items() if of == response_id]:
                    self._at(0.0, lambda call_id=call_id: self._finish(call_id, "cancelled"))
            case s.StartTimer(name=name, seconds=seconds):
                self._timers[name] = self.call.now + seconds
            case s.StopTimer(name=name):
                self._timers.pop(name, None)
            case s.TransferCall():
                response = self.call.request("refer", {"target_uri": command.target_uri})
                outcome: Any = "transferred" if response.status == 200 else "failed"
                self._at(0.0, lambda: self.feed(s.TransferAnswered(outcome=outcome)))
            case s.HangUp():
                self.call.request("hangup")
            case _:
                pass

    def _continue(self, call_id: str) -> None:
        if call_id in self._running:
            self.feed(s.ToolContinues(call_id=call_id, output="still running"))

    def _finish(self, call_id: str, output: str) -> None:
        if call_id in self._running:
            del self._running[call_id]
            self.feed(s.ToolFinished(call_id=call_id, output=output, is_transient=self._is_transient))
