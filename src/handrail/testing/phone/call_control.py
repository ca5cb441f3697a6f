"""Call control over HTTP: what `accept`, `reject`, `refer` and `hangup` are answered, and what they do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from .api_refusals import Refused, check_session
from .call_record import HttpRecord
from .script import HttpEntry, Verb
from .state import CallState


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResponse:
    """What a request of call control is answered."""

    status: int
    body: Mapping[str, Any] | None = None
    delay: float = 0.0
    is_lost: bool = False
    """The connection breaks off instead."""


@dataclass(slots=True)
class HttpControl:
    """Call control of one call."""

    state: CallState
    on_accept: Callable[[], None]
    _used: list[int] = field(default_factory=list[int])

    def request(self, verb: Verb, body: object) -> ControlResponse:
        """Answer one attempt, as the script says or as the API would."""
        state = self.state
        before = len(state.record.timeline)
        planned = self._next_planned(verb)
        if planned is not None and planned.drop == "before":
            response = ControlResponse(status=0, is_lost=True)
        elif planned is not None and planned.status >= 400:
            message = "The script asked for this error."
            response = error_response(planned.status, "server_error", message, delay=planned.delay)
        else:
            try:
                self._apply(verb, body, is_refused=planned is not None and planned.outcome == "refused")
                is_lost = planned is not None and planned.drop == "after"
                response = ControlResponse(status=200, delay=planned.delay if planned else 0.0, is_lost=is_lost)
            except Refused as refused:
                status = 404 if refused.code == "call_id_not_found" else 400
                response = error_response(status, refused.code, refused.message, param=refused.param)
        status = None if response.is_lost else response.status
        state.record.http.append(HttpRecord(at=state.clock.now, verb=verb, body=body, status=status))
        state.note("http", verb, {"body": body, "status": status})
        # The request comes before what it did.
        state.record.timeline.insert(before, state.record.timeline.pop())
        return response

    def _apply(self, verb: Verb, body: object, *, is_refused: bool) -> None:
        state = self.state
        if state.phase == "ended" or (verb == "refer" and state.phase == "ringing"):
            raise call_not_found(state.call_id)  # R2
        match verb:
            case "accept":
                if state.phase == "open":  # S3
                    raise Refused(f"The call {state.call_id} was already accepted.", code="call_already_accepted")
                self._accept(check_session(body, prefix=""))
            case "reject":
                if state.phase == "open":
                    raise Refused(f"The call {state.call_id} was already accepted.", code="call_already_accepted")
                _check_reject(body)
                state.end("rejected")
            case "refer":
                _check_target(body)
                if not is_refused:  # R10
                    state.clock.after(state.timing.refer, lambda: state.end("transferred"))
            case "hangup":
                state.end("agent")

    def _accept(self, session: dict[str, Any]) -> None:
        state = self.state
        defaults: dict[str, Any] = {
            "object": "realtime.session",
            "id": f"sess_{state.call_id}",
            "model": "gpt-realtime-2.1",
            "output_modalities": ["audio"],
            "instructions": "",
            "tools": [],
            "tool_choice": "auto",
        }
        state.session = {**defaults, **session}
        state.phase = "open"
        state.record.accepted_at = state.quiet_since = state.clock.now
        self.on_accept()

    def check_handshake(self) -> None:
        """Refuse a sideband, as the script says."""
        planned = self._next_planned("connect")
        if planned is not None and planned.status >= 400:
            self.state.note("call", "sideband.refused", {"status": planned.status})
            raise Refused("The script asked for this error.", code="call_id_not_found")

    def _next_planned(self, verb: Verb | Literal["connect"]) -> HttpEntry | None:
        plan = self.state.script.http
        if not self._used:
            self._used = [0] * len(plan)
        for index, entry in enumerate(plan):
            if entry.verb == verb and self._used[index] < entry.times:
                self._used[index] += 1
                return entry
        return None


def call_not_found(call_id: str) -> Refused:
    """R2: the answer for a call that does not exist, or no longer."""
    return Refused(f"No session found for call_id: {call_id}", code="call_id_not_found")


def error_response(
    status: int, code: str | None, message: str, *, param: str | None = None, delay: float = 0.0
) -> ControlResponse:
    """An error as the API words it."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return ControlResponse(status=status, body=body, delay=delay)


def _check_reject(body: object) -> None:
    code = cast(dict[str, Any], body).get("status_code", 603) if isinstance(body, dict) else 603
    if not isinstance(code, int) or not 300 <= code <= 699:
        raise Refused(f"Invalid value: {code!r}. Expected a SIP status from 300 to 699.", param="status_code")


def _check_target(body: object) -> None:
    target = cast(dict[str, Any], body).get("target_uri") if isinstance(body, dict) else None
    if target is None:
        raise Refused(
            "Missing required parameter: 'target_uri'.", code="missing_required_parameter", param="target_uri"
        )
    if not isinstance(target, str) or not target.startswith(("tel:", "sip:", "sips:")):
        raise Refused(f"Invalid value: {target!r}. Expected a tel: or sip: URI.", param="target_uri")
