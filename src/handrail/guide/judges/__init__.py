"""Judges: whoever decides what a conversation asks for."""

from handrail.guide.judges.provider import ProviderJudge
from handrail.guide.judges.scripted import ScriptedJudge

__all__ = ["ProviderJudge", "ScriptedJudge"]
