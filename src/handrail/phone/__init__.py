"""Phone calls: webhooks in, one session per call, the tools of many tenants."""

from handrail.phone.gateway import PhoneGateway, PhoneStore
from handrail.phone.incoming import IncomingCall
from handrail.phone.machine import CallMachine
from handrail.phone.machine_state import MachineOptions
from handrail.phone.recording import Recorder, Replay, replay
from handrail.phone.session import CallSession
from handrail.phone.transport import Connection, ConnectionLost, RealtimeTransport, Transport
from handrail.phone.webhook import WebhookClaims, WebhookResponse

__all__ = [
    "CallMachine",
    "CallSession",
    "Connection",
    "ConnectionLost",
    "IncomingCall",
    "MachineOptions",
    "PhoneGateway",
    "PhoneStore",
    "RealtimeTransport",
    "Recorder",
    "Replay",
    "Transport",
    "WebhookClaims",
    "WebhookResponse",
    "replay",
]
