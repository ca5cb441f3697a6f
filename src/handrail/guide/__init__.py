"""Guided calling: guidelines decide which tools are considered, and every call says why."""

from handrail.guide.agent import Agent
from handrail.guide.definition import GuideSettings
from handrail.guide.journeys import Journey
from handrail.guide.judges import CheckingJudge, EmbeddedJudge, ProviderJudge, ScriptedJudge
from handrail.guide.parameters import ParameterOptions
from handrail.guide.prefilter import EmbeddingPrefilter, LexicalPrefilter, Prefilter
from handrail.guide.templates import FilledTemplate, Template
from handrail.guide.trace import TurnTrace
from handrail.guide.turn import GuidedSession, GuidedStrategy, GuidedTurnResult
from handrail.guide.values import (
    CandidateTool,
    Claim,
    ClaimChecker,
    Draft,
    Guideline,
    GuidelineMatch,
    InvalidData,
    Judge,
    MissingData,
    Plan,
    PlanRequest,
    ReplyRequest,
    Term,
    ToolEvaluation,
    ToolInsights,
    ToolVerdict,
)

__all__ = [
    "Agent",
    "CandidateTool",
    "CheckingJudge",
    "Claim",
    "ClaimChecker",
    "Draft",
    "EmbeddedJudge",
    "EmbeddingPrefilter",
    "FilledTemplate",
    "GuideSettings",
    "GuidedSession",
    "GuidedStrategy",
    "GuidedTurnResult",
    "Guideline",
    "GuidelineMatch",
    "InvalidData",
    "Journey",
    "Judge",
    "LexicalPrefilter",
    "MissingData",
    "ParameterOptions",
    "Plan",
    "PlanRequest",
    "Prefilter",
    "ProviderJudge",
    "ReplyRequest",
    "ScriptedJudge",
    "Template",
    "Term",
    "ToolEvaluation",
    "ToolInsights",
    "ToolVerdict",
    "TurnTrace",
]
