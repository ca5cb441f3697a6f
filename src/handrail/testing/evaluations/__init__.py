"""How well a provider calls tools: a committed set of prompts, and the figures that a provider reaches on it."""

from handrail.testing.evaluations.evaluate import Score, Scores, Verdict, evaluate
from handrail.testing.evaluations.prompts import Prompt, load
from handrail.testing.evaluations.tools import TOOLS

__all__ = ["TOOLS", "Prompt", "Score", "Scores", "Verdict", "evaluate", "load"]
