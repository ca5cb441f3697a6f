"""What a phone call's state machine is told, and what it wants done: frozen values that no transport owns."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from handrail.core.values import ToolCall
from handrail.tenants.call_control import HangUpOutcome, TransferOutcome

Purpose = Literal[
    "reply", "greeting", "apology", "announcement", "goodbye", "operator", "read_back", "wrap_up", "filler"
]
ResponseStatus = Literal["completed", "cancelled", "failed", "incomplete"]
TransferAnswer = Literal["transferred", "failed", "unknown"]
"""What the provider made of a request to transfer: `unknown` is a server error, or no answer at all."""
EndReason = Literal["caller", "agent", "transferred", "expired", "lost", "rejected", "shutdown", "failed"]


class Signal(Struct, frozen=True, kw_only=True):
    """Something that happened."""


# What the provider tells.


class Connected(Signal, frozen=True, kw_only=True):
    """Events can be sent and are received; what happened before is not repeated."""

    resumed: bool = False


class Disconnected(Signal, frozen=True, kw_only=True):
    """Nothing can be sent, and what happens now is missed; the call may go on."""


class Ended(Signal, frozen=True, kw_only=True):
    """The call is over."""

    reason: EndReason


class ResponseStarted(Signal, frozen=True, kw_only=True):
    """The model began to answer."""

    response_id: str
    request_id: str | None = None
    """The request that led to it; None if the provider created it."""


class ResponseContinued(Signal, frozen=True, kw_only=True):
    """The model is still at its answer."""

    response_id: str


class ResponseFinished(Signal, frozen=True, kw_only=True):
    """The model's answer is complete, or broken off; it may still be playing."""

    response_id: str
    status: ResponseStatus
    reason: str = ""
    request_id: str | None = None
    has_speech: bool = True
    """Whether there is anything to hear in it."""
    words: str = ""
    """What it says, in writing; empty if the provider does not tell."""
    audio_seconds: float = 0.0
    """How long it takes to play, as far as that can be told."""
    usage: Mapping[str, int] = {}


class ToolCallOpened(Signal, frozen=True, kw_only=True):
    """The model began to write a tool call; nothing runs yet."""

    item_id: str


class ItemMissed(Signal, frozen=True, kw_only=True):
    """Something is in the conversation that was never told: it happened while there was no connection."""

    item_id: str


class ToolCallDropped(Signal, frozen=True, kw_only=True):
    """A tool call was broken off, and never runs."""

    item_id: str


class ToolCalled(Signal, frozen=True, kw_only=True):
    """A tool call is complete."""

    call: ToolCall


class OutputAdded(Signal, frozen=True, kw_only=True):
    """The output of a tool call is in the conversation: responses that start from now on know it."""

    call_id: str
    is_late: bool = False
    """Whether it is the result of a call that ran in the background."""


class RequestRejected(Signal, frozen=True, kw_only=True):
    """The provider refused something; None if it does not say what."""

    request_id: str | None
    code: str
    message: str = ""


class CallerStarted(Signal, frozen=True, kw_only=True):
    """The caller began to speak."""

    item_id: str = ""


class CallerStopped(Signal, frozen=True, kw_only=True):
    """The caller's turn is over; the provider answers it by itself."""

    item_id: str = ""


class CallerTranscribed(Signal, frozen=True, kw_only=True):
    """What the caller said, in writing; None if it was not understood."""

    item_id: str
    transcript: str | None


class SilenceNoticed(Signal, frozen=True, kw_only=True):
    """Nobody spoke for a while; the provider asks the model to speak."""


class PlaybackStarted(Signal, frozen=True, kw_only=True):
    """The caller begins to hear a response."""

    response_id: str


class PlaybackStopped(Signal, frozen=True, kw_only=True):
    """The caller has heard a response to its end."""

    response_id: str


class PlaybackCleared(Signal, frozen=True, kw_only=True):
    """The caller did not hear a response to its end."""

    response_id: str


class KeyPressed(Signal, frozen=True, kw_only=True):
    """The caller pressed a key."""

    key: str


# What the session tells.


class ToolFinished(Signal, frozen=True, kw_only=True):
    """A tool call has its result."""

    call_id: str
    output: str
    """The text for the model."""
    is_silent: bool = False
    """The result needs no words."""
    approval: str | None = None
    """The token of an approval that the caller has to give."""
    read_back: str = ""
    """What the caller has to agree to, in words."""
    values: tuple[Any, ...] = ()
    """What the agent has to say of it."""
    action: str = ""
    """What would be done, in words."""
    notice: str = ""
    """That it was done before, if it was: the agent has to say that first."""
    hands_off: bool = False
    """A person takes over: the agent stops talking."""
    is_transient: bool = False
    """The result is for one reply only, and leaves the conversation after it."""


class ToolContinues(Signal, frozen=True, kw_only=True):
    """A tool call takes long and goes on in the background; its result comes later, as `ToolFinished`."""

    call_id: str
    output: str
    """What the model is told meanwhile."""


class TransferRequested(Signal, frozen=True, kw_only=True):
    """A tool wants to transfer the call."""

    request_id: str
    target_uri: str
    announcement: str = ""
    call_id: str | None = None
    """The tool call that wants it; None for an operator."""
    output: str = ""
    """What the model is told once the provider has taken the request; the outcome comes later."""


class TransferAnswered(Signal, frozen=True, kw_only=True):
    """The provider answered the request to transfer the call, or nobody knows what it did."""

    outcome: TransferAnswer


class HangUpRequested(Signal, frozen=True, kw_only=True):
    """A tool, or the session itself, wants to end the call."""

    request_id: str | None = None
    call_id: str | None = None
    """The tool call that wants it; its output is sent before the call ends."""
    goodbye: str = ""


class OperatorReplied(Signal, frozen=True, kw_only=True):
    """A person wants these words said to the caller."""

    text: str


class HandedBack(Signal, frozen=True, kw_only=True):
    """The person is done: the agent may speak again."""


class TimerFired(Signal, frozen=True, kw_only=True):
    """A timer that the machine started."""

    name: str


class Command(Struct, frozen=True, kw_only=True):
    """Something to do."""


class ProviderCommand(Command, frozen=True, kw_only=True):
    """Something to send to the provider as an event."""


class RunTool(Command, frozen=True, kw_only=True):
    """Run a tool call; its result comes back as `ToolFinished`."""

    call: ToolCall
    turn: int


class IgnoreCall(Command, frozen=True, kw_only=True):
    """A tool call arrived again: it neither runs nor gets a second output."""

    call: ToolCall
    reason: Literal["already_pending", "already_executed", "other_arguments"]


class InterruptTools(Command, frozen=True, kw_only=True):
    """Interrupt the running calls of a response, each as its tool wants it."""

    response_id: str


class SendOutput(ProviderCommand, frozen=True, kw_only=True):
    """Send the output of a tool call."""

    request_id: str
    call_id: str
    provider_id: str | None = None
    """The id that the provider knows the call by, if it is another."""
    output: str


class SendMessage(ProviderCommand, frozen=True, kw_only=True):
    """Tell the model something that is no output of a call."""

    request_id: str
    text: str
    call_id: str | None = None
    """The tool call whose result it holds: that is data, which must not be taken for instructions."""


class RequestResponse(ProviderCommand, frozen=True, kw_only=True):
    """Ask the model to speak."""

    request_id: str
    purpose: Purpose
    instructions: str | None = None
    allow_tools: bool = True


class SetAutomaticTurns(ProviderCommand, frozen=True, kw_only=True):
    """Have the provider answer the caller by itself, or not."""

    is_automatic: bool


class ReleaseToolChoice(ProviderCommand, frozen=True, kw_only=True):
    """Let the model decide from now on whether it calls a tool."""


class CancelResponse(ProviderCommand, frozen=True, kw_only=True):
    """Stop a response that is being generated."""

    response_id: str


class DeleteItem(ProviderCommand, frozen=True, kw_only=True):
    """Take an item out of the conversation."""

    item_id: str = ""
    """The provider's own id of it."""
    sent_as: str = ""
    """Else what it was sent as: the call that it is the output of, or the request that sent it as a message."""


class RetrieveItem(ProviderCommand, frozen=True, kw_only=True):
    """Find out what became of a tool call whose end was missed."""

    item_id: str


class TransferCall(Command, frozen=True, kw_only=True):
    """Transfer the call, once; the outcome comes back as `TransferAnswered`."""

    target_uri: str


class HangUp(Command, frozen=True, kw_only=True):
    """End the call."""


class StartTimer(Command, frozen=True, kw_only=True):
    """Start a timer, or start it again."""

    name: str
    seconds: float


class StopTimer(Command, frozen=True, kw_only=True):
    """Stop a timer, if it runs."""

    name: str


class FinishTransfer(Command, frozen=True, kw_only=True):
    """Tell a tool what became of its transfer."""

    request_id: str
    outcome: TransferOutcome


class FinishHangUp(Command, frozen=True, kw_only=True):
    """Tell a tool what became of its wish to end the call."""

    request_id: str
    outcome: HangUpOutcome


class RefuseApproval(Command, frozen=True, kw_only=True):
    """The caller said no."""

    token: str
    turn: int


class ReportSpoken(Command, frozen=True, kw_only=True):
    """The caller begins to hear a response that knows these results."""

    call_ids: tuple[str, ...]


class FinishCall(Command, frozen=True, kw_only=True):
    """The call is over: settle what runs, and send nothing more."""

    reason: EndReason


class Note(Command, frozen=True, kw_only=True):
    """Write something to the log."""

    name: str
    severity: Literal["debug", "info", "warning", "error"] = "info"
    fields: Mapping[str, Any] = {}
