"""Guided calling: guidelines decide which tools are considered, and every call says why."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.guide.agent import Agent
    from handrail.guide.compiled_agent import GuideSettings
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

# Loaded on first use, so that importing one module of this package does not import the others.
_ON_FIRST_USE = {
    "Agent": "handrail.guide.agent",
    "CandidateTool": "handrail.guide.values",
    "CheckingJudge": "handrail.guide.judges",
    "Claim": "handrail.guide.values",
    "ClaimChecker": "handrail.guide.values",
    "Draft": "handrail.guide.values",
    "EmbeddedJudge": "handrail.guide.judges",
    "EmbeddingPrefilter": "handrail.guide.prefilter",
    "FilledTemplate": "handrail.guide.templates",
    "GuideSettings": "handrail.guide.compiled_agent",
    "GuidedSession": "handrail.guide.turn",
    "GuidedStrategy": "handrail.guide.turn",
    "GuidedTurnResult": "handrail.guide.turn",
    "Guideline": "handrail.guide.values",
    "GuidelineMatch": "handrail.guide.values",
    "InvalidData": "handrail.guide.values",
    "Journey": "handrail.guide.journeys",
    "Judge": "handrail.guide.values",
    "LexicalPrefilter": "handrail.guide.prefilter",
    "MissingData": "handrail.guide.values",
    "ParameterOptions": "handrail.guide.parameters",
    "Plan": "handrail.guide.values",
    "PlanRequest": "handrail.guide.values",
    "Prefilter": "handrail.guide.prefilter",
    "ProviderJudge": "handrail.guide.judges",
    "ReplyRequest": "handrail.guide.values",
    "ScriptedJudge": "handrail.guide.judges",
    "Template": "handrail.guide.templates",
    "Term": "handrail.guide.values",
    "ToolEvaluation": "handrail.guide.values",
    "ToolInsights": "handrail.guide.values",
    "ToolVerdict": "handrail.guide.values",
    "TurnTrace": "handrail.guide.trace",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)
