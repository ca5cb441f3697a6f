"""Wire formats: one module per API, the same function names in each, no I/O.

`tools(pool)` gives the definitions to send, `calls(response, definitions)` the calls that came back, `results(results)`
the results to send, `tool_choice(…)` the value that limits what the model may call, and `assistant_messages(response)`
what a response adds to the conversation.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handrail.formats import anthropic, gemini, mcp, openai_chat, openai_realtime, openai_responses
    from handrail.formats.definitions import Definitions, Diagnostic

__all__ = [
    "Definitions",
    "Diagnostic",
    "anthropic",
    "gemini",
    "mcp",
    "openai_chat",
    "openai_realtime",
    "openai_responses",
]


def __getattr__(name: str) -> Any:
    # On first use, so that one format does not load the others.
    if name in ("Definitions", "Diagnostic"):
        return getattr(import_module("handrail.formats.definitions"), name)
    if name in __all__:
        return import_module(f"handrail.formats.{name}")
    raise AttributeError(f"module 'handrail.formats' has no attribute {name!r}")
