"""What became of the request of one call, as far as the transport knows."""

from contextvars import ContextVar
from typing import Final

from msgspec import Struct

_REFUSED: Final = frozenset({400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 421, 422, 426, 429, 431, 451})
"""HTTP answers after which a request has done nothing: it was refused before anything ran."""


class RequestTrace(Struct, eq=False, kw_only=True):
    """Whether the request of a call has left this process, and whether the server took it; transports write it."""

    was_sent: bool = False
    """A message of this call has left this process. A call may send several."""
    was_held: bool = False
    """A message waited to be sent, or could not be sent."""
    was_accepted: bool = False
    """The server answered a message with success."""
    status: int | None = None
    """The HTTP status of the last answer to a message."""
    problem: str = ""

    @property
    def is_unsent(self) -> bool:
        """Whether nothing of this call has left this process."""
        return self.was_held and not self.was_sent

    @property
    def is_refused(self) -> bool:
        """Whether the server certainly did nothing."""
        return self.is_unsent or (self.status in _REFUSED and not self.was_accepted)

    @property
    def reason(self) -> str:
        """What went wrong, for the operator."""
        return self.problem or (f"HTTP status {self.status}" if self.status is not None else "")


current_trace: ContextVar[RequestTrace | None] = ContextVar("current_trace", default=None)
"""Where the request of the current call is noted; the SDK sends it in the caller's context, or in a copy of it."""
