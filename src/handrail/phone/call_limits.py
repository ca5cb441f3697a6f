"""The limits of one phone call: how long it may last, how long nobody may speak, how many tokens it may use."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from handrail.phone import signals as s
from handrail.phone.signals import Command, Purpose
from handrail.tenants.texts import Texts


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


class CallLimits:
    """Starts the timers of one call, and has the agent bring it to its end."""

    def __init__(
        self,
        *,
        do: Callable[[Command], None],
        say: Callable[[Purpose, str], None],
        texts: Texts,
        options: MachineOptions,
    ) -> None:
        self._do = do
        self._say = say
        self._texts = texts
        self._options = options
        self._tokens = 0
        self._is_wrapping_up = False
        self.is_extended = False
        """Whether the time to bring the call to its end was over, and more was given."""

    def start(self) -> None:
        """The call begins."""
        self._do(s.StartTimer(name="max_duration", seconds=self._options.max_duration))
        self.touch()

    def touch(self) -> None:
        """Something happens: the silence begins anew."""
        if self._options.idle_timeout is not None:
            self._do(s.StartTimer(name="idle", seconds=self._options.idle_timeout))

    def count_tokens(self, count: int) -> None:
        """A response has used tokens."""
        self._tokens += count
        limit = self._options.max_tokens
        if limit is not None and self._tokens > limit and not self._is_wrapping_up:
            self._do(s.Note(name="token_budget_exceeded", severity="warning", fields={"tokens": self._tokens}))
            self.wrap_up()

    def wrap_up(self) -> None:
        """Have the agent bring the call to its end, once."""
        if not self._is_wrapping_up:
            self._is_wrapping_up = True
            self._start_wrap_up()
            self._say("wrap_up", self._texts("say.wrap_up"))

    def extend(self) -> None:
        """Give the agent some more time before the call is ended."""
        self.is_extended = True
        self._start_wrap_up()

    def _start_wrap_up(self) -> None:
        self._do(s.StartTimer(name="wrap_up", seconds=self._options.wrap_up))
