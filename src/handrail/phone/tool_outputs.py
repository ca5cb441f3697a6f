"""The tool calls of a phone call: what runs, which outputs were sent, and which results the caller has not heard."""

from collections.abc import Callable

from msgspec import Struct

from handrail.core.values import ToolCall
from handrail.phone import signals as s
from handrail.phone.call_limits import MachineOptions
from handrail.phone.signals import Command
from handrail.tenants.texts import Texts


class ToolCallState(Struct):
    """A tool call that the model completed."""

    call: ToolCall
    is_running: bool = True
    is_interrupted: bool = False
    output: str | None = None
    is_sent: bool = False
    is_added: bool = False
    attempts: int = 0
    batch: str | None = None
    """The response whose calls it is spoken about with."""
    is_background: bool = False
    """Whether the model was told that it still runs."""
    late_output: str | None = None
    """The result of a call that ran in the background, which is told as a message."""
    is_late_sent: bool = False
    is_late_added: bool = False
    sent_as: list[str] = []
    """What the conversation has of its result: its output under the id of the call, messages under their requests."""

    @property
    def is_awaited(self) -> bool:
        """Whether it has no output yet."""
        return self.is_running and not self.is_background

    @property
    def is_told(self) -> bool:
        """Whether everything that there is to tell about it was sent."""
        return self.is_sent and (self.late_output is None or self.is_late_sent)

    @property
    def is_known(self) -> bool:
        """Whether the conversation has everything that there is to tell about it."""
        return self.is_added if self.late_output is None else self.is_late_added


class ToolCalls:
    """Every completed call of one phone call.

    A result is owed until a response knows it. A response that is cut off, or says nothing, gives back what it covered.
    """

    def __init__(self, *, do: Callable[[Command], None], options: MachineOptions, texts: Texts) -> None:
        self._do = do
        self._options = options
        self._texts = texts
        self._calls: dict[str, ToolCallState] = {}
        self.owed: dict[str, None] = {}
        """Calls whose output no response knows yet."""
        self._covered: dict[str, tuple[str, ...]] = {}
        """The results that a response knows, until it is complete."""
        self._unheard: dict[str, tuple[str, ...]] = {}
        """The results that a response knows, until it is heard."""
        self._transient: dict[str, None] = {}
        """Calls whose result is for one reply only, until it was given."""
        self._seen_transient: dict[str, tuple[str, ...]] = {}
        """Those of them that the newest response knows."""
        self._requests: dict[str, str] = {}
        """The call whose output a request sent."""
        self.has_unsent = False
        """Whether there may be outputs that were not sent."""
        self.is_batch_late = False
        """Whether results no longer wait for those of the calls that were made with them."""
        self.never_spoken: list[str] = []
        self.consecutive = 0
        """How many were made since the caller spoke; with `max_consecutive_calls` of them, the agent has to speak."""

    def __len__(self) -> int:
        return len(self._calls)

    def get(self, call_id: str | None) -> ToolCallState | None:
        """A call by its id."""
        return self._calls.get(call_id or "")

    @property
    def open(self) -> tuple[str, ...]:
        """Calls whose output has not been sent."""
        return tuple(id for id, state in self._calls.items() if not state.is_sent)

    @property
    def has_awaited(self) -> bool:
        """Whether a call has no output."""
        return bool(self.awaited_tools)

    def list_awaited(self) -> list[ToolCallState]:
        """The calls that have no output."""
        return [state for state in self._calls.values() if state.is_awaited]

    @property
    def awaited_tools(self) -> tuple[str, ...]:
        """The tools of the calls that have no output."""
        return tuple(state.call.name for state in self._calls.values() if state.is_awaited)

    def has_pending_results(self, *, beside: str | None) -> bool:
        """Whether calls beside this one run, if only in the background, or have results to be spoken about."""
        running = [id for id, state in self._calls.items() if state.is_running]
        return any(id != beside for id in (*running, *self.owed))

    @property
    def unspoken(self) -> tuple[str, ...]:
        """Calls that have a result which no response has spoken about to its end."""
        covered = [id for ids in self._covered.values() for id in ids]
        return tuple(dict.fromkeys([*self.owed, *covered]))

    # Running and answering.

    def add(self, call: ToolCall) -> ToolCallState | None:
        """Take on a new call; one that is known neither runs nor gets a second output."""
        known = self._calls.get(call.id)
        if known is not None:
            same = (known.call.name, known.call.arguments_json) == (call.name, call.arguments_json)
            reason = "other_arguments" if not same else "already_pending" if known.is_running else "already_executed"
            self._do(s.IgnoreCall(call=call, reason=reason))
            return None
        self.consecutive += 1
        state = self._calls[call.id] = ToolCallState(call=call, batch=call.response_id)
        return state

    def answer(self, state: ToolCallState, output: str, *, is_silent: bool = False, is_transient: bool = False) -> None:
        """The call has its result; unless it is silent, the caller has to hear about it."""
        state.is_running = False
        if is_transient:
            self._transient[state.call.id] = None
        if state.is_background and state.is_sent:
            state.late_output = output
            state.attempts = 0
        else:
            state.output = output
        self._owe(state, is_silent=is_silent)

    def continue_in_background(self, state: ToolCallState, output: str) -> None:
        """The call takes long: the model is told so, and gets the result when it is there."""
        state.is_background = True
        state.output = output
        self._owe(state, is_silent=False)

    def _owe(self, state: ToolCallState, *, is_silent: bool) -> None:
        self.has_unsent = True
        if not self.owed and self.has_awaited:
            self._do(s.StartTimer(name="batch", seconds=self._options.batch_timeout))
        if not is_silent:
            self.owed[state.call.id] = None

    def record_late(self, call_id: str, *, is_expected: bool) -> None:
        """The call has its result after the phone call is over; that of a transfer always comes then."""
        state = self._calls.get(call_id)
        if state is not None and state.is_running:
            state.is_running = False
            if not is_expected:
                self._do(s.Note(name="tool_result_after_call_end", fields={"call_id": call_id}))

    def interrupt(self, response_id: str | None = None) -> None:
        """Interrupt the running calls, all of them or those of one response, once each."""
        found: dict[str, None] = {}
        for state in self._calls.values():
            of = state.call.response_id
            if state.is_awaited and not state.is_interrupted and of and response_id in (None, of):
                state.is_interrupted = True
                found[of] = None
        for of in found:
            self._do(s.InterruptTools(response_id=of))

    # Outputs.

    def send(self) -> None:
        """Send the outputs that are there and were not sent."""
        self.has_unsent = False
        for id, state in self._calls.items():
            if state.output is not None and not state.is_sent:
                state.is_sent = True
                _add(state.sent_as, id)
                request_id = f"output_{id}"
                self._requests[request_id] = id
                provider_id = state.call.provider_id
                self._do(s.SendOutput(request_id=request_id, call_id=id, provider_id=provider_id, output=state.output))
            if state.late_output is not None and not state.is_late_sent:
                state.is_late_sent = True
                request_id = f"late_{id}"
                self._requests[request_id] = id
                self._send_message(request_id, state, state.late_output)

    def send_again(self) -> None:
        """The connection is new: an output that was not seen in the conversation has to be sent again."""
        self.has_unsent = True
        for state in self._calls.values():
            state.is_sent = state.is_sent and state.is_added
            state.is_late_sent = state.is_late_sent and state.is_late_added

    def mark_added(self, call_id: str, *, is_late: bool = False) -> None:
        """The conversation has the output of a call, or the result of one that ran in the background."""
        state = self._calls.get(call_id)
        if state is not None and is_late:
            state.is_late_added = True
        elif state is not None:
            state.is_added = True

    def is_added(self, call_id: str) -> bool:
        """Whether the conversation is known to have the output of a call."""
        state = self._calls.get(call_id)
        return state is not None and state.is_added

    def has_sent(self, request_id: str | None) -> bool:
        """Whether this request sent an output or a late result."""
        return request_id in self._requests

    def reject(self, request_id: str | None, *, is_duplicate: bool) -> bool:
        """The provider refused what a request sent; whether the result was told as a message in its place."""
        state = self._calls[self._requests.pop(request_id or "")]
        is_late = request_id == f"late_{state.call.id}"
        self.mark_added(state.call.id, is_late=is_late)
        if is_duplicate:  # It was there already.
            return False
        self._forgive(state.call.id)
        state.sent_as.remove(f"late_{state.call.id}" if is_late else state.call.id)
        if not is_late:  # The conversation does not have the call any more.
            self._send_message(f"gone_{state.call.id}", state, state.output or "")
        return not is_late

    def _send_message(self, request_id: str, state: ToolCallState, output: str) -> None:
        _add(state.sent_as, request_id)
        text = self._texts("calls.late_result", tool=state.call.name, output=output)
        self._do(s.SendMessage(request_id=request_id, text=text, call_id=state.call.id))

    # What the caller has to hear.

    def list_owed(self) -> tuple[str, ...]:
        """Results that a reply can speak about now: they were sent, and all calls of their batch have a result."""
        running: set[str | None] = set()
        if not self.is_batch_late:
            running = {state.call.response_id for state in self._calls.values() if state.is_awaited} - {None}
        return tuple(id for id in self.owed if self._calls[id].is_told and self._calls[id].batch not in running)

    def reserve(self, ids: tuple[str, ...]) -> None:
        """A response is asked for that will know these results."""
        for id in ids:
            self.owed.pop(id, None)

    def cover(self, response_id: str, ids: tuple[str, ...] | None) -> None:
        """A response began that knows these results; None: those that were in the conversation before it."""
        if ids is None:
            ids = tuple(id for id in self.owed if self._calls[id].is_known)
        self.reserve(ids)
        self._covered[response_id] = self._unheard[response_id] = ids
        if self._transient:
            known = tuple(id for id in self._transient if id in ids or self._calls[id].is_known)
            self._seen_transient = {response_id: known}

    def take_heard(self, response_id: str) -> tuple[str, ...]:
        """The results that the caller hears about now, once."""
        return self._unheard.pop(response_id, ())

    def finish(self, response_id: str) -> None:
        """A response has spoken about what it covers; results that were for one reply only are no longer needed."""
        self._covered.pop(response_id, None)
        seen = self._seen_transient.pop(response_id, ())
        if seen and not self.makes_calls(response_id):  # Else the reply to come needs them too.
            unspoken = self.unspoken
            for id in seen:
                if id in self._transient and id not in unspoken:
                    self._drop(self._calls[id])

    def _drop(self, state: ToolCallState) -> None:
        """Take a call and its result out of the conversation."""
        del self._transient[state.call.id]
        for name in state.sent_as:
            self._do(s.DeleteItem(sent_as=name))
        if state.call.item_id and state.call.id in state.sent_as:  # An output that was refused had no call.
            self._do(s.DeleteItem(item_id=state.call.item_id))

    def makes_calls(self, response_id: str) -> bool:
        """Whether a response called a tool."""
        return any(state.call.response_id == response_id for state in self._calls.values())

    def finish_without_words(self, response_id: str) -> None:
        """A response said nothing: if it made calls, its results are spoken about with theirs."""
        self._unheard.pop(response_id, None)
        makes_calls = self.makes_calls(response_id)
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
            state = self._calls[id]
            state.attempts += count
            if state.attempts >= self._options.max_attempts:
                self.never_spoken.append(id)
                fields = {"call_id": id, "attempts": state.attempts}
                self._do(s.Note(name="tool_result_never_spoken", severity="error", fields=fields))
            else:
                self.owed.setdefault(id)

    def _forgive(self, call_id: str) -> None:
        """The result reaches the model in another way: nothing is owed for this call."""
        self.owed.pop(call_id, None)
        for response_id, ids in self._covered.items():
            self._covered[response_id] = tuple(id for id in ids if id != call_id)


def _add(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)
