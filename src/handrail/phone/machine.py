"""One phone call as a state machine without I/O: signals in, commands out.

It keeps three promises: every completed call gets exactly one output, no result is left unspoken, and there are never
two responses at a time.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from handrail.core.values import Failure, ToolCall, ToolResult
from handrail.phone import signals as s
from handrail.phone.confirmation import Confirmations
from handrail.phone.signals import Command, Purpose, Signal
from handrail.tenants.texts import Texts

ALREADY_ACTIVE: Final = "conversation_already_has_active_response"
DUPLICATE_ITEM: Final = "item_create_duplicate_item_id"
BENIGN: Final = (ALREADY_ACTIVE, "response_cancel_not_active")

_ORDER: Final[Mapping[Purpose, int]] = {
    "greeting": 0,
    "announcement": 1,
    "goodbye": 1,
    "reply": 2,
    "read_back": 3,
    "wrap_up": 4,
    "filler": 5,
}
_DROPPED_BY_CALLER: Final = ("read_back", "filler", "greeting")


class MachineOptions(Struct, frozen=True, kw_only=True):
    """The limits of one call, in seconds and numbers."""

    greeting: str = ""
    """Instructions for the first response; without them the caller speaks first."""
    max_duration: float = 3_000.0
    wrap_up: float = 60.0
    """Time to bring a call to its end after `max_duration`."""
    idle_timeout: float | None = 300.0
    max_tool_calls: int = 200
    max_consecutive_calls: int = 8
    filler_after: float | None = None
    """Silence while a tool runs, after which the agent says that it is still working."""
    max_fillers: int = 2
    has_transcripts: bool = False
    request_timeout: float = 10.0
    """How long a requested response may take to begin."""
    response_timeout: float = 20.0
    """How long a response may take to be generated, after which its end counts as missed."""
    turn_timeout: float = 2.0
    """How long the provider may take to answer the caller by itself."""
    playout_timeout: float = 20.0
    transfer_grace: float = 15.0
    """How long a referred call may take to end."""
    batch_timeout: float = 1.5
    """How long a result waits for those of the calls that were made with it."""
    retry_delay: float = 1.0
    max_attempts: int = 5
    """How often a result is brought to the model's attention before it counts as never spoken."""


class _Call(Struct):
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


class _Speech(Struct, eq=False):
    """Something that the agent has to say."""

    purpose: Purpose
    instructions: str | None = None
    token: str = ""
    """The approval that a read-back is about."""
    covers: tuple[str, ...] = ()
    attempts: int = 0
    response_id: str | None = None
    is_complete: bool = False


class _Request(Struct, frozen=True, kw_only=True):
    """A response that was asked for and has not begun."""

    id: str
    speech: _Speech
    covers: tuple[str, ...]


class _Transfer(Struct, kw_only=True):
    request_id: str
    target_uri: str
    state: str
    """announcing, referring, unknown, referred."""


class CallMachine:
    """The state of one phone call; `handle` is its only way in."""

    def __init__(self, options: MachineOptions | None = None, *, texts: Texts | None = None) -> None:
        self.options = options or MachineOptions()
        self._texts = texts or Texts()
        self.turn = 0
        self.ended: s.EndReason | None = None
        self.is_connected = False
        self.is_caller_speaking = False
        self.active: str | None = None
        """The response that is being generated."""
        self.confirmations = Confirmations(self._texts, has_transcripts=self.options.has_transcripts)
        self._requested: _Request | None = None
        self._was_connected = False
        self._awaits_turn = False
        """The caller's turn is over, and the provider is about to answer it."""
        self._owes_turn = False
        """The caller's turn, or a message, needs a response that nobody has asked for."""
        self._is_blocked = False
        """Responses are held back until a timer fires."""
        self._is_closing = False
        self._has_hung_up = False
        self._failures = 0
        self._calls: dict[str, _Call] = {}
        self._opened: dict[str, None] = {}
        self._debt: dict[str, None] = {}
        """Calls whose output no response knows yet."""
        self._covered: dict[str, tuple[str, ...]] = {}
        """The results that a response knows, until it is complete."""
        self._speeches: list[_Speech] = []
        self._speaking: dict[str, _Speech] = {}
        """What was asked for, by response, until it was heard."""
        self._playing: set[str] = set()
        self._voices: dict[str, tuple[str, ...]] = {}
        """The results that a response knows, until it is heard."""
        self._transfer: _Transfer | None = None
        self._hang_up: s.HangUpRequested | None = None
        self._numbers = 0
        self._consecutive = 0
        self._fillers = 0
        self._is_batch_late = False
        self._unsent_at_end: tuple[str, ...] = ()
        self._finished: deque[str] = deque(maxlen=32)
        """The newest responses that are over."""
        self._sent: dict[str, str] = {}
        """The call whose output a request sent."""
        self.never_spoken: list[str] = []
        self._out: list[Command] = []
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            s.Connected: self._on_connected,
            s.Disconnected: self._on_disconnected,
            s.Ended: self._on_ended,
            s.ResponseStarted: self._on_response_started,
            s.ResponseFinished: self._on_response_finished,
            s.ToolCallOpened: self._on_opened,
            s.ToolCallDropped: self._on_dropped,
            s.ItemMissed: self._on_missed,
            s.ToolCalled: self._on_called,
            s.OutputAdded: self._on_output_added,
            s.RequestRejected: self._on_rejected,
            s.CallerStarted: self._on_caller_started,
            s.CallerStopped: self._on_caller_stopped,
            s.CallerTranscribed: self._on_transcribed,
            s.SilenceNoticed: self._on_silence,
            s.PlaybackStarted: self._on_playback_started,
            s.PlaybackStopped: self._on_playback_stopped,
            s.PlaybackCleared: self._on_playback_cleared,
            s.ToolFinished: self._on_finished,
            s.TransferRequested: self._on_transfer,
            s.ReferFinished: self._on_refer_finished,
            s.HangUpRequested: self._on_hang_up,
            s.TimerFired: self._on_timer,
        }

    def handle(self, signal: Signal) -> list[Command]:
        """Take a signal; the commands are to be done in their order."""
        handler = self._handlers.get(type(signal))
        if handler is None:
            return []
        if self.ended is not None:
            return self._after_the_end(signal)
        handler(signal)
        if self.ended is None:
            self._advance()
        done, self._out = self._out, []
        return done

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Calls whose output has not been sent."""
        return tuple(id for id, one in self._calls.items() if not one.is_sent)

    @property
    def unsent_calls(self) -> tuple[str, ...]:
        """Calls that had a result while the provider could be reached, and whose output was not sent all the same."""
        return self._unsent_at_end

    @property
    def unspoken(self) -> tuple[str, ...]:
        """Calls whose output was sent, and that no response has spoken about to its end."""
        covered = [id for ids in self._covered.values() for id in ids]
        return tuple(dict.fromkeys([*self._debt, *covered]))

    @property
    def running_calls(self) -> tuple[str, ...]:
        return tuple(id for id, one in self._calls.items() if one.is_running)

    # The connection.

    def _on_connected(self, signal: s.Connected) -> None:
        self.is_connected = True
        if not self._was_connected:
            self._was_connected = True
            self._start("max_duration", self.options.max_duration)
            self._touch()
            if self.options.greeting:
                self._say("greeting", self.options.greeting)
            return
        # Whatever was going on, its end may have been missed. What the provider does with a second response, or with
        # an output that it has already, is harmless: it refuses.
        self._block()
        for one in self._calls.values():
            if one.is_sent and not one.is_added:
                one.is_sent = False
        for item_id in self._opened:
            self._do(s.RetrieveItem(item_id=item_id))
        # The item that comes before this message is the last one of the conversation: it may be a call nobody knows.
        self._do(s.SendMessage(request_id=self._new_id("message"), text=self._texts("connection.resumed")))

    def _on_disconnected(self, signal: s.Disconnected) -> None:
        self.is_connected = self.is_caller_speaking = self._awaits_turn = False
        self.active = None
        if self._requested is not None:
            self._give_up_request(self._requested)
        for response_id in list(self._covered):
            self._restore(self._covered.pop(response_id), count=False)
        for speech in self._speaking.values():
            if speech.purpose in ("announcement", "goodbye"):
                self._again(speech)
        self._speaking.clear()
        self._playing.clear()
        self._voices.clear()

    def _on_ended(self, signal: s.Ended) -> None:
        self._end(signal.reason)

    def _end(self, reason: s.EndReason) -> None:
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            referred = transfer.state != "announcing"
            reason = "transferred" if referred and reason in ("caller", "lost", "agent") else reason
            if transfer.state != "referred":
                outcome = "referred" if referred else "ended"
                self._do(s.FinishTransfer(request_id=transfer.request_id, outcome=outcome))
        if self._hang_up is not None:
            reason = "agent" if reason == "caller" and self._is_closing else reason
            if self._hang_up.request_id is not None and not self._is_closing:
                self._do(s.FinishHangUp(request_id=self._hang_up.request_id, outcome="ended"))
        self.ended = reason
        if self.is_connected:
            self._unsent_at_end = tuple(id for id in self.open_calls if not self._calls[id].is_running)
        self._do(s.FinishCall(reason=reason))

    def _after_the_end(self, signal: Signal) -> list[Command]:
        """Late results are recorded, and never sent."""
        if isinstance(signal, s.ToolFinished):
            one = self._calls.get(signal.call_id)
            if one is not None and one.is_running:
                one.is_running = False
                fields = {"call_id": signal.call_id}
                return [s.Note(name="tool_result_after_call_end", fields=fields)]
        if isinstance(signal, s.TransferRequested):
            return [s.FinishTransfer(request_id=signal.request_id, outcome="ended")]
        if isinstance(signal, s.HangUpRequested) and signal.request_id is not None:
            return [s.FinishHangUp(request_id=signal.request_id, outcome="ended")]
        return []

    # Responses.

    def _on_response_started(self, signal: s.ResponseStarted) -> None:
        if signal.response_id == self.active or signal.response_id in self._finished:
            return  # Delivered again: what the response covers is known.
        self._awaits_turn = self._owes_turn = False
        self._stop("turn")
        if self._is_blocked:
            self._unblock()
        if self.active is not None and self.active != signal.response_id:  # Its end was missed.
            self._restore(self._covered.pop(self.active, ()))
        self.active = signal.response_id
        self._start("response", self.options.response_timeout)
        request = self._requested
        if request is not None and signal.request_id == request.id:
            self._requested = None
            self._stop("request")
            self._covered[signal.response_id] = request.covers
            self._speaking[signal.response_id] = request.speech
            request.speech.response_id = signal.response_id
            for id in request.covers:
                self._debt.pop(id, None)
            if request.speech.token:
                self.confirmations.begin(request.speech.token)
        else:
            # The provider asked by itself: the response knows what was in the conversation before it.
            known = tuple(id for id in self._debt if self._calls[id].is_added)
            self._covered[signal.response_id] = known
            for id in known:
                del self._debt[id]
        self._voices[signal.response_id] = self._covered[signal.response_id]

    def _on_response_finished(self, signal: s.ResponseFinished) -> None:
        if signal.response_id in self._finished:
            return
        request = self._requested
        if request is not None and signal.request_id == request.id:  # Its beginning was missed.
            self._on_response_started(s.ResponseStarted(response_id=signal.response_id, request_id=signal.request_id))
        self._finished.append(signal.response_id)
        if self.active == signal.response_id:
            self.active = None
            self._stop("response")
        covered = self._covered.pop(signal.response_id, ())
        speech = self._speaking.get(signal.response_id)
        if signal.status == "completed":
            self._failures = 0
            if not signal.has_speech:
                self._voices.pop(signal.response_id, None)
                self._carry_on(signal.response_id, covered)
        else:
            self._restore(covered)
            self._interrupt(signal.response_id)
        if signal.status == "failed":
            self._failures += 1
            self._block(min(self.options.retry_delay * 2 ** min(self._failures - 1, 3), 8.0))
        if speech is None:
            return
        if signal.status in ("completed", "incomplete") and signal.has_speech:
            speech.is_complete = True
            self._start("playout", self.options.playout_timeout)
        else:
            del self._speaking[signal.response_id]
            self._on_speech_broken_off(speech, failed=signal.status in ("failed", "completed"))

    def _on_response_timeout(self, response_id: str) -> None:
        """Its end was missed: what it owes is asked for again. If it goes on after all, the provider refuses that."""
        self.active = None
        self._finished.append(response_id)
        self._restore(self._covered.pop(response_id, ()))
        speech = self._speaking.pop(response_id, None)
        if speech is not None:
            self._on_speech_broken_off(speech, failed=True)

    def _carry_on(self, response_id: str, ids: tuple[str, ...]) -> None:
        """A response said nothing about these results: if it made calls, they are spoken about with theirs."""
        makes_calls = any(one.call.response_id == response_id for one in self._calls.values())
        for id in ids:
            if makes_calls:
                self._calls[id].batch = response_id
        self._restore(ids, count=not makes_calls)

    def _on_rejected(self, signal: s.RequestRejected) -> None:
        request = self._requested
        if request is not None and signal.request_id == request.id:
            self._give_up_request(request)
            if signal.code != ALREADY_ACTIVE:
                self._failures += 1
            if self.active is None:
                self._block(self.options.retry_delay)
        elif signal.request_id is not None and signal.request_id in self._sent:
            self._on_output_rejected(self._sent.pop(signal.request_id), signal)
        elif signal.request_id is None and signal.code == ALREADY_ACTIVE and self._awaits_turn:
            self._awaits_turn, self._owes_turn = False, True
            self._stop("turn")
        if signal.code not in (*BENIGN, DUPLICATE_ITEM):
            fields = {"code": signal.code, "request_id": signal.request_id}
            self._do(s.Note(name="provider_error", severity="warning", fields=fields))

    def _on_output_rejected(self, call_id: str, signal: s.RequestRejected) -> None:
        one = self._calls[call_id]
        one.is_added = True
        if signal.code == DUPLICATE_ITEM:  # It was there already.
            return
        # The conversation does not have the call any more: the result is told as a message.
        self._debt.pop(call_id, None)
        for response_id, ids in self._covered.items():
            self._covered[response_id] = tuple(id for id in ids if id != call_id)
        self._tell(f"{one.call.name}: {one.output}")

    def _give_up_request(self, request: _Request) -> None:
        self._requested = None
        self._stop("request")
        self._restore(request.covers)
        if request.speech.purpose != "reply":
            self._again(request.speech)
        elif not request.covers:
            self._owes_turn = True

    def _restore(self, ids: tuple[str, ...], *, count: bool = True) -> None:
        """These results still have to be spoken."""
        for id in ids:
            one = self._calls[id]
            one.attempts += count
            if one.attempts >= self.options.max_attempts:
                self.never_spoken.append(id)
                fields = {"call_id": id, "attempts": one.attempts}
                self._do(s.Note(name="tool_result_never_spoken", severity="error", fields=fields))
            else:
                self._debt.setdefault(id)

    # Tool calls.

    def _on_opened(self, signal: s.ToolCallOpened) -> None:
        self._opened[signal.item_id] = None

    def _on_dropped(self, signal: s.ToolCallDropped) -> None:
        self._opened.pop(signal.item_id, None)

    def _on_missed(self, signal: s.ItemMissed) -> None:
        if self.is_connected:
            self._do(s.RetrieveItem(item_id=signal.item_id))

    def _on_called(self, signal: s.ToolCalled) -> None:
        call = signal.call
        self._opened.pop(call.item_id or "", None)
        self._touch()
        known = self._calls.get(call.id)
        if known is not None:
            same = (known.call.name, known.call.arguments_json) == (call.name, call.arguments_json)
            reason = "other_arguments" if not same else "already_pending" if known.is_running else "already_executed"
            self._do(s.IgnoreCall(call=call, reason=reason))
            return
        one = self._calls[call.id] = _Call(call=call, batch=call.response_id)
        self._consecutive += 1
        if len(self._calls) > self.options.max_tool_calls:
            failure = Failure(code="rate_limited", message=self._texts("calls.too_many"))
            self._answer(one, ToolResult(error=failure, tool_name=call.name).for_model())
            self._do(s.Note(name="tool_calls_exhausted", severity="warning", fields={"call_id": call.id}))
            return
        self._do(s.RunTool(call=call, turn=self.turn))
        self._await_filler()

    def _on_finished(self, signal: s.ToolFinished) -> None:
        one = self._calls.get(signal.call_id)
        if one is None or not one.is_running:
            return
        self._answer(one, signal.output, is_silent=signal.is_silent)
        if signal.approval is not None and not self._is_silenced:
            self.confirmations.add(signal.approval)
            instructions = self._texts("say.read_back", text=signal.read_back)
            self._speeches = [speech for speech in self._speeches if speech.token != signal.approval]
            self._say("read_back", instructions, token=signal.approval, covers=(signal.call_id,))
        if not self.running_calls:
            self._stop("filler")

    def _answer(self, one: _Call, output: str, *, is_silent: bool = False) -> None:
        one.is_running = False
        one.output = output
        if not self._debt and self.running_calls:
            self._start("batch", self.options.batch_timeout)
        if not is_silent:
            self._debt[one.call.id] = None

    def _on_output_added(self, signal: s.OutputAdded) -> None:
        one = self._calls.get(signal.call_id)
        if one is not None:
            one.is_added = True

    def _interrupt(self, response_id: str | None = None) -> None:
        """Interrupt the running calls, all of them or those of one response, once each."""
        found: dict[str, None] = {}
        for one in self._calls.values():
            of = one.call.response_id
            if one.is_running and not one.is_interrupted and of and response_id in (None, of):
                one.is_interrupted = True
                found[of] = None
        for of in found:
            self._do(s.InterruptTools(response_id=of))

    # The caller.

    def _on_caller_started(self, signal: s.CallerStarted) -> None:
        self.is_caller_speaking = True
        self._awaits_turn = self._owes_turn = False
        self._stop("turn")
        self._touch()
        self.turn += 1
        self._consecutive = self._fillers = 0
        self.confirmations.answer(signal.item_id, turn=self.turn)
        self._speeches = [one for one in self._speeches if one.purpose not in _DROPPED_BY_CALLER]
        self._interrupt()
        if self._transfer is not None and self._transfer.state == "announcing":
            self._drop_speech("announcement")
            self._finish_transfer("interrupted")
        if self._hang_up is not None and not self._is_closing and self._hang_up.request_id is not None:
            self._drop_speech("goodbye")
            self._finish_hang_up("interrupted")

    def _on_caller_stopped(self, signal: s.CallerStopped) -> None:
        self.is_caller_speaking = False
        self._touch()
        self._await_turn()

    def _on_silence(self, signal: s.SilenceNoticed) -> None:
        if self.active is None:
            self._await_turn()

    def _await_turn(self) -> None:
        self._awaits_turn = True
        self._start("turn", self.options.turn_timeout)

    def _on_transcribed(self, signal: s.CallerTranscribed) -> None:
        for token in self.confirmations.transcribe(signal.item_id, signal.transcript):
            self._do(s.RefuseApproval(token=token))

    # What the caller hears.

    def _on_playback_started(self, signal: s.PlaybackStarted) -> None:
        self._playing.add(signal.response_id)
        self._touch()
        heard = self._voices.pop(signal.response_id, ())
        if heard:
            self._do(s.ReportSpoken(call_ids=heard))

    def _on_playback_stopped(self, signal: s.PlaybackStopped) -> None:
        if signal.response_id == self.active:  # A response is played to its end after it is complete: that was missed.
            self._on_response_finished(s.ResponseFinished(response_id=signal.response_id, status="completed"))
        self._playing.discard(signal.response_id)
        self._touch()
        speech = self._speaking.pop(signal.response_id, None)
        if speech is not None:
            self._on_heard(speech)

    def _on_playback_cleared(self, signal: s.PlaybackCleared) -> None:
        self._playing.clear()
        self._voices.pop(signal.response_id, None)
        speech = self._speaking.pop(signal.response_id, None)
        if speech is not None:
            self._on_speech_broken_off(speech, failed=False)

    def _on_heard(self, speech: _Speech) -> None:
        self._stop("playout")
        if speech.purpose == "read_back":
            self.confirmations.hear(speech.token)
        elif speech.purpose == "announcement":
            self._refer()
        elif speech.purpose == "goodbye":
            self._close()

    def _on_speech_broken_off(self, speech: _Speech, *, failed: bool) -> None:
        self._stop("playout")
        if failed and speech.purpose in ("greeting", "announcement", "goodbye", "read_back"):
            self._again(speech)
        elif speech.purpose == "announcement" and self._transfer is not None and self._transfer.state == "announcing":
            self._finish_transfer("interrupted")
        elif speech.purpose == "goodbye" and self._hang_up is not None and not self._is_closing:
            if self._hang_up.request_id is not None:
                self._finish_hang_up("interrupted")
            else:
                self._close()

    def _again(self, speech: _Speech) -> None:
        speech.attempts += 1
        speech.response_id, speech.is_complete = None, False
        if speech.attempts < self.options.max_attempts:
            if speech.purpose not in _DROPPED_BY_CALLER or not self.is_caller_speaking:
                self._speeches.insert(0, speech)
        elif speech.purpose == "announcement":
            self._finish_transfer("failed")
        elif speech.purpose == "goodbye":
            self._close()

    # Transfers and hanging up.

    @property
    def _is_silenced(self) -> bool:
        """Whether the agent says nothing more than what ends the call."""
        return self._transfer is not None or self._hang_up is not None

    def _on_transfer(self, signal: s.TransferRequested) -> None:
        if self._is_silenced:
            self._do(s.FinishTransfer(request_id=signal.request_id, outcome="in_progress"))
            return
        if self.is_caller_speaking:
            self._do(s.FinishTransfer(request_id=signal.request_id, outcome="interrupted"))
            return
        self._transfer = _Transfer(request_id=signal.request_id, target_uri=signal.target_uri, state="announcing")
        if signal.announcement:
            self._say("announcement", self._texts("say.exactly", text=signal.announcement))
        else:
            self._start("playout", self.options.playout_timeout)

    def _refer(self) -> None:
        transfer = self._transfer
        if transfer is not None and transfer.state == "announcing":
            transfer.state = "referring"
            self._do(s.Refer(target_uri=transfer.target_uri))

    def _on_refer_finished(self, signal: s.ReferFinished) -> None:
        transfer = self._transfer
        if transfer is None or transfer.state != "referring":
            return
        if signal.outcome == "failed":
            self._finish_transfer("failed")
            return
        self._start("transfer", self.options.transfer_grace)
        if signal.outcome == "unknown":  # If the call goes on, it was not referred.
            transfer.state = "unknown"
            return
        transfer.state = "referred"
        self._do(s.FinishTransfer(request_id=transfer.request_id, outcome="referred"))

    def _finish_transfer(self, outcome: s.TransferOutcome) -> None:
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            self._stop("transfer")
            self._do(s.FinishTransfer(request_id=transfer.request_id, outcome=outcome))

    def _on_hang_up(self, signal: s.HangUpRequested) -> None:
        if signal.request_id is not None:
            if self._is_silenced:
                self._do(s.FinishHangUp(request_id=signal.request_id, outcome="failed"))
                return
            if self.is_caller_speaking:
                self._do(s.FinishHangUp(request_id=signal.request_id, outcome="interrupted"))
                return
            if self.turn == 0:
                self._do(s.FinishHangUp(request_id=signal.request_id, outcome="too_early"))
                return
        elif self._is_silenced:
            return
        self._hang_up = signal
        if signal.goodbye:
            self._say("goodbye", self._texts("say.exactly", text=signal.goodbye))
        else:
            self._close()

    def _finish_hang_up(self, outcome: s.HangUpOutcome) -> None:
        hang_up, self._hang_up = self._hang_up, None
        if hang_up is not None and hang_up.request_id is not None:
            self._do(s.FinishHangUp(request_id=hang_up.request_id, outcome=outcome))

    def _close(self) -> None:
        """The goodbye was heard: give the tool its result, and hang up once it was sent."""
        if self._hang_up is None or self._is_closing:
            return
        self._is_closing = True
        if self._hang_up.request_id is not None:
            self._do(s.FinishHangUp(request_id=self._hang_up.request_id, outcome="ended"))
        self._start("hang_up", 2.0)

    def _finish_closing(self) -> None:
        if not self._has_hung_up:
            self._has_hung_up = True
            self._stop("hang_up")
            self._do(s.HangUp())

    # Time.

    def _on_timer(self, signal: s.TimerFired) -> None:
        match signal.name:
            case "request" if self._requested is not None:
                self._give_up_request(self._requested)
            case "response" if self.active is not None:
                self._on_response_timeout(self.active)
            case "turn" if self._awaits_turn:
                self._awaits_turn, self._owes_turn = False, True
            case "blocked":
                self._is_blocked = False
            case "playout":
                self._on_playout_timeout()
            case "transfer":
                self._on_transfer_timeout()
            case "hang_up" if self._is_closing:
                self._finish_closing()
            case "batch":
                self._is_batch_late = True
            case "filler":
                self._on_filler()
            case "idle":
                self._on_hang_up(s.HangUpRequested(goodbye=self._texts("end_call.goodbye")))
            case "max_duration":
                self._start("wrap_up", self.options.wrap_up)
                self._say("wrap_up", self._texts("say.wrap_up"))
            case "wrap_up" if self._is_silenced:  # A transfer has the last word, if it comes about.
                self._start("wrap_up", self.options.wrap_up)
            case "wrap_up":
                self._on_hang_up(s.HangUpRequested(goodbye=self._texts("end_call.goodbye")))
            case _:
                pass

    def _on_playout_timeout(self) -> None:
        for response_id, speech in list(self._speaking.items()):
            if speech.is_complete:
                del self._speaking[response_id]
                if speech.purpose != "read_back":  # Only what was heard can be agreed to.
                    self._on_heard(speech)
        self._playing.clear()

    def _on_transfer_timeout(self) -> None:
        transfer = self._transfer
        if transfer is None:
            return
        if transfer.state == "unknown":
            self._finish_transfer("failed")
        elif transfer.state == "referred":
            self._transfer = None
            self._do(s.Note(name="call_transfer_not_taken", severity="warning"))
            self._tell(self._texts("transfer.not_taken"))

    def _await_filler(self) -> None:
        if self.options.filler_after is not None and self._fillers < self.options.max_fillers:
            self._start("filler", self.options.filler_after)

    def _on_filler(self) -> None:
        if not self.running_calls or self._is_silenced or self._fillers >= self.options.max_fillers:
            return
        if self._is_busy or self._playing:
            self._await_filler()
            return
        self._fillers += 1
        self._say("filler", self._texts("say.filler"))
        self._await_filler()

    # Going on.

    @property
    def _is_busy(self) -> bool:
        """Whether a response must not be asked for now."""
        return (
            self.active is not None
            or self._requested is not None
            or self.is_caller_speaking
            or self._awaits_turn
            or self._is_blocked
        )

    def _advance(self) -> None:
        """Send what can be sent, and ask for a response if one is needed and nobody speaks."""
        if not self.is_connected:
            return
        for id, one in self._calls.items():
            if one.output is not None and not one.is_sent:
                one.is_sent = True
                request_id = f"output_{id}"
                self._sent[request_id] = id
                self._do(s.SendOutput(request_id=request_id, call_id=id, output=one.output))
        if self._is_closing:
            by = self._calls.get((self._hang_up.call_id if self._hang_up else None) or "")
            if by is None or not by.is_running:
                self._finish_closing()
            return
        if self._is_busy:
            return
        speech = self._next_speech()
        if speech is not None:
            self._request(speech)
        elif self._is_quiet and self._transfer is not None and self._transfer.state == "announcing":
            self._stop("playout")
            self._refer()

    def _next_speech(self) -> _Speech | None:
        """What to say next: the most urgent speech, or a reply to everything that is owed."""
        allowed = [one for one in self._speeches if not self._is_silenced or one.purpose in ("announcement", "goodbye")]
        first = min(allowed, key=lambda one: _ORDER[one.purpose], default=None)
        owed = self._owed()
        is_reply_first = first is None or _ORDER[first.purpose] > _ORDER["reply"]
        if (owed or self._owes_turn) and is_reply_first and not self._is_silenced:
            return _Speech("reply", covers=owed)
        if first is not None:
            self._speeches.remove(first)
        return first

    def _owed(self) -> tuple[str, ...]:
        """Results that a reply can speak about now: those whose batch is complete, and that no read-back is for."""
        running: set[str | None] = set()
        if not self._is_batch_late:
            running = {one.call.response_id for one in self._calls.values() if one.is_running} - {None}
        read_back = {id for one in self._speeches for id in one.covers if one.purpose == "read_back"}
        return tuple(
            id
            for id in self._debt
            if self._calls[id].is_sent and self._calls[id].batch not in running and id not in read_back
        )

    def _request(self, speech: _Speech) -> None:
        is_reply = speech.purpose == "reply"
        request = _Request(id=self._new_id("response"), speech=speech, covers=speech.covers)
        self._requested = request
        for id in request.covers:
            self._debt.pop(id, None)
        if is_reply:
            self._owes_turn = self._is_batch_late = False
        self._start("request", self.options.request_timeout)
        self._do(
            s.RequestResponse(
                request_id=request.id,
                purpose=speech.purpose,
                instructions=speech.instructions,
                allow_tools=is_reply and self._consecutive < self.options.max_consecutive_calls,
            )
        )

    def _say(self, purpose: Purpose, instructions: str, *, token: str = "", covers: tuple[str, ...] = ()) -> None:
        self._speeches.append(_Speech(purpose, instructions, token, covers))

    @property
    def _is_quiet(self) -> bool:
        """Whether nothing is being said, or about to be said, that the caller has to hear first."""
        waiting = any(one.purpose == "announcement" for one in self._speeches)
        return not (self._playing or self._speaking or waiting)

    def _drop_speech(self, purpose: Purpose) -> None:
        self._speeches = [one for one in self._speeches if one.purpose != purpose]

    def _tell(self, text: str) -> None:
        """Tell the model something, and have it speak."""
        self._do(s.SendMessage(request_id=self._new_id("message"), text=text))
        self._owes_turn = True

    def _block(self, seconds: float | None = None) -> None:
        self._is_blocked = True
        self._start("blocked", self.options.retry_delay if seconds is None else seconds)

    def _unblock(self) -> None:
        self._is_blocked = False
        self._stop("blocked")

    def _touch(self) -> None:
        if self.options.idle_timeout is not None:
            self._start("idle", self.options.idle_timeout)

    def _start(self, name: str, seconds: float) -> None:
        self._do(s.StartTimer(name=name, seconds=seconds))

    def _stop(self, name: str) -> None:
        self._do(s.StopTimer(name=name))

    def _new_id(self, kind: str) -> str:
        self._numbers += 1
        return f"{kind}_{self._numbers}"

    def _do(self, command: Command) -> None:
        self._out.append(command)
