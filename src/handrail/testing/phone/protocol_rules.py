"""The rules of the API that the simulator enforces, and which of them the live API has not confirmed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRule:
    """One rule; the code that enforces it names it by its id."""

    id: str
    text: str
    unconfirmed: str = ""
    """What of it could not be verified without the live API; empty if nothing."""


RULES: tuple[ProtocolRule, ...] = (
    ProtocolRule(
        id="R1", text="The sideband socket opens only after the call was accepted; before that it is refused with 404."
    ),
    ProtocolRule(id="R2", text="Call control of an unknown or ended call answers 404 `call_id_not_found`."),
    ProtocolRule(
        id="R3",
        text="One response at a time writes to the conversation: `response.create` while one is active is an error "
        "`conversation_already_has_active_response` that names the client's event.",
    ),
    ProtocolRule(
        id="R4",
        text="The output of a tool for a call id that the conversation does not have is an error.",
        unconfirmed="the code of the error (`invalid_value` here)",
    ),
    ProtocolRule(id="R5", text="`response.cancel` with nothing active is an error `response_cancel_not_active`."),
    ProtocolRule(
        id="R6",
        text="A caller who starts to speak cancels the active response: its calls are closed with the arguments as far "
        "as they came and status `incomplete`, the response is `cancelled` with reason `turn_detected`, and the audio "
        "that was not played yet is cleared.",
    ),
    ProtocolRule(
        id="R7", text="The end of the caller's turn creates a response, unless turn detection is told not to."
    ),
    ProtocolRule(
        id="R8",
        text="Playing takes longer than generating: `output_audio_buffer.stopped` comes after `response.done`.",
    ),
    ProtocolRule(id="R9", text="Any number of sidebands may be connected, and each sees every event."),
    ProtocolRule(
        id="R10",
        text="A transfer that was answered 200 ends the call a moment later; if the target refuses, the call stays.",
        unconfirmed="whether anything tells the client that the target refused (nothing does here)",
    ),
    ProtocolRule(
        id="R11",
        text="A session ends after 60 minutes with an error `session_expired`, without a warning.",
        unconfirmed="the close code of the socket that follows (1000 here)",
    ),
    ProtocolRule(id="R12", text="Time is virtual: the engine never reads a clock of the machine."),
    ProtocolRule(
        id="S1",
        text="A caller's turn that ends while a response is active gets no response of its own, and an error "
        "`conversation_already_has_active_response` without an event id says so.",
        unconfirmed="what the server does then",
    ),
    ProtocolRule(
        id="S2",
        text="A second output for the same call id is taken; the report counts it.",
        unconfirmed="whether the server refuses it",
    ),
    ProtocolRule(
        id="S3",
        text="A call that is accepted a second time answers 400 `call_already_accepted`.",
        unconfirmed="the status and the code",
    ),
    ProtocolRule(
        id="S4",
        text="Nothing that happened while no sideband was connected is replayed to the next one.",
        unconfirmed="whether the server replays anything",
    ),
    ProtocolRule(
        id="S5",
        text="Audio events of the client (`input_audio_buffer.*`) are refused: the audio of a phone call does not "
        "cross the sideband.",
        unconfirmed="whether the server ignores them instead",
    ),
    ProtocolRule(
        id="S6",
        text="`session.update` names the session's type; the model never changes, the voice not after it was heard.",
    ),
    ProtocolRule(id="S7", text="A request without a bearer token answers 401."),
)

UNCONFIRMED_RULES: tuple[ProtocolRule, ...] = tuple(rule for rule in RULES if rule.unconfirmed)
"""The rules of which something could not be verified without the live API."""
