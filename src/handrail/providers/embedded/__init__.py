"""A language model that runs in this process, from one local file."""

from handrail.providers.embedded.provider import EmbeddedProvider

__all__ = ["EmbeddedProvider"]
