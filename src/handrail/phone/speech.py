"""Who may speak, and what the agent has to say: one response at a time, and none while the caller speaks."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from handrail.phone import signals as s
from handrail.phone.call_limits import MachineOptions
from handrail.phone.signals import Command, Purpose

_MAX_DELAY: Final = 8.0
_ORDER: Final[Mapping[Purpose, int]] = {
    "greeting": 0,
    "apology": 0,
    "announcement": 1,
    "goodbye": 1,
    "operator": 1,
    "reply": 2,
    "read_back": 3,
    "wrap_up": 4,
    "filler": 5,
}
_DROPPED_BY_CALLER: Final = ("filler", "greeting")
_ENDING: Final = ("announcement", "goodbye", "apology")
_BY_OPERATOR: Final = (*_ENDING, "operator")
_SAID_AGAIN: Final = ("greeting", "apology", "announcement", "goodbye", "operator", "read_back")


class Speech(Struct, eq=False):
    """Something that the agent has to say."""

    purpose: Purpose
    instructions: str | None = None
    token: str = ""
    """The approval that a read-back is about."""
    covers: tuple[str, ...] = ()
    attempts: int = 0
    is_complete: bool = False
    words: str = ""
    """What the response said, in writing."""


class ResponseRequest(Struct, frozen=True, kw_only=True):
    """A response that was asked for and has not begun."""

    id: str
    speech: Speech


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
        self.failures = 0
        """How many responses have failed, one after the other."""
        self._echoes_requests = False
        """Whether the provider says which request a response answers."""
        self._finished: deque[str] = deque(maxlen=32)
        """The newest responses that are over."""

    @property
    def has_response(self) -> bool:
        """Whether a response is being generated, or was asked for."""
        return self.active is not None or self._requested is not None

    @property
    def is_busy(self) -> bool:
        """Whether a response must not be asked for now."""
        return self.has_response or self.is_caller_speaking or self.awaits_turn or self._is_blocked

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

    def answers_request(self, request_id: str | None) -> bool:
        """Whether a response that begins is the one that was asked for.

        Some servers do not say which request a response answers: then it is the one that is out, unless the provider
        is about to answer the caller by itself.
        """
        self._echoes_requests = self._echoes_requests or request_id is not None
        if request_id is None and not self._echoes_requests:
            return self._requested is not None and not self.awaits_turn and not self.is_caller_speaking
        return self.is_requested(request_id)

    def extend(self, *, has_called: bool = False) -> None:
        """The response that is being generated goes on; after a tool call that is not for long."""
        self._start("response", self._options.call_timeout if has_called else self._options.response_timeout)

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

    def fail(self) -> None:
        """A response failed: hold the next one back, longer each time."""
        self.failures += 1
        self.block(min(self._options.retry_delay * 2 ** min(self.failures - 1, 3), _MAX_DELAY))

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


class Speeches:
    """The speeches that wait, and those that a response is saying."""

    def __init__(self, *, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self.waiting: list[Speech] = []
        self._speaking: dict[str, Speech] = {}
        """What was asked for, by response, until it was heard."""
        self._playing: set[str] = set()
        self._unplayed: dict[str, float] = {}
        """The length of the responses that are complete and may not have been heard."""
        self.has_playback = False
        """Whether the provider tells what the caller hears."""

    # What waits.

    def add(self, purpose: Purpose, instructions: str, *, token: str = "", covers: tuple[str, ...] = ()) -> None:
        """Say something as soon as nobody speaks, once; a new read-back of an approval replaces the one that waits."""
        if token:
            self.waiting = [speech for speech in self.waiting if speech.token != token]
        elif any((speech.purpose, speech.instructions) == (purpose, instructions) for speech in self.waiting):
            return
        self.waiting.append(Speech(purpose, instructions, token, covers))

    def next(self, *, is_ending: bool, is_handed_off: bool, has_reply: bool, may_ask: bool) -> Speech | None:
        """The most urgent speech that may be said now; None if there is none, or if a reply is more urgent.

        Nothing is read back while the caller has not answered what was read back before.
        """
        only = _ENDING if is_ending else _BY_OPERATOR if is_handed_off else None
        may_ask = may_ask and not any(speech.purpose == "read_back" for speech in self._speaking.values())
        allowed = [
            speech
            for speech in self.waiting
            if (only is None or speech.purpose in only) and (may_ask or speech.purpose != "read_back")
        ]
        first = min(allowed, key=lambda speech: _ORDER[speech.purpose], default=None)
        if first is None or (has_reply and _ORDER[first.purpose] > _ORDER["reply"]):
            return None
        self.waiting.remove(first)
        return first

    @property
    def read_backs(self) -> frozenset[str]:
        """The calls that a waiting read-back speaks about."""
        return frozenset(id for speech in self.waiting for id in speech.covers if speech.purpose == "read_back")

    def drop(self, purpose: Purpose | None) -> None:
        """Do not say what has this purpose."""
        self.waiting = [speech for speech in self.waiting if speech.purpose != purpose]

    def drop_read_back(self, token: str) -> None:
        """Do not ask about an approval."""
        self.waiting = [speech for speech in self.waiting if speech.token != token]

    def list_read_backs(self) -> list[str]:
        """The approvals that wait to be asked about."""
        return [speech.token for speech in self.waiting if speech.purpose == "read_back"]

    def drop_for_caller(self) -> None:
        """The caller speaks: do not say what was meant for silence."""
        self.waiting = [speech for speech in self.waiting if speech.purpose not in _DROPPED_BY_CALLER]

    def say_again(self, speech: Speech, *, is_caller_speaking: bool) -> bool:
        """Say something again from its beginning; False if that was tried too often."""
        speech.attempts += 1
        speech.is_complete = False
        if speech.attempts >= self._max_attempts:
            return False
        if speech.purpose not in _DROPPED_BY_CALLER or not is_caller_speaking:
            self.waiting.insert(0, speech)
        return True

    @staticmethod
    def has_to_be_said(speech: Speech) -> bool:
        """Whether a failure of the provider is no reason to leave it out."""
        return speech.purpose in _SAID_AGAIN

    # What is heard.

    def begin(self, response_id: str, speech: Speech) -> None:
        """Note that a response began, and what it says."""
        self._speaking[response_id] = speech

    def get(self, response_id: str) -> Speech | None:
        """What a response says."""
        return self._speaking.get(response_id)

    def take(self, response_id: str) -> Speech | None:
        """What a response said: it was heard to its end, or broken off."""
        return self._speaking.pop(response_id, None)

    def take_complete(self) -> list[Speech]:
        """Everything that was generated to its end, and should have been heard by now."""
        found = [id for id, speech in self._speaking.items() if speech.is_complete]
        self.stop_playing()
        return [self._speaking.pop(id) for id in found]

    def take_unheard(self) -> list[Speech]:
        """Nothing is known to be heard any more; what has to be said all the same."""
        found = [speech for speech in self._speaking.values() if speech.purpose in _BY_OPERATOR]
        self._speaking.clear()
        self.stop_playing()
        return found

    def start_playing(self, response_id: str) -> None:
        """The caller hears a response."""
        self.has_playback = True
        self._playing.add(response_id)

    def stop_playing(self, response_id: str | None = None) -> None:
        """The caller does not hear a response any more; None: nor any other."""
        if response_id is None:
            self._playing.clear()
            self._unplayed.clear()
        else:
            self._playing.discard(response_id)
            self._unplayed.pop(response_id, None)

    def add_audio(self, response_id: str, seconds: float) -> None:
        """A response is complete, and takes so long to play."""
        self._unplayed[response_id] = seconds

    @property
    def unplayed_seconds(self) -> float:
        """How long everything takes to play that may not have been heard: by what the provider tells, or else since the
        caller spoke, or something was estimated to be over."""
        return sum(self._unplayed.values())

    @property
    def is_playing(self) -> bool:
        """Whether the caller hears something."""
        return bool(self._playing)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is being said, or about to be said, that the caller has to hear first."""
        waiting = any(speech.purpose == "announcement" for speech in self.waiting)
        return not (self._playing or self._speaking or waiting)


class Filler:
    """What the agent says while a tool takes long, a few times at most."""

    def __init__(self, speeches: Speeches, *, do: Callable[[Command], None], options: MachineOptions) -> None:
        self._speeches = speeches
        self._do = do
        self._options = options
        self._count = 0

    def reset(self) -> None:
        """The caller spoke: it may be said again."""
        self._count = 0

    def wait(self) -> None:
        """Wait for a silence, if it may be said again."""
        after = self._options.filler_after
        if after is not None and self._count < self._options.max_fillers:
            seconds = max(after, self._options.filler_every) if self._count else after
            self._do(s.StartTimer(name="filler", seconds=seconds))

    def say(self, *, is_quiet: bool, tools: Sequence[str], default: str) -> None:
        """Say it if nobody speaks, or wait for the next silence; a tool may have its own words for it."""
        if is_quiet and self._count < self._options.max_fillers:
            self._count += 1
            own = (self._options.fillers[name] for name in tools if name in self._options.fillers)
            self._speeches.add("filler", next(own, self._options.filler or default))
        self.wait()
