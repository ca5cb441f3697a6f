"""A language model inside this process: no key, no service, one file."""

from handrail.providers.embedded.provider import EmbeddedProvider

__all__ = ["EmbeddedProvider"]
