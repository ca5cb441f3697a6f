"""What the state machine of a phone call remembers: its limits, its tool calls, and what the agent has to say."""

from msgspec import Struct

from handrail.core.values import ToolCall
from handrail.phone.signals import Purpose


class MachineOptions(Struct, frozen=True, kw_only=True):
    """The limits of one call, in seconds and numbers."""

    greeting: str = ""
    """Instructions for the first response; without them the caller speaks first."""
    max_duration: float = 3_000.0
    wrap_up: float = 60.0
    """Time to bring a call to its end after `max_duration`."""
    idle_timeout: float | None = 300.0
    max_tool_calls: int = 200
    max_tokens: int | None = None
    """Tokens of the provider after which the call is brought to its end."""
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


class CallState(Struct):
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


class Speech(Struct, eq=False):
    """Something that the agent has to say."""

    purpose: Purpose
    instructions: str | None = None
    token: str = ""
    """The approval that a read-back is about."""
    covers: tuple[str, ...] = ()
    attempts: int = 0
    is_complete: bool = False


class ResponseRequest(Struct, frozen=True, kw_only=True):
    """A response that was asked for and has not begun."""

    id: str
    speech: Speech
