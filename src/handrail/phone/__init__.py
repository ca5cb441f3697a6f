"""Phone calls: webhooks in, one session per call, the tools of many tenants."""

from handrail.phone.call_limits import MachineOptions
from handrail.phone.gateway import PhoneGateway, PhoneStore
from handrail.phone.incoming import IncomingCall
from handrail.phone.machine import CallMachine
from handrail.phone.recording import CallRecorder, Replay, replay
from handrail.phone.session import CallSession
from handrail.phone.transport import ConnectionLost, RealtimeTransport, Sideband, Transport
from handrail.phone.webhook import WebhookClaims, WebhookResponse

__all__ = [
    "CallMachine",
    "CallRecorder",
    "CallSession",
    "ConnectionLost",
    "IncomingCall",
    "MachineOptions",
    "PhoneGateway",
    "PhoneStore",
    "RealtimeTransport",
    "Replay",
    "Sideband",
    "Transport",
    "WebhookClaims",
    "WebhookResponse",
    "replay",
]
