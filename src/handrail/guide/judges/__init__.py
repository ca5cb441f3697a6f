"""Judges: whoever decides what a conversation asks for."""

from handrail.guide.judges.provider import ProviderJudge
from handrail.guide.judges.scripted import ScriptedJudge
from handrail.guide.values import Judge
from handrail.providers.provider import Provider

__all__ = ["ProviderJudge", "ScriptedJudge", "make_judge"]


def make_judge(provider: Provider) -> Judge:
    """The judge that fits a provider."""
    return ProviderJudge(provider)
