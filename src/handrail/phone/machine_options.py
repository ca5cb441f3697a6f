"""The limits of one phone call."""

from collections.abc import Mapping

from msgspec import Struct


class MachineOptions(Struct, frozen=True, kw_only=True):
    """The limits of one call, in seconds and numbers."""

    greeting: str = ""
    """Instructions for the first response; without them the caller speaks first."""
    max_duration: float = 3_000.0
    """Seconds after which the agent brings the call to its end."""
    wrap_up: float = 60.0
    """Time to bring a call to its end after `max_duration`."""
    idle_timeout: float | None = 300.0
    """Seconds in which nobody speaks, after which the call ends; None is never."""
    max_tool_calls: int = 200
    """Tool calls in one phone call."""
    max_tokens: int | None = None
    """Tokens of the provider after which the call is brought to its end."""
    max_consecutive_calls: int = 8
    """Tool calls without a word of the caller, after which the agent has to speak first."""
    filler_after: float | None = 4.0
    """Silence while a tool runs, after which the agent says that it is still working; None: it says nothing."""
    filler_every: float = 6.0
    """How long after that it says so again."""
    max_fillers: int = 10
    """How often it says so without a word of the caller."""
    filler: str = ""
    """Instructions for these words; the locale's own if empty."""
    fillers: Mapping[str, str] = {}
    """Instructions for these words while a certain tool runs, by its name."""
    has_transcripts: bool = False
    """Whether what the caller says is transcribed; a transcript that refuses withdraws a confirmation."""
    request_timeout: float = 5.0
    """How long a requested response may take to begin."""
    response_timeout: float = 20.0
    """How long nothing may come of a response that is being generated, after which its end counts as missed."""
    call_timeout: float = 3.0
    """The same, after the response has completed a tool call."""
    is_tool_choice_forced: bool = False
    """Whether the model has to call a tool in its first own response."""
    turn_timeout: float = 2.0
    """How long the provider may take to answer the caller by itself."""
    playout_timeout: float = 20.0
    """How long it may take until something was heard, where nobody knows how long it is."""
    words_timeout: float = 3.0
    """How long the transcript of what the caller says over an announcement is waited for."""
    trying_after: float = 3.0
    """How long a transfer may take before the caller hears that it is being tried."""
    trying_every: float = 7.0
    """How long after that the caller hears it again."""
    transfer_grace: float = 15.0
    """How long a transferred call may take to end."""
    batch_timeout: float = 1.5
    """How long a result waits for those of the calls that were made with it."""
    retry_delay: float = 1.0
    """Seconds before a response that failed is requested again; they double each time."""
    max_attempts: int = 5
    """How often a result is brought to the model's attention before it counts as never spoken."""
