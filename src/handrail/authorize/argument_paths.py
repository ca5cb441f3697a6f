"""Paths into arguments: `to.country`, `items[0].price`, and `flights[].date` for every element."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from handrail.core.lazy_loading import LazyPattern
from handrail.errors import ConfigError
from handrail.schema.validation_errors import format_path

ABSENT: Final = object()
"""There is nothing at the path."""
EVERY: Final = -1
"""The step to every element of a list; no index of a path is negative."""

PathSteps: TypeAlias = tuple[str | int, ...]

_PATH: Final = LazyPattern(r"[^.\[\]]+(\[\d*\]|\.[^.\[\]]+)*")
_STEP: Final = LazyPattern(r"(\[)(\d*)\]|([^.\[\]]+)")


def parse_path(path: object) -> PathSteps:
    """The steps of a path; raises `ConfigError`."""
    if not isinstance(path, str) or not _PATH.compiled.fullmatch(path):
        raise ConfigError(
            f"{path!r} is not a path into the arguments; write it like `items[0].price`, or `items[].price` for all."
        )
    return tuple(
        (int(index) if index else EVERY) if bracket else name for bracket, index, name in _STEP.compiled.findall(path)
    )


def write_path(steps: Sequence[str | int]) -> str:
    """The path as it is written."""
    return format_path(["[]" if step == EVERY else step for step in steps]).replace(".[]", "[]")


def look_up(value: Any, steps: PathSteps) -> Any:
    """The value at a path without `[]`; `ABSENT` if there is none."""
    for step in steps:
        kind = list if isinstance(step, int) else Mapping
        if not isinstance(value, kind):
            return ABSENT
        try:
            value = cast(Any, value)[step]
        except (KeyError, IndexError):
            return ABSENT
    return value


def look_up_all(value: Any, steps: PathSteps) -> Iterator[tuple[PathSteps, Any]]:
    """Yield the values at a path with `[]`, each with its own path; nothing for an empty list."""
    if EVERY not in steps:
        yield steps, look_up(value, steps)
        return
    place = steps.index(EVERY)
    before, after = steps[:place], steps[place + 1 :]
    found = look_up(value, before)
    if not isinstance(found, list):
        yield steps, ABSENT
        return
    for number, element in enumerate(cast(list[Any], found)):
        for inner, leaf in look_up_all(element, after):
            yield (*before, number, *inner), leaf


def is_missing(value: Any, steps: PathSteps) -> bool:
    """Whether a path ends at something that is not there, or null; not at a value of another kind."""
    for step in steps:
        if value is None:
            return True
        if step == EVERY:
            return isinstance(value, list) and not value
        kind = list if isinstance(step, int) else Mapping
        if not isinstance(value, kind):
            return False
        try:
            value = cast(Any, value)[step]
        except (KeyError, IndexError):
            return True
    return value is None
