"""A call as text that a person can read, one line for each thing that happened."""

import json
from collections.abc import Iterator
from typing import Any, cast

from .call_record import TimelineEntry
from .report import CallReport
from .state import find

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
