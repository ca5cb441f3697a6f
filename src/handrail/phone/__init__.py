"""Phone calls: webhooks in, one session per call, the tools of many tenants."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.phone.call_limits import MachineOptions
    from handrail.phone.call_setup import CallSetup, IncomingCall, Reject
    from handrail.phone.events import PhoneCallEnded, ResultSpoken, SpeechTranscribed
    from handrail.phone.gateway import PhoneGateway, PhoneStore
    from handrail.phone.recording import Replay, replay
    from handrail.phone.session import CallSession
    from handrail.phone.transcript import SpokenLine, read_transcript
    from handrail.phone.transport import Acceptance, ConnectionLost, RealtimeTransport, Sideband, Transport
    from handrail.phone.webhooks import WebhookClaims, WebhookResponse

__all__ = [
    "Acceptance",
    "CallSession",
    "CallSetup",
    "ConnectionLost",
    "IncomingCall",
    "MachineOptions",
    "PhoneCallEnded",
    "PhoneGateway",
    "PhoneStore",
    "RealtimeTransport",
    "Reject",
    "Replay",
    "ResultSpoken",
    "Sideband",
    "SpeechTranscribed",
    "SpokenLine",
    "Transport",
    "WebhookClaims",
    "WebhookResponse",
    "read_transcript",
    "replay",
]

# Loaded on first use, so that the log and the metrics can import the events of phone calls and nothing else.
_ON_FIRST_USE = {
    "Acceptance": "handrail.phone.transport",
    "CallSession": "handrail.phone.session",
    "CallSetup": "handrail.phone.call_setup",
    "ConnectionLost": "handrail.phone.transport",
    "IncomingCall": "handrail.phone.call_setup",
    "MachineOptions": "handrail.phone.call_limits",
    "PhoneCallEnded": "handrail.phone.events",
    "PhoneGateway": "handrail.phone.gateway",
    "PhoneStore": "handrail.phone.gateway",
    "RealtimeTransport": "handrail.phone.transport",
    "Reject": "handrail.phone.call_setup",
    "Replay": "handrail.phone.recording",
    "ResultSpoken": "handrail.phone.events",
    "Sideband": "handrail.phone.transport",
    "SpeechTranscribed": "handrail.phone.events",
    "SpokenLine": "handrail.phone.transcript",
    "Transport": "handrail.phone.transport",
    "WebhookClaims": "handrail.phone.webhooks",
    "WebhookResponse": "handrail.phone.webhooks",
    "read_transcript": "handrail.phone.transcript",
    "replay": "handrail.phone.recording",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)
