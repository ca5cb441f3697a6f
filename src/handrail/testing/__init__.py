"""Tools for testing agents: scripted models, single tools, recordings, and strict local servers."""

from typing import TYPE_CHECKING

from handrail.core.lazy_loading import build_getattr

if TYPE_CHECKING:
    from handrail.testing.cassette import Cassette
    from handrail.testing.executor_factory import ExecutorFactory, RecordedCall
    from handrail.testing.run import run_tool, run_tool_async
    from handrail.testing.scripted import ScriptedProvider

__all__ = ["Cassette", "ExecutorFactory", "RecordedCall", "ScriptedProvider", "run_tool", "run_tool_async"]

# Loaded on first use: every pytest run with Handrail installed imports the plugin, and so this package.
_ON_FIRST_USE = {
    "Cassette": "handrail.testing.cassette",
    "ExecutorFactory": "handrail.testing.executor_factory",
    "RecordedCall": "handrail.testing.executor_factory",
    "ScriptedProvider": "handrail.testing.scripted",
    "run_tool": "handrail.testing.run",
    "run_tool_async": "handrail.testing.run",
}

__getattr__ = build_getattr(__name__, _ON_FIRST_USE)


def __dir__() -> list[str]:
    return __all__
