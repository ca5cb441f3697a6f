"""Measures how well a provider calls tools, on a fixed set of prompts."""

from handrail.testing.evaluations.domains import DOMAINS, load_domain_prompts
from handrail.testing.evaluations.evaluate import TOOLS, EvaluationReport, Prompt, Score, Totals, evaluate, load_prompts
from handrail.testing.evaluations.guided import (
    GuidedCase,
    GuidedReport,
    GuidedScore,
    evaluate_guided,
    load_guided_cases,
)

__all__ = [
    "DOMAINS",
    "TOOLS",
    "EvaluationReport",
    "GuidedCase",
    "GuidedReport",
    "GuidedScore",
    "Prompt",
    "Score",
    "Totals",
    "evaluate",
    "evaluate_guided",
    "load_domain_prompts",
    "load_guided_cases",
    "load_prompts",
]
