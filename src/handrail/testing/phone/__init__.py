"""A simulator of phone calls over OpenAI's Realtime API: scripts, a strict local server, faults, and a report."""

from .checks import Refused
from .control import ControlResponse
from .engine import SimulatedCall
from .live import LiveCall
from .record import Entry, ErrorRecord, HttpRecord, ToolCallRecord, TranscriptLine
from .report import Outcome, Report
from .responses import ModelRequest
from .rules import RULES, UNCONFIRMED_RULES, Rule
from .script import FunctionCall, ModelEntry, Script, ScriptError
from .script_file import load_script
from .simulator import PhoneSimulator, WebhookRecord
from .state import Frame
from .summary import Percentiles, Summary, summarise
from .timeline import format_timeline
from .warp import WarpedLoop, run_warped
from .webhooks import sign_webhook

__all__ = [
    "RULES",
    "UNCONFIRMED_RULES",
    "ControlResponse",
    "Entry",
    "ErrorRecord",
    "Frame",
    "FunctionCall",
    "HttpRecord",
    "LiveCall",
    "ModelEntry",
    "ModelRequest",
    "Outcome",
    "Percentiles",
    "PhoneSimulator",
    "Refused",
    "Report",
    "Rule",
    "Script",
    "ScriptError",
    "SimulatedCall",
    "Summary",
    "ToolCallRecord",
    "TranscriptLine",
    "WarpedLoop",
    "WebhookRecord",
    "format_timeline",
    "load_script",
    "run_warped",
    "sign_webhook",
    "summarise",
]
