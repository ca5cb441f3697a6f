"""What follows when something that the agent had to say was heard to its end, cut off, or not said at all."""

from collections.abc import Callable

from handrail.phone import signals as s
from handrail.phone.call_ending import CallEnding
from handrail.phone.confirmation import Confirmations
from handrail.phone.machine_state import Speech
from handrail.phone.response_slot import ResponseSlot
from handrail.phone.signals import Command
from handrail.phone.speeches import Speeches


class SpeechOutcomes:
    """A read-back that was heard can be agreed to; an announcement or a goodbye that was heard ends the call."""

    def __init__(
        self,
        speeches: Speeches,
        *,
        do: Callable[[Command], None],
        ending: CallEnding,
        confirmations: Confirmations,
        slot: ResponseSlot,
    ) -> None:
        self._speeches = speeches
        self._do = do
        self._ending = ending
        self._confirmations = confirmations
        self._slot = slot

    def hear(self, speech: Speech) -> None:
        """It was heard to its end."""
        self._do(s.StopTimer(name="playout"))
        if speech.purpose == "read_back":
            self._confirmations.hear(speech.token)
        elif speech.purpose == "announcement":
            self._ending.refer()
        elif speech.purpose == "goodbye":
            self._ending.close()

    def assume_heard(self) -> None:
        """Nobody said that it was heard: that is assumed of what is complete."""
        for speech in self._speeches.take_complete():
            if speech.purpose != "read_back":  # Only what was heard can be agreed to.
                self.hear(speech)

    def break_off(self, speech: Speech, *, failed: bool) -> None:
        """It was cut off, by the caller or because the provider failed."""
        self._do(s.StopTimer(name="playout"))
        if failed and self._speeches.has_to_be_said(speech):
            self.say_again(speech)
        elif speech.purpose == "announcement" and self._ending.is_announcing:
            self._ending.interrupt()
        elif speech.purpose == "goodbye" and self._ending.interrupt() is None:
            self._ending.close()  # Nobody asked for this goodbye: the call ends all the same.

    def say_again(self, speech: Speech) -> None:
        """Say it again; what ends the call does so without words if that was tried too often."""
        if self._speeches.say_again(speech, is_caller_speaking=self._slot.is_caller_speaking):
            return
        if speech.purpose == "announcement":
            self._ending.finish_transfer("failed")
        elif speech.purpose == "goodbye":
            self._ending.close()
