"""What became of the request of one call, as far as the transport knows."""

from contextvars import ContextVar
from typing import Final

_REFUSED: Final = frozenset({400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 421, 422, 426, 429, 431, 451})
"""HTTP answers after which a request has done nothing: it was refused before anything ran."""


class RequestTrace:
    """Whether the request of a call has left this process, and whether the server took it."""

    def __init__(self) -> None:
        self.status: int | None = None
        """The HTTP status of the last answer to a message."""
        self.problem: str = ""
        self.is_unsent = False
        """Nothing of this call has left this process."""
        self._was_sent = False
        self._was_accepted = False

    def mark_sent(self) -> None:
        """A message leaves this process. A call may send several; after the first one it counts as sent."""
        self.is_unsent, self._was_sent = False, True

    def mark_unsent(self) -> None:
        """A message waits to be sent, or could not be sent."""
        self.is_unsent = not self._was_sent

    def mark_status(self, status: int) -> None:
        """The server answered a message with this HTTP status."""
        self.status, self.problem = status, ""
        self._was_accepted = self._was_accepted or status < 300

    @property
    def is_refused(self) -> bool:
        """Whether the server certainly did nothing."""
        return self.is_unsent or (self.status in _REFUSED and not self._was_accepted)

    @property
    def reason(self) -> str:
        """What went wrong, for the operator."""
        return self.problem or (f"HTTP status {self.status}" if self.status is not None else "")


current_trace: ContextVar[RequestTrace | None] = ContextVar("current_trace", default=None)
"""Where the request of the current call is noted; the SDK sends it in the caller's context, or in a copy of it."""
