"""The account of many calls in a few figures."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .report import CallReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """How long something took, in seconds."""

    count: int
    p50: float
    p95: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is to be said about many calls."""

    calls: int
    ended: Mapping[str, int]
    tool_calls: int
    unanswered: int
    unseen: int
    cut_off: int
    never_voiced: int
    duplicate_outputs: int
    unknown_outputs: int
    created_while_active: int
    errors: Mapping[str, int]
    problems: int
    failures: int
    """Expectations that were not met."""
    call_to_output: Percentiles
    """From the completed call to its output."""
    output_to_voice: Percentiles
    longest_silence: float

    @property
    def ok(self) -> bool:
        """Whether every call was answered once and every result spoken, as expected."""
        counts = (self.unanswered, self.never_voiced, self.duplicate_outputs, self.problems, self.failures)
        return not any(counts)


def summarise(reports: Iterable[CallReport]) -> Summary:
    """Add reports up."""
    every = list(reports)
    calls = [call for report in every for call in report.calls]
    return Summary(
        calls=len(every),
        ended=dict(Counter(report.ended or "not yet" for report in every)),
        tool_calls=len(calls),
        unanswered=sum(len(report.unanswered) for report in every),
        unseen=sum(len(report.unseen) for report in every),
        cut_off=sum(len(report.cut_off) for report in every),
        never_voiced=sum(len(report.never_voiced) for report in every),
        duplicate_outputs=sum(len(report.duplicate_outputs) for report in every),
        unknown_outputs=sum(len(report.unknown_outputs) for report in every),
        created_while_active=sum(report.created_while_active for report in every),
        errors=dict(Counter(code or "none" for report in every for code in report.error_codes)),
        problems=sum(len(report.problems) for report in every),
        failures=sum(len(report.failures) for report in every),
        call_to_output=_measure(call.answered_at - call.at for call in calls if call.answered_at is not None),
        output_to_voice=_measure(value for report in every for value in report.time_to_voice.values()),
        longest_silence=max((report.longest_silence for report in every), default=0.0),
    )


def _measure(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)
    if not ordered:
        return Percentiles(count=0, p50=0.0, p95=0.0, maximum=0.0)
    last = len(ordered) - 1
    return Percentiles(
        count=len(ordered), p50=ordered[round(last * 0.5)], p95=ordered[round(last * 0.95)], maximum=ordered[last]
    )
