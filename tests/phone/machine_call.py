"""A phone call as a state machine, told what happens step by step."""

import itertools
from typing import Any

from handrail import ToolCall
from handrail.phone import MachineOptions
from handrail.phone import signals as s
from handrail.phone.state_machine import CallMachine

READ_BACK = "Pay: amount: 50, to: Ann"
SPOKEN = "I am going to pay 50 euros to Ann, yes or no?"


class Call:
    """The state machine of a call, fed with signals; unless it is new, the caller has been greeted."""

    def __init__(self, *, has_transcripts: bool = True, is_new: bool = False, **options: Any) -> None:
        options = {"greeting": "Say hello.", "idle_timeout": None, "has_transcripts": has_transcripts, **options}
        self.machine = CallMachine(MachineOptions(**options))
        self.commands: list[s.Command] = []
        self._numbers = itertools.count(1)
        self.feed(s.Connected())
        if not is_new:
            self.speak("Hello.")

    def feed(self, *signals: s.Signal) -> None:
        for signal in signals:
            self.commands += self.machine.handle(signal)

    def of(self, kind: type[Any]) -> list[Any]:
        return [command for command in self.commands if isinstance(command, kind)]

    @property
    def requests(self) -> list[s.Purpose]:
        """What responses were requested for."""
        return [command.purpose for command in self.of(s.RequestResponse)]

    @property
    def notes(self) -> list[str]:
        return [command.name for command in self.of(s.Note)]

    @property
    def asked(self) -> list[str]:
        """The instructions of the read-backs that were requested."""
        return [command.instructions for command in self.of(s.RequestResponse) if command.purpose == "read_back"]

    def want(
        self, token: str = "t1", text: str = READ_BACK, values: tuple[Any, ...] = (50, "Ann"), notice: str = ""
    ) -> None:
        """The model calls the tool, and the executor asks for the caller's approval."""
        number = next(self._numbers)
        response, call_id = f"r{number}", f"c{number}"
        self.feed(s.ResponseStarted(response_id=response))
        self.feed(s.ToolCalled(call=ToolCall(id=call_id, name="pay", response_id=response)))
        asked: dict[str, Any] = {"approval": token, "read_back": text, "values": values, "notice": notice}
        self.feed(s.ToolFinished(call_id=call_id, output="ask", **asked))
        self.feed(s.OutputAdded(call_id=call_id))
        self.feed(s.ResponseFinished(response_id=response, status="completed", has_speech=False))

    def speak(self, words: str = SPOKEN, *, status: s.ResponseStatus = "completed", is_played: bool = True) -> None:
        """The response that was requested last says this."""
        number = next(self._numbers)
        response = f"r{number}"
        request = self.of(s.RequestResponse)[-1].request_id
        self.feed(s.ResponseStarted(response_id=response, request_id=request), s.PlaybackStarted(response_id=response))
        self.feed(s.ResponseFinished(response_id=response, status=status, request_id=request, words=words))
        self.feed(s.PlaybackStopped(response_id=response) if is_played else s.PlaybackCleared(response_id=response))

    def hear(self, transcript: str | None = "", *, is_written: bool = True) -> str:
        """The caller says something, and the provider's own reply to it is over."""
        number = next(self._numbers)
        item, response = f"item{number}", f"r{number}"
        self.feed(s.CallerStarted(item_id=item), s.CallerStopped(item_id=item))
        if is_written:
            self.feed(s.CallerTranscribed(item_id=item, transcript=transcript))
        self.feed(s.ResponseStarted(response_id=response), s.ResponseFinished(response_id=response, status="completed"))
        return item

    def state(self, token: str = "t1") -> str:
        return self.machine.confirmations.state(token)
