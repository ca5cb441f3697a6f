"""OpenAI's Realtime events as signals, and commands as its client events. No other module knows these names."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast, get_args

from msgspec import structs

from handrail.core.text import escape_special_tokens
from handrail.core.values import ToolCall
from handrail.formats import openai_realtime as wire
from handrail.phone import signals as s
from handrail.phone.signals import ResponseStatus, Signal

_MAX_ITEMS: Final = 1_000
_MAX_CALLS: Final = 20_000
_REQUEST: Final = "handrail_request"
"""The key in a response's metadata that names the request it answers."""
_BYTES_PER_SECOND: Final = 48_000
"""16 bit at 24 kHz; telephone codecs have fewer, so that a read-back never counts as heard too early."""
_SECONDS_PER_TOKEN: Final = 0.05
_CHARS_PER_SECOND: Final = 12.0
_MAX_TOKENS: Final = 1_000_000_000
"""What is more is no number of tokens."""


def parse_event(data: str | bytes) -> Mapping[str, Any] | None:
    """One event from the socket; None if it is not a JSON object with a type."""
    try:
        event: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(cast(dict[str, Any], event).get("type"), str):
        return None
    return cast(dict[str, Any], event)


class RealtimeAdapter:
    """Translates for one phone call; it remembers the items whose end has not come."""

    def __init__(self, session: Mapping[str, Any] | None = None) -> None:
        """`session` is what the call was accepted with."""
        given = session or {}
        self._definitions: Sequence[Any] = given.get("tools", ())
        self._persona: str = given.get("instructions", "")
        """What the agent is told for every response: the instructions of one response would replace it."""
        listening = _mapping(_mapping(given.get("audio")).get("input"))
        self._turn_detection = {"type": "server_vad", **_mapping(listening.get("turn_detection"))}
        self._opened: dict[str, Mapping[str, Any]] = {}
        """The events that opened tool calls, by item: older servers name the tool only there."""
        self._read_calls: dict[str, ToolCall] = {}
        """The calls that were read, by their items: an event that repeats one may not name its response."""
        self._late: dict[str, str] = {}
        """The tool calls whose results were sent as messages, by the message's item."""
        self._outputs: dict[str, str] = {}
        """The tool calls whose results were sent as outputs, by the output's item."""
        self._audio: dict[str, int] = {}
        """The bytes of audio of each response, where the provider sends it here."""
        self._items: set[str] = set()
        """The items that were told."""

    def read(self, event: Mapping[str, Any]) -> list[Signal]:
        """The signals of one server event; none if it says nothing about the call, or nothing that makes sense."""
        match event["type"]:
            case "response.created":
                return self._read_created(_mapping(event.get("response")))
            case "response.done":
                return self._read_done(event)
            case (
                "response.output_audio_transcript.delta"
                | "response.output_text.delta"
                | "response.function_call_arguments.delta"
            ):
                return [s.ResponseContinued(response_id=_text(event.get("response_id")))]
            case "response.output_audio.delta":
                response_id, delta = _text(event.get("response_id")), _text(event.get("delta"))
                if len(self._audio) < _MAX_ITEMS:
                    self._audio[response_id] = self._audio.get(response_id, 0) + len(delta) * 3 // 4
                return [s.ResponseContinued(response_id=response_id)]
            case "response.output_item.added":
                return self._read_opened(event)
            case "response.output_item.done":
                return self._read_closed(event)
            case "conversation.item.retrieved":
                return self._read_retrieved(_mapping(event.get("item")))
            case "conversation.item.added" | "conversation.item.created" | "conversation.item.done":
                return self._read_item(event)
            case "input_audio_buffer.speech_started":
                return [s.CallerStarted(item_id=_text(event.get("item_id")))]
            case "input_audio_buffer.speech_stopped":
                return [s.CallerStopped(item_id=_text(event.get("item_id")))]
            case "input_audio_buffer.timeout_triggered":
                return [s.SilenceNoticed()]
            case "input_audio_buffer.dtmf_event_received":
                key = _text(event.get("event"))
                return [s.KeyPressed(key=key)] if len(key) == 1 else []
            case "conversation.item.input_audio_transcription.completed":
                transcript = event.get("transcript")
                heard = transcript if isinstance(transcript, str) else None
                return [s.CallerTranscribed(item_id=_text(event.get("item_id")), transcript=heard)]
            case "conversation.item.input_audio_transcription.failed":
                return [s.CallerTranscribed(item_id=_text(event.get("item_id")), transcript=None)]
            case "output_audio_buffer.started":
                return [s.PlaybackStarted(response_id=_text(event.get("response_id")))]
            case "output_audio_buffer.stopped":
                return [s.PlaybackStopped(response_id=_text(event.get("response_id")))]
            case "output_audio_buffer.cleared":
                return [s.PlaybackCleared(response_id=_text(event.get("response_id")))]
            case "error":
                return self._read_error(_mapping(event.get("error")))
            case _:
                return []

    def _read_item(self, event: Mapping[str, Any]) -> list[Signal]:
        item, previous = _mapping(event.get("item")), _text(event.get("previous_item_id"))
        found: list[Signal] = []
        if previous and previous not in self._items:
            found.append(s.ItemMissed(item_id=previous))
        for item_id in (previous, _text(item.get("id"))):
            if item_id and len(self._items) < _MAX_CALLS:
                self._items.add(item_id)
        if item.get("type") == "function_call_output":
            call_id = self._outputs.get(_text(item.get("id"))) or _text(item.get("call_id"))
            found.append(s.OutputAdded(call_id=call_id))
        elif (call_id := self._late.get(_text(item.get("id")))) is not None:
            found.append(s.OutputAdded(call_id=call_id, is_late=True))
        return found

    def _read_created(self, response: Mapping[str, Any]) -> list[Signal]:
        response_id = _text(response.get("id"))
        if not response_id or _is_beside(response):
            return []
        return [s.ResponseStarted(response_id=response_id, request_id=_request_of(response))]

    def _read_done(self, event: Mapping[str, Any]) -> list[Signal]:
        response = _mapping(event.get("response"))
        response_id, status = _text(response.get("id")), response.get("status")
        if not response_id or _is_beside(response):
            return []
        details = _mapping(response.get("status_details"))
        known: ResponseStatus = status if status in get_args(ResponseStatus) else "failed"  # pyright: ignore[reportAssignmentType]
        finished = s.ResponseFinished(
            response_id=response_id,
            status=known,
            reason=_text(details.get("reason")) or _text(_mapping(details.get("error")).get("code")),
            request_id=_request_of(response),
            has_speech=_has_speech(response),
            words=(words := _read_words(response)),
            audio_seconds=self._estimate_audio(response, words),
            usage=_usage(_mapping(response.get("usage"))),
        )
        # A call whose own event was missed is in here too.
        listed = self._calls(event) if self._misses(response) else []
        missed = [call for call in listed if _identify(call) not in self._read_calls]
        for call in missed:
            self._opened.pop(call.item_id or "", None)
        return [*self._build_call_signals(missed), finished]

    def _estimate_audio(self, response: Mapping[str, Any], words: str) -> float:
        """How long a response plays: by its audio, by its tokens, or by its words."""
        size = self._audio.pop(_text(response.get("id")), 0)
        if size:
            return size / _BYTES_PER_SECOND
        details = _mapping(_mapping(response.get("usage")).get("output_token_details"))
        tokens = _count_tokens(details.get("audio_tokens"))
        return tokens * _SECONDS_PER_TOKEN if tokens else len(words) / _CHARS_PER_SECOND

    def _misses(self, response: Mapping[str, Any]) -> bool:
        """Whether a response lists a tool call that no event of its own has told."""
        output = response.get("output")
        items = [_mapping(item) for item in cast(list[Any], output)] if isinstance(output, list) else []
        calls = [
            _text(item.get("id")) or _text(item.get("call_id")) for item in items if item.get("type") == "function_call"
        ]
        return any(known_by not in self._read_calls for known_by in calls)

    def _build_call_signals(self, calls: Sequence[ToolCall]) -> list[Signal]:
        found: list[Signal] = []
        for call in calls:
            known = self._read_calls.get(_identify(call))
            if known is not None:
                call = structs.replace(call, id=known.id, provider_id=known.provider_id)
            elif len(self._read_calls) < _MAX_CALLS:
                self._read_calls[_identify(call)] = call
            found.append(s.ToolCalled(call=call))
        return found

    def _read_opened(self, event: Mapping[str, Any]) -> list[Signal]:
        item = _mapping(event.get("item"))
        item_id = _text(item.get("id"))
        if item.get("type") != "function_call" or not item_id or len(self._opened) >= _MAX_ITEMS:
            return []
        self._opened[item_id] = event
        return [s.ToolCallOpened(item_id=item_id)]

    def _read_closed(self, event: Mapping[str, Any]) -> list[Signal]:
        item = _mapping(event.get("item"))
        item_id = _text(item.get("id"))
        if item.get("type") != "function_call" or not _text(item.get("call_id")):
            return []
        calls = self._calls(event)
        self._opened.pop(item_id, None)
        if calls:
            return self._build_call_signals(calls)
        return [s.ToolCallDropped(item_id=item_id)]

    def _read_retrieved(self, item: Mapping[str, Any]) -> list[Signal]:
        opened = self._opened.get(_text(item.get("id")), {})
        event = {"type": "response.output_item.done", "response_id": opened.get("response_id"), "item": item}
        return self._read_closed(event) if item.get("status") in ("completed", "incomplete") else []

    def _calls(self, event: Mapping[str, Any]) -> list[ToolCall]:
        try:
            return wire.calls([*self._opened.values(), event], self._definitions or None)
        except (TypeError, ValueError, KeyError, AttributeError):
            return []  # Something in the event is not what it should be: nothing runs.

    def _read_error(self, error: Mapping[str, Any]) -> list[Signal]:
        code = _text(error.get("code")) or _text(error.get("type"))
        if code == "session_expired":
            return [s.Ended(reason="expired")]
        request_id = _text(error.get("event_id")) or None
        return [s.RequestRejected(request_id=request_id, code=code, message=_text(error.get("message")))]

    def write(self, command: s.ProviderCommand) -> dict[str, Any]:
        """The client event of a command."""
        match command:
            case s.SendOutput():
                # An id of our own makes the event safe to repeat: a second one is refused.
                item_id = _item_id(command.call_id)
                self._outputs[item_id] = command.call_id
                item = {
                    "id": item_id,
                    "type": "function_call_output",
                    "call_id": command.call_id if command.provider_id is None else command.provider_id,
                    "output": escape_special_tokens(command.output),
                }
                return {"type": "conversation.item.create", "event_id": command.request_id, "item": item}
            case s.SendMessage():
                content = [{"type": "input_text", "text": escape_special_tokens(command.text)}]
                item: dict[str, Any] = {"type": "message", "role": "system", "content": content}
                if command.call_id is not None:
                    item_id = _item_id(command.request_id)
                    self._late[item_id] = command.call_id
                    item = {"id": item_id, **item, "role": "user"}
                return {"type": "conversation.item.create", "event_id": command.request_id, "item": item}
            case s.RequestResponse():
                response: dict[str, Any] = {"metadata": {_REQUEST: command.request_id}}
                if command.instructions is not None:
                    parts = [part for part in (self._persona, command.instructions) if part]
                    response["instructions"] = escape_special_tokens("\n\n".join(parts))
                if not command.allow_tools:
                    response["tool_choice"] = "none"
                return {"type": "response.create", "event_id": command.request_id, "response": response}
            case s.SetAutomaticTurns():
                audio = {"input": {"turn_detection": {**self._turn_detection, "create_response": command.is_automatic}}}
                return {"type": "session.update", "session": {"type": "realtime", "audio": audio}}
            case s.ReleaseToolChoice():
                return {"type": "session.update", "session": {"type": "realtime", "tool_choice": "auto"}}
            case s.CancelResponse():
                return {"type": "response.cancel", "response_id": command.response_id}
            case s.DeleteItem():
                return {"type": "conversation.item.delete", "item_id": command.item_id or _item_id(command.sent_as)}
            case s.RetrieveItem():
                return {"type": "conversation.item.retrieve", "item_id": command.item_id}
            case _:
                raise AssertionError(f"unknown command {command!r}")


def _identify(call: ToolCall) -> str:
    """What an item of a call is recognised by; its response is not told in every event."""
    return call.item_id or call.id


def _item_id(name: str) -> str:
    """At most 32 characters, and the same for the same call or request."""
    return f"out_{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:24]}"


def _is_beside(response: Mapping[str, Any]) -> bool:
    """Whether a response stands outside the conversation; its slot is its own."""
    return "conversation_id" in response and response["conversation_id"] is None


def _has_speech(response: Mapping[str, Any]) -> bool:
    """Whether a response says something; one that does not list its output is taken to."""
    output = response.get("output")
    if not isinstance(output, list):
        return True
    return any(_mapping(item).get("type") == "message" for item in cast(list[Any], output))


def _read_words(response: Mapping[str, Any]) -> str:
    """What a response says, in writing."""
    output = response.get("output")
    items = [_mapping(item) for item in cast(list[Any], output)] if isinstance(output, list) else []
    parts = [
        _mapping(part)
        for item in items
        if isinstance(item.get("content"), list)
        for part in cast(list[Any], item["content"])
    ]
    return " ".join(text for part in parts if (text := _text(part.get("transcript")) or _text(part.get("text"))))


def _request_of(response: Mapping[str, Any]) -> str | None:
    return _text(_mapping(response.get("metadata")).get(_REQUEST)) or None


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in usage.items():
        if (tokens := _count_tokens(value)) is not None:
            found[name] = tokens
        elif isinstance(value, dict) and name in ("input_token_details", "output_token_details"):
            side = name.removesuffix("_token_details")
            for part, count in cast(dict[str, Any], value).items():
                if (tokens := _count_tokens(count)) is not None:
                    found[f"{side}_{part}"] = tokens
    return found


def _count_tokens(value: Any) -> int | None:
    """A number of tokens; None if it is none."""
    return value if type(value) is int and 0 <= value < _MAX_TOKENS else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
