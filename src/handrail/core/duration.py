"""Durations as people write them."""

from typing import Final

from handrail.errors import ConfigError

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_duration(text: str) -> float:
    """Seconds from `90`, `90s`, `5m`, `2h` or `7d`; `ConfigError` for anything else."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1.0)
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise ConfigError(f"a duration must be like 90s, 5m, 2h or 7d, got {text!r:.50}.")
    return int(number) * unit
