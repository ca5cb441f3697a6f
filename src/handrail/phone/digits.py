"""The keys that the caller presses: collected for one tool at a time, or kept for the next one that asks."""

import asyncio
from collections import deque
from typing import Final

from handrail.tenants.call_control import Digits

_KEPT_FOR: Final = 10.0
"""Seconds for which keys are kept that nobody collects."""
_MAX_KEPT: Final = 64


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
