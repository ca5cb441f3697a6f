"""The values that pass between the packages: events, results, tools, and redaction."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.core.events import (
        ApprovalDecided,
        ApprovalRequested,
        ApprovalUsed,
        CallAccepted,
        CallCancelled,
        CallFinished,
        CallIgnored,
        CallQueued,
        CallStarted,
        CallTakenOver,
        Cancellation,
        Cancelling,
        CircuitBreakerChanged,
        DecisionMade,
        DoubtResolved,
        Event,
        LogEvent,
        ModelCalled,
        Progress,
        ToolsBuilt,
        TurnFinished,
        TurnPlanned,
        TurnStarted,
        WorkerEvent,
    )
    from handrail.core.redact import Redactor
    from handrail.core.values import Approval

__all__ = [
    "Approval",
    "ApprovalDecided",
    "ApprovalRequested",
    "ApprovalUsed",
    "CallAccepted",
    "CallCancelled",
    "CallFinished",
    "CallIgnored",
    "CallQueued",
    "CallStarted",
    "CallTakenOver",
    "Cancellation",
    "Cancelling",
    "CircuitBreakerChanged",
    "DecisionMade",
    "DoubtResolved",
    "Event",
    "LogEvent",
    "ModelCalled",
    "Progress",
    "Redactor",
    "ToolsBuilt",
    "TurnFinished",
    "TurnPlanned",
    "TurnStarted",
    "WorkerEvent",
]

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "Approval": "handrail.core.values",
    "ApprovalDecided": "handrail.core.events",
    "ApprovalRequested": "handrail.core.events",
    "ApprovalUsed": "handrail.core.events",
    "CallAccepted": "handrail.core.events",
    "CallCancelled": "handrail.core.events",
    "CallFinished": "handrail.core.events",
    "CallIgnored": "handrail.core.events",
    "CallQueued": "handrail.core.events",
    "CallStarted": "handrail.core.events",
    "CallTakenOver": "handrail.core.events",
    "Cancellation": "handrail.core.events",
    "Cancelling": "handrail.core.events",
    "CircuitBreakerChanged": "handrail.core.events",
    "DecisionMade": "handrail.core.events",
    "DoubtResolved": "handrail.core.events",
    "Event": "handrail.core.events",
    "LogEvent": "handrail.core.events",
    "ModelCalled": "handrail.core.events",
    "Progress": "handrail.core.events",
    "Redactor": "handrail.core.redact",
    "ToolsBuilt": "handrail.core.events",
    "TurnFinished": "handrail.core.events",
    "TurnPlanned": "handrail.core.events",
    "TurnStarted": "handrail.core.events",
    "WorkerEvent": "handrail.core.events",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)
