"""The tool calls of a phone call: what runs, which outputs were sent, and which results the caller has not heard."""

from collections.abc import Callable, Collection

from handrail.core.values import ToolCall
from handrail.phone import signals as s
from handrail.phone.machine_state import CallState, MachineOptions
from handrail.phone.signals import Command


class ToolCalls:
    """Every completed call of one phone call.

    A result is owed until a response knows it. A response that is cut off, or says nothing, gives back what it covered.
    """

    def __init__(self, *, do: Callable[[Command], None], options: MachineOptions) -> None:
        self._do = do
        self._options = options
        self._calls: dict[str, CallState] = {}
        self._owed: dict[str, None] = {}
        """Calls whose output no response knows yet."""
        self._covered: dict[str, tuple[str, ...]] = {}
        """The results that a response knows, until it is complete."""
        self._unheard: dict[str, tuple[str, ...]] = {}
        """The results that a response knows, until it is heard."""
        self._requests: dict[str, str] = {}
        """The call whose output a request sent."""
        self.is_batch_late = False
        """Whether results no longer wait for those of the calls that were made with them."""
        self.never_spoken: list[str] = []

    def __len__(self) -> int:
        return len(self._calls)

    def get(self, call_id: str | None) -> CallState | None:
        """A call by its id."""
        return self._calls.get(call_id or "")

    @property
    def open(self) -> tuple[str, ...]:
        """Calls whose output has not been sent."""
        return tuple(id for id, one in self._calls.items() if not one.is_sent)

    @property
    def unsent(self) -> tuple[str, ...]:
        """Calls that have a result, and whose output has not been sent."""
        return tuple(id for id, one in self._calls.items() if not one.is_sent and not one.is_running)

    @property
    def running(self) -> tuple[str, ...]:
        """Calls that have no result."""
        return tuple(id for id, one in self._calls.items() if one.is_running)

    def has_pending_results(self, *, beside: str | None) -> bool:
        """Whether calls beside this one run, or have results that no response knows."""
        return any(id != beside for id in (*self.running, *self._owed))

    @property
    def unspoken(self) -> tuple[str, ...]:
        """Calls that have a result which no response has spoken about to its end."""
        covered = [id for ids in self._covered.values() for id in ids]
        return tuple(dict.fromkeys([*self._owed, *covered]))

    # Running and answering.

    def add(self, call: ToolCall) -> CallState | None:
        """Take on a new call; one that is known neither runs nor gets a second output."""
        known = self._calls.get(call.id)
        if known is not None:
            same = (known.call.name, known.call.arguments_json) == (call.name, call.arguments_json)
            reason = "other_arguments" if not same else "already_pending" if known.is_running else "already_executed"
            self._do(s.IgnoreCall(call=call, reason=reason))
            return None
        one = self._calls[call.id] = CallState(call=call, batch=call.response_id)
        return one

    def answer(self, one: CallState, output: str, *, is_silent: bool = False) -> None:
        """The call has its result; unless it is silent, the caller has to hear about it."""
        one.is_running = False
        one.output = output
        if not self._owed and self.running:
            self._do(s.StartTimer(name="batch", seconds=self._options.batch_timeout))
        if not is_silent:
            self._owed[one.call.id] = None

    def record_late(self, call_id: str) -> None:
        """The call has its result after the phone call is over."""
        one = self._calls.get(call_id)
        if one is not None and one.is_running:
            one.is_running = False
            self._do(s.Note(name="tool_result_after_call_end", fields={"call_id": call_id}))

    def interrupt(self, response_id: str | None = None) -> None:
        """Interrupt the running calls, all of them or those of one response, once each."""
        found: dict[str, None] = {}
        for one in self._calls.values():
            of = one.call.response_id
            if one.is_running and not one.is_interrupted and of and response_id in (None, of):
                one.is_interrupted = True
                found[of] = None
        for of in found:
            self._do(s.InterruptTools(response_id=of))

    # Outputs.

    def send(self) -> None:
        """Send the outputs that are there and were not sent."""
        for id, one in self._calls.items():
            if one.output is not None and not one.is_sent:
                one.is_sent = True
                request_id = f"output_{id}"
                self._requests[request_id] = id
                self._do(s.SendOutput(request_id=request_id, call_id=id, output=one.output))

    def send_again(self) -> None:
        """The connection is new: an output that was not seen in the conversation has to be sent again."""
        for one in self._calls.values():
            one.is_sent = one.is_sent and one.is_added

    def mark_added(self, call_id: str) -> None:
        """The conversation has the output of a call."""
        one = self._calls.get(call_id)
        if one is not None:
            one.is_added = True

    def take_sent(self, request_id: str | None) -> CallState | None:
        """The call whose output a request sent, once."""
        return self.get(self._requests.pop(request_id or "", None))

    # What the caller has to hear.

    def owed(self, *, excluding: Collection[str]) -> tuple[str, ...]:
        """Results that a reply can speak about now: they were sent, and all calls of their batch have a result."""
        running: set[str | None] = set()
        if not self.is_batch_late:
            running = {one.call.response_id for one in self._calls.values() if one.is_running} - {None}
        return tuple(
            id
            for id in self._owed
            if self._calls[id].is_sent and self._calls[id].batch not in running and id not in excluding
        )

    def reserve(self, ids: tuple[str, ...]) -> None:
        """A response is asked for that will know these results."""
        for id in ids:
            self._owed.pop(id, None)

    def cover(self, response_id: str, ids: tuple[str, ...] | None) -> None:
        """A response began that knows these results; None: those that were in the conversation before it."""
        if ids is None:
            ids = tuple(id for id in self._owed if self._calls[id].is_added)
        self.reserve(ids)
        self._covered[response_id] = self._unheard[response_id] = ids

    def take_heard(self, response_id: str) -> tuple[str, ...]:
        """The results that the caller hears about now, once."""
        return self._unheard.pop(response_id, ())

    def finish(self, response_id: str) -> None:
        """A response has spoken about what it covers."""
        self._covered.pop(response_id, None)

    def finish_without_words(self, response_id: str) -> None:
        """A response said nothing: if it made calls, its results are spoken about with theirs."""
        self._unheard.pop(response_id, None)
        makes_calls = any(one.call.response_id == response_id for one in self._calls.values())
        ids = self._covered.pop(response_id, ())
        for id in ids:
            if makes_calls:
                self._calls[id].batch = response_id
        self.restore(ids, count=not makes_calls)

    def break_off(self, response_id: str, *, count: bool = True) -> None:
        """A response was not complete: what it covers still has to be spoken."""
        self.restore(self._covered.pop(response_id, ()), count=count)

    def break_off_all(self) -> None:
        """No response is known to be complete any more; that is nobody's failed attempt."""
        for response_id in list(self._covered):
            self.restore(self._covered.pop(response_id), count=False)
        self._unheard.clear()

    def restore(self, ids: tuple[str, ...], *, count: bool = True) -> None:
        """These results still have to be spoken, unless that was tried too often."""
        for id in ids:
            one = self._calls[id]
            one.attempts += count
            if one.attempts >= self._options.max_attempts:
                self.never_spoken.append(id)
                fields = {"call_id": id, "attempts": one.attempts}
                self._do(s.Note(name="tool_result_never_spoken", severity="error", fields=fields))
            else:
                self._owed.setdefault(id)

    def forgive(self, call_id: str) -> None:
        """The result reaches the model in another way: nothing is owed for this call."""
        self._owed.pop(call_id, None)
        for response_id, ids in self._covered.items():
            self._covered[response_id] = tuple(id for id in ids if id != call_id)
