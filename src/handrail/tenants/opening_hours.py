"""When somebody can be reached, and what is different in a phone call outside these hours."""

from datetime import date, datetime, time
from typing import Annotated, Any, Final, Self, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from handrail.core.lazy_loading import LazyPattern
from handrail.tenants.section import Section, Text

WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN: Final = LazyPattern(r"([0-2][0-9]:[0-5][0-9])-([0-2][0-9]:[0-5][0-9])")


def _check_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"must be a time zone such as 'Europe/Paris', got {name!r}") from error
    return name


Timezone = Annotated[str, AfterValidator(_check_zone)]


def _read_span(text: str) -> tuple[time, time]:
    found = _SPAN.compiled.fullmatch(text)
    if found is None:
        raise ValueError(f"must be written as '09:00-17:30', got {text!r}")
    begin, end = found.groups()
    last = time.max if end == "24:00" else time.fromisoformat(end)
    first = time.fromisoformat(begin)
    if first >= last:
        raise ValueError(f"must end after it begins, got {text!r}")
    return first, last


def _check_span(text: str) -> str:
    _read_span(text)
    return text


Span = Annotated[str, AfterValidator(_check_span)]


class OpeningHours(BaseModel):
    """The hours of each weekday, such as `mon: ["09:00-12:00", "13:00-17:00"]`; a day that is left out is closed."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    mon: tuple[Span, ...] = ()
    tue: tuple[Span, ...] = ()
    wed: tuple[Span, ...] = ()
    thu: tuple[Span, ...] = ()
    fri: tuple[Span, ...] = ()
    sat: tuple[Span, ...] = ()
    sun: tuple[Span, ...] = ()
    closed_on: tuple[date, ...] = ()
    """Holidays."""
    timezone: Timezone | None = None
    """The tenant's, unless this says another."""

    @model_validator(mode="before")
    @classmethod
    def _take_one_span(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = cast(dict[str, Any], value)
        return {key: [span] if key in WEEKDAYS and isinstance(span, str) else span for key, span in given.items()}

    def is_open(self, at: datetime, *, timezone: str = "UTC") -> bool:
        """Whether this moment lies within the hours."""
        local = at.astimezone(ZoneInfo(self.timezone or timezone))
        if local.date() in self.closed_on:
            return False
        spans = cast(tuple[str, ...], getattr(self, WEEKDAYS[local.weekday()]))
        return any(first <= local.time() < last for first, last in map(_read_span, spans))

    @classmethod
    def always(cls) -> Self:
        """Every hour of every day."""
        return cls(**dict.fromkeys(WEEKDAYS, ("00:00-24:00",)))  # pyright: ignore[reportArgumentType]


class OutOfHours(Section):
    """What is different outside the tenant's `opening_hours`."""

    greeting: Annotated[str, Field(max_length=2_000)] | None = None
    """The first words in place of `greeting`."""
    instructions: Text = ""
    """Added to `instructions`: what the agent can offer now, and the way out."""
    exclude: tuple[str, ...] = ()
    """Tools that such a call does not have, by name."""
