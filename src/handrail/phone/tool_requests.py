"""What tools ask of the phone call they run in (transfer it, end it, collect digits), until there is an answer."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from handrail.phone import signals as s
from handrail.tenants.call_control import Digits, HangUpOutcome, TransferOutcome

_KEPT_FOR: Final = 10.0
"""Seconds for which keys are kept that nobody collects."""
_MAX_KEPT: Final = 64


class ToolRequests:
    """What tools have asked of one phone call, until the state machine has an answer."""

    def __init__(self, feed: Callable[[s.Signal], None]) -> None:
        self.digits = DigitCollector()
        self._feed = feed
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._requests = itertools.count(1)

    async def transfer(
        self, target_uri: str, *, announcement: str, call_id: str | None = None, output: str = ""
    ) -> TransferOutcome:
        """Announce the transfer, and transfer the call."""
        request_id = f"transfer_{next(self._requests)}"
        return await self._ask(
            request_id,
            s.TransferRequested(
                request_id=request_id, target_uri=target_uri, announcement=announcement, call_id=call_id, output=output
            ),
        )

    async def hang_up(self, call_id: str, *, goodbye: str) -> HangUpOutcome:
        """Say goodbye and end the call, after the output of the tool call that asked for it."""
        request_id = f"hang_up_{next(self._requests)}"
        return await self._ask(request_id, s.HangUpRequested(request_id=request_id, call_id=call_id, goodbye=goodbye))

    def control_for(self, call_id: str) -> "ToolCallControl":
        """The call as one tool call sees it."""
        return ToolCallControl(self, call_id)

    def finish(self, request_id: str, outcome: TransferOutcome | HangUpOutcome) -> None:
        """Tell a tool what became of its request."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    async def _ask(self, request_id: str, signal: s.Signal) -> Any:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = waiting
        self._feed(signal)
        return await waiting


class ToolCallControl(Struct, frozen=True):
    """The call as one tool call sees it."""

    control: ToolRequests
    call_id: str

    async def transfer(self, target_uri: str, *, announcement: str = "", output: str = "") -> TransferOutcome:
        return await self.control.transfer(target_uri, announcement=announcement, call_id=self.call_id, output=output)

    async def hang_up(self, *, goodbye: str = "") -> HangUpOutcome:
        return await self.control.hang_up(self.call_id, goodbye=goodbye)

    async def collect_digits(self, *, max_digits: int, timeout: float, terminator: str = "#") -> Digits | None:
        return await self.control.digits.collect(max_digits=max_digits, timeout=timeout, terminator=terminator)

    def digits(self, digits_id: str) -> str:
        return self.control.digits.get(digits_id)


class DigitCollector:
    """Collects keys for one tool at a time; the keys themselves are only given to whoever knows their id."""

    def __init__(self) -> None:
        self._collected: dict[str, str] = {}
        self._pressed: asyncio.Queue[str] | None = None
        self._kept: deque[tuple[float, str]] = deque(maxlen=_MAX_KEPT)
        """Keys that were pressed before anybody collected them, and when."""

    @property
    def is_collecting(self) -> bool:
        """Whether a tool waits for keys."""
        return self._pressed is not None

    def press(self, key: str) -> None:
        """Take a key; one that nobody collects is kept for a while: people type while the agent still speaks."""
        if self._pressed is not None:
            self._pressed.put_nowait(key)
        else:
            self._kept.append((asyncio.get_running_loop().time(), key))

    async def collect(self, *, max_digits: int, timeout: float, terminator: str) -> Digits | None:
        """Wait for keys until the terminator, the expected number, or a silence; None while others are collected."""
        if self._pressed is not None:
            return None
        pressed = self._pressed = asyncio.Queue[str]()
        now = asyncio.get_running_loop().time()
        for at, key in self._kept:
            if now - at <= _KEPT_FOR:
                pressed.put_nowait(key)
        self._kept.clear()
        keys = ""
        complete = False
        try:
            while not complete:
                async with asyncio.timeout(timeout):
                    key = await pressed.get()
                if key != terminator:
                    keys += key
                complete = key == terminator or len(keys) >= max_digits
        except TimeoutError:
            pass
        finally:
            self._pressed = None
        digits_id = f"digits_{len(self._collected) + 1}"
        self._collected[digits_id] = keys
        return Digits(digits_id=digits_id, count=len(keys), complete=complete)

    def get(self, digits_id: str) -> str:
        """The keys of an id, or `KeyError`."""
        return self._collected[digits_id]
