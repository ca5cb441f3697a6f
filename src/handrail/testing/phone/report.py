"""What is to be said about a call, and about many: its timeline, what was left undone or not as expected."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, cast

from .call_record import ErrorRecord, HttpRecord, TimelineEntry, ToolCallRecord, TranscriptLine
from .script import (
    ExpectClient,
    ExpectDuplicates,
    ExpectEnded,
    ExpectErrors,
    ExpectHeard,
    ExpectHttp,
    ExpectNever,
    ExpectNeverVoiced,
    ExpectRan,
    ExpectResult,
    ExpectSaid,
    ExpectSilence,
    ExpectUnanswered,
    Script,
)
from .state import CallState, find

ANSWER_GRACE = 30.0
"""A tool call is unanswered if it has no output although the agent hung up, or this long before the call ended
otherwise. `PhoneCallEnded.unanswered` is counted in the same way."""
_BROKEN = ("tool_execution_failed", "outcome_unknown", "tool_timeout")
"""Failures of a tool itself: a call that has one of them does not pass without a word."""
VOICE_GRACE = 2.0
"""So many seconds of silence after an output without a response that speaks about it are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationResult:
    """Whether an expectation of the script was met."""

    is_met: bool
    expectation: str
    found: str
    call_id: str | None = None
    """The call whose result is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """The account of one simulated call."""

    call_id: str
    name: str
    ended: str | None
    """Why: caller, agent, transferred, rejected, expired, unanswered; None while it goes on."""
    duration: float
    calls: tuple[ToolCallRecord, ...]
    """The calls that the model completed."""
    unanswered: tuple[str, ...]
    """Completed calls that never got an output, although there was time."""
    cut_off: tuple[str, ...]
    """Completed calls without an output because the caller hung up soon after."""
    unseen: tuple[str, ...]
    """Completed calls without an output of which no sideband was told: it was not connected, or the event was lost."""
    never_voiced: tuple[str, ...]
    """Calls whose output was not followed by a response that could speak about it, although there was time."""
    duplicate_outputs: tuple[str, ...]
    unknown_outputs: tuple[str, ...]
    """Outputs for calls that the conversation does not have."""
    errors: tuple[ErrorRecord, ...]
    http: tuple[HttpRecord, ...]
    created_while_active: int
    time_to_voice: Mapping[str, float]
    """Seconds from an output to the first word after it, by call id."""
    longest_silence: float
    total_silence: float
    transcript: tuple[TranscriptLine, ...]
    timeline: tuple[TimelineEntry, ...]
    suppressed_calls: tuple[str, ...]
    """Calls of the script that the response was not allowed to make: it had no tools, or its tool choice was none."""
    unscripted_responses: int
    unused_model_entries: int
    problems: tuple[str, ...]
    """What the script asked for and did not happen."""
    outcomes: tuple[ExpectationResult, ...]

    @property
    def error_codes(self) -> tuple[str | None, ...]:
        return tuple(error.code for error in self.errors)

    @property
    def failures(self) -> tuple[str, ...]:
        """Every expectation that was not met, in words."""
        return tuple(f"{outcome.expectation}: {outcome.found}" for outcome in self.outcomes if not outcome.is_met)

    @property
    def broken(self) -> tuple[str, ...]:
        """Calls whose tool failed, unless the script expects a result of them: `{result: c1, ok: false}`."""
        expected = {outcome.call_id for outcome in self.outcomes if outcome.call_id is not None}
        return tuple(call.call_id for call in self.calls if call.error in _BROKEN and call.call_id not in expected)

    @property
    def ok(self) -> bool:
        """Whether every expectation was met, every call answered once, every result spoken, and no tool broken."""
        wrong = (self.failures, self.problems, self.unanswered, self.never_voiced, self.duplicate_outputs, self.broken)
        return not any(wrong)

    def check(self) -> None:
        """Raise an AssertionError that lists what is not as it should be."""
        if self.ok:
            return
        wrong = [*self.failures, *self.problems]
        wrong += [f"unanswered: {call_id}" for call_id in self.unanswered]
        wrong += [f"never voiced: {call_id}" for call_id in self.never_voiced]
        wrong += [f"answered more than once: {call_id}" for call_id in self.duplicate_outputs]
        wrong += [f"the tool failed: {call_id}" for call_id in self.broken]
        raise AssertionError(f"The call {self.call_id} did not go as expected:\n  " + "\n  ".join(wrong))

    def client_events(self, kind: str = "*", **where: Any) -> list[Mapping[str, Any]]:
        """The events that the client sent, of one type, with these values; `item__call_id` means `item.call_id`."""
        wanted = {name.replace("__", "."): value for name, value in where.items()}
        return [entry.data for entry in self.timeline if _is_client(entry, kind, wanted)]


def build_report(state: CallState) -> CallReport:
    """Make the account of a call as it is now."""
    record, script, now = state.record, state.script, state.clock.now
    ended_at = record.ended_at if record.ended_at is not None else now
    by_client = record.ended in ("agent", "transferred")
    missing = [call for call in record.calls.values() if call.answered_at is None]
    unseen = [call for call in missing if state.call_items[call.call_id] not in state.told_items]
    open_calls = [call for call in missing if call not in unseen]
    late = [call for call in open_calls if record.ended == "agent" or ended_at - call.at > ANSWER_GRACE]
    silences = list(record.silences)
    if state.quiet_since is not None and now > state.quiet_since:
        silences.append((state.quiet_since, now))
    answered = [call for call in record.calls.values() if call.answered_at is not None]
    unspoken = [
        call.call_id
        for call in answered
        if call.followed_at is None
        and not by_client
        and _free_time(call, record.calls.values(), silences) > VOICE_GRACE
    ]
    responses = sum(entry.type == "response.created" and entry.source == "server" for entry in record.timeline)
    report = CallReport(
        call_id=state.call_id,
        name=script.name,
        ended=record.ended,
        duration=ended_at,
        calls=tuple(record.calls.values()),
        unanswered=tuple(call.call_id for call in late),
        unseen=tuple(call.call_id for call in unseen),
        cut_off=tuple(call.call_id for call in open_calls if call not in late and record.ended is not None),
        never_voiced=tuple(unspoken),
        duplicate_outputs=tuple(record.duplicate_outputs),
        unknown_outputs=tuple(record.unknown_outputs),
        errors=tuple(record.errors),
        http=tuple(record.http),
        created_while_active=record.created_while_active,
        time_to_voice={
            call.call_id: call.voiced_at - call.answered_at
            for call in answered
            if call.voiced_at is not None and call.answered_at is not None
        },
        longest_silence=max((end - start for start, end in silences), default=0.0),
        total_silence=sum(end - start for start, end in silences),
        transcript=tuple(sorted(record.transcript, key=lambda line: line.at)),
        timeline=tuple(record.timeline),
        suppressed_calls=tuple(record.suppressed_calls),
        unscripted_responses=record.unscripted_responses,
        unused_model_entries=max(len(script.model) - responses, 0),
        problems=tuple(record.problems),
        outcomes=(),
    )
    return replace(report, outcomes=tuple(_evaluate(script, report, record.accepted_at or 0.0)))


def _free_time(call: ToolCallRecord, calls: Iterable[ToolCallRecord], silences: Iterable[tuple[float, float]]) -> float:
    """Seconds after an output in which nobody spoke and no other call waited for its output."""
    free, since = 0.0, call.answered_at or 0.0
    waits = sorted((other.at, other.answered_at if other.answered_at is not None else float("inf")) for other in calls)
    for start, end in silences:
        moment = max(start, since)
        for begin, answered in waits:
            if begin > moment:
                free += max(min(begin, end) - moment, 0.0)
            moment = max(moment, min(answered, end))
        free += max(end - moment, 0.0)
    return free


def _evaluate(script: Script, report: CallReport, accepted_at: float) -> Iterable[ExpectationResult]:
    for expectation in script.expect:
        wanted = expectation.model_dump(by_alias=True, exclude_unset=True)
        words = ", ".join(f"{name}: {value}" for name, value in wanted.items())
        match expectation:
            case ExpectClient():
                is_met, found = _evaluate_client(expectation, report, accepted_at)
            case ExpectNever():
                sent = [
                    entry
                    for entry in report.timeline
                    if _is_client(entry, expectation.never, expectation.where)
                    and (expectation.while_ is None or getattr(entry, expectation.while_))
                ]
                is_met, found = (
                    not sent,
                    f"sent {len(sent)} times, first at {sent[0].at:.2f} s" if sent else "never sent",
                )
            case ExpectHttp():
                made = [
                    request
                    for request in report.http
                    if request.verb == expectation.http and _matches(request.body, expectation.where)
                ]
                is_met, found = len(made) == expectation.times, f"{len(made)} times"
            case ExpectUnanswered():
                is_met, found = _compare(report.unanswered, expectation.unanswered)
            case ExpectNeverVoiced():
                is_met, found = _compare(report.never_voiced, expectation.never_voiced)
            case ExpectDuplicates():
                is_met, found = _compare(report.duplicate_outputs, expectation.duplicate_outputs)
            case ExpectErrors():
                codes = report.error_codes
                wish = expectation.errors
                is_met, found = (len(codes) == wish if isinstance(wish, int) else codes == wish), f"{list(codes)}"
            case ExpectEnded():
                is_met, found = report.ended == expectation.ended, f"it ended: {report.ended}"
            case ExpectHeard():
                said = [line.text for line in report.transcript if line.speaker == "agent"]
                is_met, found = any(expectation.heard in text for text in said), f"heard {said}"
            case ExpectResult():
                is_met, found = _evaluate_result(expectation, report)
            case ExpectSaid():
                said = [line.text for line in report.transcript if line.speaker == "agent"]
                wish = expectation.said.casefold()
                is_met, found = any(wish in text.casefold() for text in said), f"said {said}"
            case ExpectRan():
                ran = [call for call in report.calls if call.name == expectation.ran and call.output is not None]
                count = sum(call.error is None for call in ran)
                is_met, found = count == expectation.times, f"{count} times"
            case ExpectSilence():
                is_met = report.longest_silence <= expectation.max_silence
                found = f"{report.longest_silence:.2f} s"
        call_id = expectation.result if isinstance(expectation, ExpectResult) else None
        yield ExpectationResult(is_met=is_met, expectation=words, found=found, call_id=call_id)


def _evaluate_result(expectation: ExpectResult, report: CallReport) -> tuple[bool, str]:
    call = next((call for call in report.calls if call.call_id == expectation.result), None)
    if call is None or call.output is None:
        return False, "there is no such call" if call is None else "it has no result"
    is_ok = expectation.ok and expectation.error is None
    is_met = (call.error is None) is is_ok and expectation.error in (None, call.error)
    return is_met, f"it failed: {call.error}" if call.error is not None else "it succeeded"


def _evaluate_client(expectation: ExpectClient, report: CallReport, accepted_at: float) -> tuple[bool, str]:
    sent = [entry for entry in report.timeline if _is_client(entry, expectation.client, expectation.where)]
    if expectation.times is not None and len(sent) != expectation.times:
        return False, f"sent {len(sent)} times"
    if not sent:
        return expectation.times == 0, "never sent"
    if expectation.within is None:
        return True, f"sent at {sent[0].at:.2f} s"
    asked = {call.call_id: call.at for call in report.calls}
    since = asked.get(str(expectation.where.get("item.call_id")), accepted_at)
    took = sent[0].at - since
    return took <= expectation.within, f"after {took:.2f} s"


def _compare(found: tuple[str, ...], count: int) -> tuple[bool, str]:
    return len(found) == count, f"{len(found)} {list(found)}" if found else "0"


def _is_client(entry: TimelineEntry, kind: str, where: Mapping[str, Any]) -> bool:
    return entry.source == "client" and fnmatchcase(entry.type, kind) and _matches(entry.data, where)


def _matches(data: object, where: Mapping[str, Any]) -> bool:
    return all(find(data, *path.split(".")) == value for path, value in where.items())


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


_WIDTH = 100
_QUIET = frozenset(
    {
        "rate_limits.updated",
        "response.output_item.added",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.truncated",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "input_audio_buffer.dtmf_event_received",
        "output_audio_buffer.started",
        "output_audio_buffer.stopped",
        "session.updated",
        "response.created",
    }
)


def format_timeline(report: CallReport, *, verbose: bool = False) -> str:
    """Write a call down as lines: the time, who did it, and what; `verbose` has every event."""
    lines = list(_lines(report, verbose=verbose))
    lines.append(f"{report.duration:7.2f}  {'call':<7} ended: {report.ended or 'not yet'}")
    lines += [
        f"{'':7}  {'check':<7} {'ok  ' if outcome.is_met else 'FAIL'} {outcome.expectation}"
        + ("" if outcome.is_met else f" ({outcome.found})")
        for outcome in report.outcomes
    ]
    lines += [f"{'':7}  {'check':<7} FAIL {problem}" for problem in report.problems]
    counts = {
        "tool calls": len(report.calls),
        "unanswered": len(report.unanswered),
        "never voiced": len(report.never_voiced),
        "duplicate outputs": len(report.duplicate_outputs),
        "errors": len(report.errors),
    }
    lines.append(f"{'':7}  {'report':<7} " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    return "\n".join(lines)


def _lines(report: CallReport, *, verbose: bool) -> Iterator[str]:
    entries = sorted(report.timeline, key=_begin)
    for entry in entries:
        if entry.type != "call.ended" and (text := _describe(entry, verbose=verbose)) is not None:
            source = "model" if text.startswith(("calls ", "response ")) else entry.source
            yield f"{_begin(entry):7.2f}  {source:<7} {_cut(text)}"


def _begin(entry: TimelineEntry) -> float:
    return entry.data["started_at"] if entry.type == "speech" else entry.at


def _describe(entry: TimelineEntry, *, verbose: bool) -> str | None:
    data = entry.data
    match entry.source, entry.type:
        case (("agent" | "caller"), "speech"):
            return f'"{data["text"]}"'
        case "caller", "dtmf":
            return f"presses {data['key']}"
        case "caller", _:
            return "starts to speak" if verbose else None
        case "http", verb:
            status = data["status"] or "connection lost"
            return (
                f"{verb} {_compact(data['body'])} -> {status}" if verb != "accept" or verbose else f"accept -> {status}"
            )
        case "client", "conversation.item.create":
            return _describe_item(data.get("item"))
        case "client", kind:
            rest = _shorten_request(data, verbose=verbose)
            return f"{kind} {_compact(rest)}" if rest else kind
        case "server", "error":
            return f"error {find(data, 'error', 'code')}: {find(data, 'error', 'message')}"
        case "server", "response.output_item.done" if find(data, "item", "type") == "function_call":
            name, arguments, call_id, status = (
                find(data, "item", field) for field in ("name", "arguments", "call_id", "status")
            )
            return f"calls {name} {arguments} as {call_id}{'' if status == 'completed' else ' (incomplete)'}"
        case "server", "response.done":
            status, response_id = find(data, "response", "status"), find(data, "response", "id")
            if status == "completed" and not verbose:
                return None
            return f"response {response_id} {status} {_compact(find(data, 'response', 'status_details'))}"
        case "server", "response.output_item.done":
            return entry.type if verbose else None
        case "server", kind:
            return kind if verbose or kind not in _QUIET else None
        case "call", kind:
            return f"{kind} {_compact(data)}"
        case _:
            return None


def _shorten_request(data: dict[str, Any], *, verbose: bool) -> dict[str, Any]:
    """What a client event says, without ids and, unless everything is wanted, without the marks of the client."""
    rest = {name: value for name, value in data.items() if name not in ("type", "event_id")}
    response = rest.get("response")
    if isinstance(response, dict) and not verbose:
        response = cast(dict[str, Any], response)
        rest = {name: value for name, value in response.items() if name != "metadata"}
    return rest


def _describe_item(item: Any) -> str:
    if isinstance(item, dict):
        item = cast(dict[str, Any], item)
        if item.get("type") == "function_call_output":
            return f"output of {item.get('call_id')}: {item.get('output')}"
    return f"conversation.item.create {_compact(item)}"


def _compact(value: object) -> str:
    return "" if value in (None, {}) else json.dumps(value, ensure_ascii=False, default=str)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
