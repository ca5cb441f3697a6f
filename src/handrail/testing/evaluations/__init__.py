"""Measures how well a provider calls tools, on a fixed set of prompts."""

from handrail.testing.evaluations.evaluate import Report, Score, Totals, evaluate
from handrail.testing.evaluations.prompts import Prompt, load_prompts
from handrail.testing.evaluations.tools import TOOLS

__all__ = ["TOOLS", "Prompt", "Report", "Score", "Totals", "evaluate", "load_prompts"]
