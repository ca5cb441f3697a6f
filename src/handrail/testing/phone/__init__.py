"""A simulator of phone calls over OpenAI's Realtime API: scripts, a strict local server, faults, and a report."""

from .api_refusals import Refused
from .call_control import ControlResponse
from .call_record import ErrorRecord, HttpRecord, TimelineEntry, ToolCallRecord, TranscriptLine
from .engine import SimulatedCall
from .protocol_rules import RULES, UNCONFIRMED_RULES, ProtocolRule
from .report import CallReport, ExpectationResult, Percentiles, Summary, format_timeline, summarise
from .responses import ScriptedRequest
from .script import FunctionCall, ModelEntry, Script, ScriptError, load_script
from .simulator import LiveCall, PhoneSimulator, WebhookRecord, sign_webhook
from .state import Frame
from .warp import run_warped

__all__ = [
    "RULES",
    "UNCONFIRMED_RULES",
    "CallReport",
    "ControlResponse",
    "ErrorRecord",
    "ExpectationResult",
    "Frame",
    "FunctionCall",
    "HttpRecord",
    "LiveCall",
    "ModelEntry",
    "Percentiles",
    "PhoneSimulator",
    "ProtocolRule",
    "Refused",
    "Script",
    "ScriptError",
    "ScriptedRequest",
    "SimulatedCall",
    "Summary",
    "TimelineEntry",
    "ToolCallRecord",
    "TranscriptLine",
    "WebhookRecord",
    "format_timeline",
    "load_script",
    "run_warped",
    "sign_webhook",
    "summarise",
]
