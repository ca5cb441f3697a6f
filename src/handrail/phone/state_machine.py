"""One phone call as a state machine without I/O: signals in, commands out.

It keeps three promises: every completed call gets exactly one output, no result is left unspoken, and there are never
two responses at a time.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from handrail.core.values import Failure, ToolResult
from handrail.phone import signals as s
from handrail.phone.call_ending import CallEnding
from handrail.phone.call_limits import CallLimits, MachineOptions
from handrail.phone.confirmation import Confirmations, ReadBack, is_listening_sound
from handrail.phone.handoff import Handoff
from handrail.phone.signals import Command, Signal
from handrail.phone.speech import Filler, ResponseSlot, Speech, Speeches
from handrail.phone.tool_outputs import ToolCalls, ToolCallState
from handrail.tenants.texts import Texts

ALREADY_ACTIVE: Final = "conversation_already_has_active_response"
DUPLICATE_ITEM: Final = "item_create_duplicate_item_id"
_APOLOGY_AFTER: Final = 2
"""How many responses may fail, one after the other, before the caller hears an apology."""
_PLAYOUT_MARGIN: Final = 1.0
"""Seconds that a response may play longer than was estimated."""
_PLAYBACK_MARGIN: Final = 4.0
"""The same, where the provider should tell when it was heard."""
BENIGN: Final = (ALREADY_ACTIVE, "response_cancel_not_active")


class CallMachine:
    """The state of one phone call; `handle` is its only way in."""

    def __init__(self, options: MachineOptions | None = None, *, texts: Texts | None = None) -> None:
        self.options = options or MachineOptions()
        self._texts = texts or Texts()
        self.turn = 0
        self.ended: s.EndReason | None = None
        self.is_connected = False
        self.confirmations = Confirmations(has_transcripts=self.options.has_transcripts)
        self._was_connected = False
        self._opened: dict[str, None] = {}
        """Calls that the model has begun to write."""
        self._numbers = 0
        self._caller_items: deque[str] = deque(maxlen=32)
        """What the caller has begun to say, the newest last."""
        self._is_choice_forced = self.options.is_tool_choice_forced
        self._out: list[Command] = []
        self._do = self._out.append
        self._slot = ResponseSlot(do=self._do, options=self.options)
        self.calls = ToolCalls(do=self._do, options=self.options, texts=self._texts)
        self._speeches = Speeches(max_attempts=self.options.max_attempts)
        self._ending = CallEnding(do=self._do, say=self._speeches.add, texts=self._texts, options=self.options)
        self._limits = CallLimits(do=self._do, say=self._speeches.add, texts=self._texts, options=self.options)
        self._handoff = Handoff(self._do)
        self._filler = Filler(self._speeches, do=self._do, options=self.options)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            s.Connected: self._on_connected,
            s.Disconnected: self._on_disconnected,
            s.Ended: self._on_ended,
            s.ResponseStarted: self._on_response_started,
            s.ResponseContinued: self._on_response_continued,
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
            s.KeyPressed: self._on_key,
            s.PlaybackStarted: self._on_playback_started,
            s.PlaybackStopped: self._on_playback_stopped,
            s.PlaybackCleared: self._on_playback_cleared,
            s.ToolFinished: self._on_finished,
            s.ToolContinues: self._on_continues,
            s.TransferRequested: self._on_transfer,
            s.TransferAnswered: self._on_transfer_answered,
            s.HangUpRequested: self._on_hang_up,
            s.OperatorReplied: self._on_operator_replied,
            s.HandedBack: self._on_handed_back,
            s.TimerFired: self._on_timer,
        }

    def handle(self, signal: Signal) -> list[Command]:
        """Take a signal; the commands are to be done in their order."""
        handler = self._handlers.get(type(signal))
        if handler is None:
            return []
        if self.ended is not None:
            self._after_the_end(signal)
        else:
            handler(signal)
            if (asked := self._ending.asked) is not None and not self._slot.has_response:
                self._ending.asked = None
                self._on_hang_up(asked)
        if self.ended is None and (
            self.calls.has_unsent
            or self.calls.owed
            or self._speeches.waiting
            or self._slot.owes_turn
            or self._ending.is_under_way
        ):
            self._advance()
        done = self._out.copy()
        self._out.clear()
        return done

    @property
    def is_handed_off(self) -> bool:
        """Whether a person has taken over, so that the agent says nothing of its own."""
        return self._handoff.is_active

    @property
    def active(self) -> str | None:
        """The response that is being generated."""
        return self._slot.active

    # The connection.

    def _on_connected(self, signal: s.Connected) -> None:
        self.is_connected = True
        if not self._was_connected:
            self._was_connected = True
            self._limits.start()
            if self.options.greeting:
                self._speeches.add("greeting", self.options.greeting)
            return
        # Whatever was going on, its end may have been missed. What the provider does with a second response, or with
        # an output that it has already, is harmless: it refuses.
        self._slot.block()
        self._handoff.resume_connection()
        self.calls.send_again()
        for item_id in self._opened:
            self._do(s.RetrieveItem(item_id=item_id))
        # The item that comes before this message is the last one of the conversation: it may be a call nobody knows.
        self._do(s.SendMessage(request_id=self._new_id("message"), text=self._texts("connection.resumed")))

    def _on_disconnected(self, signal: s.Disconnected) -> None:
        self.is_connected = False
        self._slot.disconnect()
        self._give_up_request()
        self.calls.break_off_all()
        for speech in self._speeches.take_unheard():
            self._say_again(speech)

    def _on_ended(self, signal: s.Ended) -> None:
        self.ended = self._ending.end(signal.reason)
        self._do(s.FinishCall(reason=self.ended))

    def _after_the_end(self, signal: Signal) -> None:
        """Late results are recorded, and never sent."""
        if isinstance(signal, s.ToolFinished):
            self.calls.record_late(signal.call_id, is_expected=signal.call_id == self._ending.transfer_call)
        elif isinstance(signal, s.TransferRequested | s.HangUpRequested):
            self._ending.refuse(signal)

    # Responses.

    def _on_response_started(self, signal: s.ResponseStarted) -> None:
        if signal.response_id == self.active or self._slot.is_over(signal.response_id):
            return  # Delivered again: what the response covers is known.
        speech = self._slot.take_request() if self._slot.answers_request(signal.request_id) else None
        owes_turn = self._slot.owes_turn and speech is not None and speech.purpose == "apology"
        missed = self._slot.begin(signal.response_id)
        self._slot.owes_turn = owes_turn  # An apology is no reply.
        if missed is not None:
            self.calls.break_off(missed)
        if speech is None:
            # The provider asked by itself: the response knows what was in the conversation before it.
            self.calls.cover(signal.response_id, None)
            if self._handoff.is_active:
                self._handoff.cancel(signal.response_id)
            return
        self.calls.cover(signal.response_id, speech.covers)
        self._speeches.begin(signal.response_id, speech)
        if speech.token:
            self.confirmations.begin(speech.token)

    def _on_response_continued(self, signal: s.ResponseContinued) -> None:
        if signal.response_id == self.active:
            self._slot.extend()

    def _on_response_finished(self, signal: s.ResponseFinished) -> None:
        if self._slot.is_over(signal.response_id):
            return
        if self._slot.is_requested(signal.request_id):  # Its beginning was missed.
            self._on_response_started(s.ResponseStarted(response_id=signal.response_id, request_id=signal.request_id))
        self._slot.finish(signal.response_id)
        self._speeches.add_audio(signal.response_id, signal.audio_seconds)
        speech = self._speeches.get(signal.response_id)
        is_silent = not signal.has_speech and not self.calls.makes_calls(signal.response_id)
        if signal.status != "completed":
            self.calls.break_off(signal.response_id, count=signal.response_id not in self._handoff.cancelled)
            self.calls.interrupt(signal.response_id)
        elif signal.has_speech:
            self.calls.finish(signal.response_id)
        else:
            self.calls.finish_without_words(signal.response_id)
        if signal.status == "failed" or (signal.status != "cancelled" and is_silent):
            self._on_response_failed(speech)
        elif signal.status == "completed":
            self._slot.failures = 0
        if self._is_choice_forced and (speech is None or speech.purpose == "reply"):
            self._is_choice_forced = False
            self._do(s.ReleaseToolChoice())
        if signal.words:
            self.confirmations.learn_words(signal.words)
        if self.options.max_tokens is not None:
            self._limits.count_tokens(signal.usage.get("total_tokens", 0))
        if speech is None:
            return
        speech.words = signal.words
        is_whole = signal.status == "completed" or (signal.status == "incomplete" and speech.purpose != "read_back")
        if is_whole and signal.has_speech:
            speech.is_complete = True
            self._start("playout", self._estimate_playout(speech, signal.audio_seconds))
        else:
            self._speeches.take(signal.response_id)
            self._break_off(speech, failed=signal.status != "cancelled")

    def _estimate_playout(self, speech: Speech, audio_seconds: float) -> float:
        """How long to wait for what is said to be heard."""
        # What was said before is played first.
        unplayed = max(self._speeches.unplayed_seconds, audio_seconds)
        if not self._speeches.has_playback:
            # How much of that was heard meanwhile is not known: only the end of the call waits for all of it.
            ends_call = speech.purpose in ("announcement", "goodbye")
            return (unplayed if ends_call else audio_seconds) + _PLAYOUT_MARGIN
        return 1.5 * unplayed + _PLAYBACK_MARGIN if audio_seconds else self.options.playout_timeout

    def _on_response_failed(self, speech: Speech | None) -> None:
        """Nobody heard anything: it is asked for again after a while, and the second time with an apology."""
        self._slot.fail()
        if speech is None or (speech.purpose == "reply" and not speech.covers):
            self._slot.owes_turn = True
        if self._slot.failures == _APOLOGY_AFTER:
            self._speeches.add("apology", self._texts("say.exactly", text=self._texts("failure.apology")))

    def _on_response_timeout(self, response_id: str) -> None:
        """Its end was missed: what it owes is asked for again. If it goes on after all, the provider refuses that."""
        self._slot.finish(response_id)
        self.calls.break_off(response_id)
        speech = self._speeches.take(response_id)
        if speech is not None:
            self._break_off(speech, failed=True)

    def _on_rejected(self, signal: s.RequestRejected) -> None:
        if self._slot.is_requested(signal.request_id):
            self._give_up_request()
            if self.active is None:
                self._slot.block() if signal.code == ALREADY_ACTIVE else self._slot.fail()
        elif self.calls.has_sent(signal.request_id):
            if self.calls.reject(signal.request_id, is_duplicate=signal.code == DUPLICATE_ITEM):
                self._slot.owes_turn = True
        elif signal.request_id is None and signal.code == ALREADY_ACTIVE and self._slot.awaits_turn:
            self._stop("turn")
            self._slot.miss_turn()
        if signal.code not in (*BENIGN, DUPLICATE_ITEM):
            fields = {"code": signal.code, "request_id": signal.request_id}
            self._do(s.Note(name="provider_error", severity="warning", fields=fields))

    def _give_up_request(self) -> None:
        speech = self._slot.take_request()
        if speech is None:
            return
        self.calls.restore(speech.covers)
        if speech.purpose != "reply":
            self._say_again(speech)
        elif not speech.covers:
            self._slot.owes_turn = True

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
        state = self.calls.add(call)
        if state is None:
            return
        if len(self.calls) > self.options.max_tool_calls:
            self._refuse(state, "rate_limited", "calls.too_many")
            self._do(s.Note(name="tool_calls_exhausted", severity="warning", fields={"call_id": call.id}))
            return
        if call.response_id in self._handoff.cancelled:
            self._refuse(state, "cancelled", "calls.handed_off")
            return
        self._do(s.RunTool(call=call, turn=self.turn))
        self._filler.wait()
        if self._slot.active is not None and call.response_id == self._slot.active:
            self._slot.extend(has_called=True)

    def _refuse(self, state: ToolCallState, code: str, text: str) -> None:
        failure = Failure(code=code, message=self._texts(text))
        self.calls.answer(state, ToolResult(error=failure, tool_name=state.call.name).for_model())

    def _on_finished(self, signal: s.ToolFinished) -> None:
        state = self.calls.get(signal.call_id)
        if state is None or not state.is_running:
            return
        self.calls.answer(state, signal.output, is_silent=signal.is_silent, is_transient=signal.is_transient)
        if signal.approval is not None and not self._ending.is_under_way:
            read_back = ReadBack(
                text=signal.read_back, values=signal.values, action=signal.action, notice=signal.notice
            )
            self.confirmations.add(signal.approval, read_back)
            self.confirmations.close(signal.approval)
            instructions = self._texts("say.read_back", text=read_back.spoken)
            self._speeches.add("read_back", instructions, token=signal.approval, covers=(signal.call_id,))
        if signal.hands_off:
            is_other = self.active is not None and self.active != state.call.response_id
            self._handoff.begin(signal.call_id, other_response=self.active if is_other else None)

    def _on_continues(self, signal: s.ToolContinues) -> None:
        state = self.calls.get(signal.call_id)
        if state is not None and state.is_awaited:
            self.calls.continue_in_background(state, signal.output)

    def _on_output_added(self, signal: s.OutputAdded) -> None:
        self.calls.mark_added(signal.call_id, is_late=signal.is_late)

    # The caller.

    def _on_caller_started(self, signal: s.CallerStarted) -> None:
        self._caller_items.append(signal.item_id)
        self._slot.start_caller()
        self._limits.touch()
        self.turn += 1
        self.calls.consecutive = 0
        self._filler.reset()
        self.confirmations.answer(signal.item_id)
        self._speeches.drop_for_caller()
        if not self.options.has_transcripts:  # Else what they say decides.
            self.calls.interrupt()
        if not self._speeches.has_playback:  # Nobody tells that what was still playing was cut off.
            for speech in self._speeches.take_complete():
                self._break_off(speech, failed=False)
        if self._ending.is_announcing and self.options.has_transcripts:
            self._ending.doubt_announcement(signal.item_id)
        else:
            self._speeches.drop(self._ending.interrupt())

    def _on_caller_stopped(self, signal: s.CallerStopped) -> None:
        if signal.item_id and signal.item_id not in self._caller_items:  # Its beginning was missed.
            self._on_caller_started(s.CallerStarted(item_id=signal.item_id))
        self._slot.is_caller_speaking = False
        self._limits.touch()
        if self._handoff.is_active:
            self._slot.owes_turn = True  # The agent answers once it is handed back.
        else:
            self._slot.await_turn()

    def _on_silence(self, signal: s.SilenceNoticed) -> None:
        if self.active is None:
            self._slot.await_turn()

    def _on_key(self, signal: s.KeyPressed) -> None:
        self._limits.touch()

    def _on_transcribed(self, signal: s.CallerTranscribed) -> None:
        if not is_listening_sound(signal.transcript):
            self.calls.interrupt()
        if self._ending.doubt == signal.item_id:
            self._ending.settle_doubt()
            if not is_listening_sound(signal.transcript):
                self._speeches.drop(self._ending.interrupt())
        answer = self.confirmations.transcribe(signal.item_id, signal.transcript)
        if answer is None:
            if self.options.has_transcripts and self.confirmations.refuses(signal.transcript):
                for token in self._speeches.list_read_backs():  # What nobody has heard yet is refused, too.
                    self._refuse_approval(token)
            return
        token, reading = answer
        if reading == "no":
            self._refuse_approval(token)
        elif reading == "unclear":
            self._ask_again(token)

    def _refuse_approval(self, token: str) -> None:
        self._speeches.drop_read_back(token)
        self.confirmations.forget(token)
        self._do(s.RefuseApproval(token=token, turn=self.turn))

    def _ask_again(self, token: str, *, covers: tuple[str, ...] = ()) -> None:
        """Ask once more, in exactly our own words; after that the agent has to find another way."""
        read_back = self.confirmations.get_read_back(token)
        if read_back is not None:
            question = self._texts("read_back.question", text=read_back.spoken)
            instructions = self._texts("say.exactly", text=question)
            self._speeches.add("read_back", instructions, token=token, covers=covers)
            return
        self._speeches.drop_read_back(token)
        self.confirmations.forget(token)
        self._do(s.Note(name="confirmation_given_up", severity="warning"))
        self.tell(self._texts("calls.not_confirmed"))

    # What the caller hears.

    def _on_playback_started(self, signal: s.PlaybackStarted) -> None:
        self._speeches.start_playing(signal.response_id)
        self._limits.touch()
        heard = self.calls.take_heard(signal.response_id)
        if heard:
            self._do(s.ReportSpoken(call_ids=heard))

    def _on_playback_stopped(self, signal: s.PlaybackStopped) -> None:
        if signal.response_id == self.active:  # A response is played to its end after it is complete: that was missed.
            self._on_response_finished(s.ResponseFinished(response_id=signal.response_id, status="completed"))
        self._speeches.stop_playing(signal.response_id)
        self._limits.touch()
        speech = self._speeches.take(signal.response_id)
        if speech is not None:
            self._hear(speech)

    def _on_playback_cleared(self, signal: s.PlaybackCleared) -> None:
        self._speeches.stop_playing()
        self.calls.take_heard(signal.response_id)
        speech = self._speeches.take(signal.response_id)
        if speech is not None:
            self._break_off(speech, failed=False)

    def _hear(self, speech: Speech) -> None:
        """It was heard to its end."""
        self._stop("playout")
        if speech.purpose == "read_back":
            if not self.confirmations.hear(speech.token, speech.words):
                self._ask_again(speech.token)
        elif speech.purpose == "announcement":
            self._ending.start_transfer()
        elif speech.purpose == "goodbye":
            self._ending.close()

    def _assume_heard(self) -> None:
        """Nobody said that it was heard: that is assumed of what is complete.

        Only what was heard can be agreed to: where the provider should have told, it is asked again, and where it does
        not tell any more, the length of the audio has to do.
        """
        had_playback, self._speeches.has_playback = self._speeches.has_playback, False
        for speech in self._speeches.take_complete():
            if speech.purpose == "read_back" and had_playback:
                self._ask_again(speech.token, covers=speech.covers)
            else:
                self._hear(speech)

    def _break_off(self, speech: Speech, *, failed: bool) -> None:
        """It was cut off, by the caller or because the provider failed."""
        self._stop("playout")
        if failed and self._speeches.has_to_be_said(speech):
            self._say_again(speech)
        elif speech.purpose == "read_back":
            self._ask_again(speech.token, covers=speech.covers)
        elif speech.purpose == "announcement" and self._ending.is_announcing:
            if self._ending.doubt is None:
                self._ending.interrupt()
        elif speech.purpose == "goodbye" and self._ending.interrupt() is None:
            self._ending.close()  # Nobody asked for this goodbye: the call ends all the same.

    def _say_again(self, speech: Speech) -> None:
        """Say it again; what ends the call does so without words if that was tried too often."""
        if self._speeches.say_again(speech, is_caller_speaking=self._slot.is_caller_speaking):
            return
        if speech.purpose == "announcement":
            self._ending.finish_transfer("failed")
        elif speech.purpose == "goodbye":
            self._ending.close()

    # Time.

    def _on_timer(self, signal: s.TimerFired) -> None:
        match signal.name:
            case "request":
                self._give_up_request()
            case "response" if self.active is not None:
                self._on_response_timeout(self.active)
            case "turn" if self._slot.awaits_turn:
                self._slot.miss_turn()
            case "blocked":
                self._slot.unblock()
            case "playout":
                self._assume_heard()
            case "trying":
                self._ending.tell_trying()
            case "words" if self._ending.doubt is not None:
                self._ending.settle_doubt()
                self._speeches.drop(self._ending.interrupt())
            case "transfer":
                if self._ending.expire_transfer():
                    self.tell(self._texts("transfer.not_taken"))
                self._speeches.drop("announcement")
            case "hang_up" if self._ending.is_closing:
                for state in self.calls.list_awaited():  # Nobody hears of it; the ledger says what became of it.
                    self._refuse(state, "cancelled", "calls.ending")
                self._ending.hang_up()
            case "batch":
                self.calls.is_batch_late = True
            case "filler":
                is_silenced = self._ending.is_under_way or self._handoff.is_active
                if self.calls.has_awaited and not is_silenced:
                    self._filler.say(
                        is_quiet=not self._slot.is_busy and not self._speeches.is_playing,
                        tools=self.calls.awaited_tools,
                        default=self._texts("say.filler"),
                    )
            case "idle":
                self._on_hang_up(s.HangUpRequested(goodbye=self._texts("end_call.goodbye")))
            case "max_duration":
                self._limits.wrap_up()
            case "wrap_up":
                # A transfer has the last word, if it comes about. For a goodbye there may be no silence: on a noisy
                # line the caller never stops speaking, as the provider hears it.
                if not self._ending.is_under_way:
                    self._on_hang_up(s.HangUpRequested(goodbye=self._texts("end_call.goodbye")))
                elif self._limits.is_extended:
                    self._ending.close()
                self._limits.extend()
            case _:
                pass

    def _on_transfer(self, signal: s.TransferRequested) -> None:
        self._ending.request_transfer(signal, is_caller_speaking=self._slot.is_caller_speaking)

    def _on_transfer_answered(self, signal: s.TransferAnswered) -> None:
        request = self._ending.answer_transfer(signal.outcome)
        if not self._ending.is_under_way:
            self._speeches.drop("announcement")
        state = self.calls.get(request.call_id) if request is not None else None
        if request is not None and request.output and state is not None and state.is_awaited:
            # The model knows what was asked for; the tool has its result when the call leaves, or does not.
            self.calls.continue_in_background(state, request.output)

    def _on_hang_up(self, signal: s.HangUpRequested) -> None:
        self._ending.request_hang_up(
            signal,
            is_caller_speaking=self._slot.is_caller_speaking,
            has_caller_spoken=self.turn > 0,
            has_pending_results=self.calls.has_pending_results(beside=signal.call_id),
            is_responding=self._slot.has_response,
        )

    def _on_operator_replied(self, signal: s.OperatorReplied) -> None:
        self._speeches.add("operator", self._texts("say.exactly", text=signal.text))

    def _on_handed_back(self, signal: s.HandedBack) -> None:
        self._handoff.end()

    # Going on.

    def _advance(self) -> None:
        """Send what can be sent, and ask for a response if one is needed and nobody speaks."""
        if not self.is_connected:
            return
        owed: tuple[str, ...] = ()
        if self.calls.has_unsent:
            self.calls.send()
        if self.calls.owed:
            owed = self.calls.list_owed()
        if self._ending.is_closing:
            by = self.calls.get(self._ending.closing_call)
            if not (self.calls.has_awaited if by is None else by.is_running):
                self._ending.hang_up()
            return
        if self._slot.is_busy:
            return
        # What to say next: the most urgent speech, or a reply to everything that is owed.
        is_ending, is_handed_off = self._ending.is_under_way, self._handoff.is_active
        read_backs = self._speeches.read_backs  # They speak about their calls themselves.
        owed = tuple(id for id in owed if id not in read_backs) if read_backs else owed
        has_reply = bool(owed or self._slot.owes_turn) and not is_ending and not is_handed_off
        speech = self._speeches.next(
            is_ending=is_ending,
            is_handed_off=is_handed_off,
            has_reply=has_reply,
            may_ask=self.confirmations.open is None or not self.confirmations.is_open,
        )
        if speech is None and has_reply:
            speech = Speech("reply", covers=owed)
        if speech is not None:
            is_reply = speech.purpose == "reply"
            self._numbers += 1
            may_call = is_reply and self.calls.consecutive < self.options.max_consecutive_calls
            self._slot.request(f"response_{self._numbers}", speech, allow_tools=may_call)
            self.calls.reserve(speech.covers)
            if is_reply:
                self._slot.owes_turn = self.calls.is_batch_late = False
        elif is_ending and self._speeches.is_quiet and self._ending.is_announcing and self._ending.doubt is None:
            self._stop("playout")
            self._ending.start_transfer()

    def tell(self, text: str) -> None:
        """Tell the model something, and have it speak."""
        self._do(s.SendMessage(request_id=self._new_id("message"), text=text))
        self._slot.owes_turn = True

    def _start(self, name: str, seconds: float) -> None:
        self._do(s.StartTimer(name=name, seconds=seconds))

    def _stop(self, name: str) -> None:
        self._do(s.StopTimer(name=name))

    def _new_id(self, kind: str) -> str:
        self._numbers += 1
        return f"{kind}_{self._numbers}"
