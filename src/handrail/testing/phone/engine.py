"""One simulated call without I/O: client events and time in, server events out."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from .api_refusals import Refused, check_event, check_item
from .call_control import ControlResponse, HttpControl
from .caller import Caller
from .report import CallReport, build_report
from .responses import Responses, ScriptedModel, Voice
from .script import Script, Verb
from .state import CallState, Frame, Phase
from .turns import Turns

_Sides: TypeAlias = dict[str, dict[str, Any] | None]


class SimulatedCall:
    """A call that follows a script, in virtual time: nothing happens but in its methods.

    The socket server, the tests of a state machine and a soak all drive this one engine.
    """

    def __init__(
        self, script: Script | Mapping[str, Any] | None = None, *, call_id: str = "", model: ScriptedModel | None = None
    ) -> None:
        script = script if isinstance(script, Script) else Script.parse(script or {})
        self.script = script
        self._state = CallState(script, call_id or script.call.id or "rtc_1")
        voice = Voice(self._state)
        self._voice = voice
        self._responses = Responses(self._state, voice, model)
        self._turns = Turns(self._state, voice, self._responses)
        self._caller = Caller(self._state, voice, self._turns)
        self._control = HttpControl(self._state, self._on_accept)
        self._state.clock.after(self._state.timing.ring, self._stop_ringing)
        self._handlers: Mapping[str, Callable[[dict[str, Any]], None]] = {
            "session.update": self._update_session,
            "conversation.item.create": self._create_item,
            "conversation.item.delete": self._delete_item,
            "conversation.item.truncate": self._truncate_item,
            "conversation.item.retrieve": self._retrieve_item,
            "response.create": self._create_response,
            "response.cancel": self._cancel_response,
            "output_audio_buffer.clear": lambda event: voice.clear(),
        }

    @property
    def id(self) -> str:
        return self._state.call_id

    @property
    def now(self) -> float:
        """Seconds since the call began to ring."""
        return self._state.clock.now

    @property
    def phase(self) -> Phase:
        return self._state.phase

    @property
    def is_ended(self) -> bool:
        return self._state.phase == "ended"

    @property
    def is_caller_speaking(self) -> bool:
        return self._state.caller_speaking

    @property
    def is_response_active(self) -> bool:
        return self._state.response_active

    def request(self, verb: Verb, body: object = None) -> ControlResponse:
        """Do what an HTTP request of call control does."""
        response = self._control.request(verb, body)
        self._settle()
        return response

    def connect(self) -> int:
        """Open a sideband, and return its number. R1: only while the call is open."""
        if self._state.phase != "open":
            raise Refused(f"No session found for call_id: {self.id}", code="call_id_not_found")
        self._control.check_handshake()
        return self._state.connect()

    def disconnect(self, sideband: int) -> None:
        """The client closes a sideband."""
        self._state.disconnect(sideband)

    def feed(self, event: Mapping[str, Any] | str | bytes) -> None:
        """Take an event of the client, as an object or as the text that came over the socket."""
        if isinstance(event, str | bytes):
            decoded = _decode(event)
            if decoded is None:
                self._state.note("client", "garbage", {"text": str(event)})
                if not self.is_ended:
                    self._state.send_error("The event could not be parsed as a JSON object.", code="invalid_json")
                return
            event = decoded
        kind = str(event.get("type"))
        self._state.note("client", kind, dict(event))
        if self.is_ended:
            return
        try:
            checked = check_event(dict(event))
            self._handlers[kind](checked)
        except Refused as refused:
            given = event.get("event_id")
            event_id = given if isinstance(given, str) else None
            self._state.send_error(refused.message, code=refused.code, param=refused.param, event_id=event_id)
        self._settle()

    def speak(self, text: str, *, seconds: float | None = None, transcript: str | None = None) -> None:
        """The caller speaks now, beside the script: for random sequences."""
        if self._state.phase != "open" or self._state.caller_speaking:
            return
        self._turns.start()
        duration = len(text) / self._state.timing.speech_rate if seconds is None else seconds
        self._state.clock.after(duration + self._turns.pause, lambda: self._turns.stop(text, transcript))
        self._settle()

    def press(self, keys: str) -> None:
        """The caller presses keys now, beside the script."""
        for key in keys if self._state.phase == "open" else "":
            self._turns.press(key)

    def hang_up(self) -> None:
        """The caller hangs up now, beside the script."""
        self._state.end("caller")

    def drop(self, code: int = 1012) -> None:
        """Close every sideband now, beside the script."""
        self._state.close_sidebands(code)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Run something of the test at a moment of virtual time."""
        self._state.clock.after(delay, action)

    def next_due(self) -> float | None:
        """When the next thing happens by itself, in the call's time; None: never."""
        return self._state.clock.next_due()

    def step(self) -> list[Frame]:
        """Move to the next thing that happens by itself, and return what goes out."""
        self._state.clock.run_next()
        self._settle()
        return self.take()

    def advance(self, seconds: float) -> list[Frame]:
        """Let time pass, and return what goes out meanwhile."""
        until = self._state.clock.now + seconds
        self.run_until(until)
        return self.take()

    def run_until(self, moment: float) -> None:
        """Let time pass up to a moment of the call's time."""
        while (due := self._state.clock.next_due()) is not None and due <= moment:
            self._state.clock.run_next()
            self._settle()
        self._state.clock.now = max(self._state.clock.now, moment)

    def take(self) -> list[Frame]:
        """What has gone out since the last time."""
        frames, self._state.frames = self._state.frames, []
        return frames

    def play(self, client: Callable[["SimulatedCall", Frame], None], *, timeout: float = 3700.0) -> CallReport:
        """Play the call to its end against a client that is a function, which gets every frame at its moment."""
        until = self.now + timeout
        while True:
            for frame in self.take():
                client(self, frame)
            if self._state.frames:
                continue
            due = self._state.clock.next_due()
            if due is None or due > until:
                return self.report()
            self._state.clock.run_next()
            self._settle()

    def report(self) -> CallReport:
        """What is to be said about the call so far."""
        return build_report(self._state)

    def _settle(self) -> None:
        self._state.update_quiet()
        self._caller.check_wait()
        self._state.update_quiet()
        if self._state.phase == "open":
            self._turns.watch_silence()

    def _on_accept(self) -> None:
        self._state.clock.after(self._state.timing.maximum, self._caller.expire)  # R11
        self._caller.answer()

    def _stop_ringing(self) -> None:
        if self._state.phase == "ringing":
            self._state.end("unanswered")

    def _update_session(self, event: dict[str, Any]) -> None:
        state, change = self._state, cast(dict[str, Any], event["session"])
        if "model" in change and change["model"] != state.session["model"]:  # S6
            raise Refused("Cannot update a conversation's model.", code="cannot_update_model", param="session.model")
        merged = _merge(state.session, change)
        voice = state.audio("output").get("voice")
        if self._voice.started and _voice_of(merged) != voice:  # S6
            raise Refused(
                "Cannot update a conversation's voice if assistant audio is present.",
                code="cannot_update_voice",
                param="session.audio.output.voice",
            )
        state.session = merged
        state.emit("session.updated", session=dict(state.session))

    def _create_item(self, event: dict[str, Any]) -> None:
        state, given = self._state, cast(dict[str, Any], event["item"])
        check_item(given, "item.")
        if given.get("id") in state.items:
            message = f"Error adding item: an item with id '{given['id']}' already exists in the conversation."
            raise Refused(message, code="item_create_duplicate_item_id", param="item.id")
        previous = event.get("previous_item_id")
        if previous is not None and previous != "root" and previous not in state.items:
            raise Refused(
                f"Error adding item: the previous item with id '{previous}' does not exist.", param="previous_item_id"
            )
        if given["type"] == "function_call_output":
            self._take_output(given["call_id"], str(given.get("output", "")))
        item = {
            "object": "realtime.item",
            "status": "completed",
            **given,
            "id": given.get("id") or state.new_id("item"),
        }
        after = previous or next(reversed(state.items), None)
        state.items[item["id"]] = item
        if given["type"] == "function_call" and "call_id" in given:
            state.call_items[given["call_id"]] = item["id"]
        state.emit("conversation.item.added", previous_item_id=after, item=item)
        state.emit("conversation.item.done", previous_item_id=after, item=item)

    def _take_output(self, call_id: str, output: str) -> None:
        record = self._state.record
        if self._state.call_items.get(call_id) not in self._state.items:
            record.unknown_outputs.append(call_id)
            raise Refused(f"Tool call ID '{call_id}' not found in conversation.", param="item.call_id")  # R4
        call = record.calls.get(call_id)
        if call is None:
            return  # the call was never completed; its output is taken, and nobody waits for it
        call.outputs += 1
        if call.outputs > 1:
            record.duplicate_outputs.append(call_id)  # S2
        else:
            call.answered_at = self._state.clock.now
            call.output = output

    def _delete_item(self, event: dict[str, Any]) -> None:
        self._find_item(event)
        del self._state.items[event["item_id"]]
        self._state.emit("conversation.item.deleted", item_id=event["item_id"])

    def _truncate_item(self, event: dict[str, Any]) -> None:
        item = self._find_item(event)
        if item["type"] != "message" or item.get("role") != "assistant":
            raise Refused("Only model output audio messages can be truncated.", param="item_id")
        place = {name: event[name] for name in ("item_id", "content_index", "audio_end_ms")}
        self._state.emit("conversation.item.truncated", **place)

    def _retrieve_item(self, event: dict[str, Any]) -> None:
        self._state.emit("conversation.item.retrieved", item=dict(self._find_item(event)))

    def _find_item(self, event: dict[str, Any]) -> dict[str, Any]:
        item = self._state.items.get(event["item_id"])
        if item is None:
            raise Refused(f"The item with id '{event['item_id']}' does not exist.", param="item_id")
        return item

    def _create_response(self, event: dict[str, Any]) -> None:
        params = cast(dict[str, Any], event.get("response") or {})
        in_conversation = params.get("conversation", "auto") != "none"
        if in_conversation and self._responses.active is not None:  # R3
            self._state.record.created_while_active += 1
            message = (
                f"Conversation already has an active response in progress: {self._responses.active.id}. "
                "Wait until the response is finished before creating a new one."
            )
            raise Refused(message, code="conversation_already_has_active_response")
        self._responses.create("client", params)

    def _cancel_response(self, event: dict[str, Any]) -> None:
        run = self._responses.find(event.get("response_id"))
        if run is None:  # R5
            raise Refused("Cancellation failed: no active response found", code="response_cancel_not_active")
        self._responses.cancel(run, "client_cancelled")


def _merge(current: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Only the fields that are present change; objects inside are merged the same way, tools are replaced."""
    merged = dict(current)
    for name, value in change.items():
        merged[name] = value
        if name == "audio":
            before, after = cast(_Sides, current.get("audio") or {}), cast(_Sides, value or {})
            sides = before.keys() | after.keys()
            merged[name] = {side: {**(before.get(side) or {}), **(after.get(side) or {})} for side in sides}
    return merged


def _voice_of(session: Mapping[str, Any]) -> object:
    return ((cast(_Sides, session.get("audio") or {})).get("output") or {}).get("voice")


def _decode(text: str | bytes) -> Mapping[str, Any] | None:
    try:
        event: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], event) if isinstance(event, dict) else None
