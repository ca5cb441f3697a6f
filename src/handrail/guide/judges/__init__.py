"""Judges, which decide what a conversation asks for: a model, the embedded model, or a script."""

from handrail.guide.judges.embedded import EmbeddedJudge
from handrail.guide.judges.provider import CheckingJudge, ProviderJudge
from handrail.guide.judges.scripted import ScriptedJudge
from handrail.guide.values import Judge
from handrail.providers.embedded import EmbeddedProvider
from handrail.providers.provider import Provider

__all__ = ["CheckingJudge", "EmbeddedJudge", "ProviderJudge", "ScriptedJudge", "make_judge"]


def make_judge(provider: Provider) -> Judge:
    """Build the judge for a provider; the embedded provider has its own."""
    return EmbeddedJudge(provider) if isinstance(provider, EmbeddedProvider) else ProviderJudge(provider)
