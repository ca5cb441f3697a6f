"""How long one phone call may last, how long nobody may speak, and how many tokens it may use."""

from collections.abc import Callable

from handrail.phone import signals as s
from handrail.phone.machine_options import MachineOptions
from handrail.phone.signals import Command, Purpose
from handrail.tenants.texts import Texts


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
            self.extend()
            self._say("wrap_up", self._texts("say.wrap_up"))

    def extend(self) -> None:
        """Give the agent some time before the call is ended."""
        self._do(s.StartTimer(name="wrap_up", seconds=self._options.wrap_up))
