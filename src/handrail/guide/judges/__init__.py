"""Judges: whoever decides what a conversation asks for."""

from handrail.guide.judges.embedded import EmbeddedJudge
from handrail.guide.judges.provider import CheckingJudge, ProviderJudge
from handrail.guide.judges.scripted import ScriptedJudge
from handrail.guide.values import Judge
from handrail.providers.embedded import EmbeddedProvider
from handrail.providers.provider import Provider

__all__ = ["CheckingJudge", "EmbeddedJudge", "ProviderJudge", "ScriptedJudge", "make_judge"]


def make_judge(provider: Provider) -> Judge:
    """The judge that fits a provider: the embedded one gets a judge of its own."""
    return EmbeddedJudge(provider) if isinstance(provider, EmbeddedProvider) else ProviderJudge(provider)
