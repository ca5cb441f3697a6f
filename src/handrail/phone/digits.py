"""Keys that a caller presses, kept apart from everything that is written."""

import asyncio

from handrail.tenants.call_control import Digits


class DigitCollector:
    """Collects keys for one tool at a time; the keys themselves are only given to whoever knows their id."""

    def __init__(self) -> None:
        self._collected: dict[str, str] = {}
        self._pressed: asyncio.Queue[str] | None = None

    def press(self, key: str) -> None:
        """Take a key; one that nobody collects is dropped."""
        if self._pressed is not None:
            self._pressed.put_nowait(key)

    async def collect(self, *, max_digits: int, timeout: float, terminator: str) -> Digits | None:
        """Wait for keys until the terminator, the expected number, or a silence; None while others are collected."""
        if self._pressed is not None:
            return None
        pressed = self._pressed = asyncio.Queue[str]()
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
