"""What tests need: scripted models, one tool at a time, recordings, strict local servers, and what is built on them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from handrail.testing.cassette import Cassette
    from handrail.testing.recording import Rail, Recorded
    from handrail.testing.run import run_tool, run_tool_async
    from handrail.testing.scripted import ScriptedProvider

__all__ = ["Cassette", "Rail", "Recorded", "ScriptedProvider", "run_tool", "run_tool_async"]

# Loaded on first use: the plugin is imported by every run of pytest where Handrail is installed.
_ON_FIRST_USE = {
    "Cassette": "handrail.testing.cassette",
    "Rail": "handrail.testing.recording",
    "Recorded": "handrail.testing.recording",
    "ScriptedProvider": "handrail.testing.scripted",
    "run_tool": "handrail.testing.run",
    "run_tool_async": "handrail.testing.run",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module  # noqa: PLC0415  # only this function needs it

    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module 'handrail.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
