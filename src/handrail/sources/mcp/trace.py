"""What became of the request of one call, as far as the transport knows."""

from contextvars import ContextVar
from typing import Final

_REFUSED: Final = frozenset({400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 421, 422, 426, 429, 431, 451})
"""HTTP answers after which a request has done nothing: it was refused before anything ran."""


class RequestTrace:
    """Whether a request has left this process, and how the transport fared with it."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.problem: str = ""
        self.is_unsent = False
        """Nothing of this call has left this process."""
        self._was_sent = False

    def mark_sent(self) -> None:
        """A request goes out. A call may make several; after the first one it has been sent."""
        self.is_unsent, self._was_sent = False, True

    def mark_unsent(self) -> None:
        """A request waits to go out, or could not."""
        self.is_unsent = not self._was_sent

    @property
    def is_refused(self) -> bool:
        """Whether the server certainly did nothing."""
        return self.is_unsent or self.status in _REFUSED

    @property
    def reason(self) -> str:
        """What went wrong, for the operator."""
        return self.problem or (f"HTTP status {self.status}" if self.status is not None else "")


current_trace: ContextVar[RequestTrace | None] = ContextVar("current_trace", default=None)
"""Where the request of the current call is noted; the SDK sends it in the caller's context, or in a copy of it."""
