"""Whose turn it is to speak: at most one response at a time, and none while the caller speaks."""

from collections import deque
from collections.abc import Callable

from handrail.phone import signals as s
from handrail.phone.machine_state import MachineOptions, ResponseRequest, Speech
from handrail.phone.signals import Command

_MAX_DELAY = 8.0


class ResponseSlot:
    """The one response that may be under way, from the moment it is asked for until it is over."""

    def __init__(self, *, do: Callable[[Command], None], options: MachineOptions) -> None:
        self._do = do
        self._options = options
        self.active: str | None = None
        """The response that is being generated."""
        self.is_caller_speaking = False
        self.awaits_turn = False
        """The caller's turn is over, and the provider is about to answer it."""
        self.owes_turn = False
        """The caller's turn, or a message, needs a response that nobody has asked for."""
        self._requested: ResponseRequest | None = None
        self._is_blocked = False
        """Responses are held back until a timer fires."""
        self._failures = 0
        self._finished: deque[str] = deque(maxlen=32)
        """The newest responses that are over."""

    @property
    def is_busy(self) -> bool:
        """Whether a response must not be asked for now."""
        return (
            self.active is not None
            or self._requested is not None
            or self.is_caller_speaking
            or self.awaits_turn
            or self._is_blocked
        )

    # Responses.

    def request(self, request_id: str, speech: Speech, *, allow_tools: bool) -> None:
        """Ask for a response: the slot is taken from now on."""
        self._requested = ResponseRequest(id=request_id, speech=speech)
        self._start("request", self._options.request_timeout)
        self._do(
            s.RequestResponse(
                request_id=request_id,
                purpose=speech.purpose,
                instructions=speech.instructions,
                allow_tools=allow_tools,
            )
        )

    def is_requested(self, request_id: str | None) -> bool:
        """Whether this is the request that waits for its response."""
        return self._requested is not None and self._requested.id == request_id

    def take_request(self) -> Speech | None:
        """What was asked for and has not begun: it is asked for no longer."""
        request, self._requested = self._requested, None
        if request is None:
            return None
        self._stop("request")
        return request.speech

    def is_over(self, response_id: str) -> bool:
        """Whether a response is known to be over."""
        return response_id in self._finished

    def begin(self, response_id: str) -> str | None:
        """A response began; the one before it, if its end was missed."""
        self.answer_turn()
        if self._is_blocked:
            self._is_blocked = False
            self._stop("blocked")
        missed, self.active = self.active, response_id
        self._start("response", self._options.response_timeout)
        return missed

    def finish(self, response_id: str) -> None:
        """A response is over."""
        self._finished.append(response_id)
        if self.active == response_id:
            self.active = None
            self._stop("response")

    # The caller's turn.

    def start_caller(self) -> None:
        """The caller speaks."""
        self.is_caller_speaking = True
        self.answer_turn()

    def await_turn(self) -> None:
        """The provider is about to answer the caller by itself."""
        self.awaits_turn = True
        self._start("turn", self._options.turn_timeout)

    def miss_turn(self) -> None:
        """The provider did not answer the caller: somebody has to ask for it."""
        self.awaits_turn, self.owes_turn = False, True

    def answer_turn(self) -> None:
        """Nobody waits for an answer any more."""
        self.awaits_turn = self.owes_turn = False
        self._stop("turn")

    # Failures.

    def succeed(self) -> None:
        """A response was complete."""
        self._failures = 0

    def fail(self) -> None:
        """A response failed: hold the next one back, longer each time."""
        self._failures += 1
        self.block(min(self._options.retry_delay * 2 ** min(self._failures - 1, 3), _MAX_DELAY))

    def block(self, delay: float | None = None) -> None:
        """Hold responses back for a while."""
        self._is_blocked = True
        self._start("blocked", self._options.retry_delay if delay is None else delay)

    def unblock(self) -> None:
        """Responses may be asked for again."""
        self._is_blocked = False

    def disconnect(self) -> None:
        """Nothing is known of what is being said."""
        self.active = None
        self.is_caller_speaking = self.awaits_turn = False

    def _start(self, name: str, seconds: float) -> None:
        self._do(s.StartTimer(name=name, seconds=seconds))

    def _stop(self, name: str) -> None:
        self._do(s.StopTimer(name=name))
