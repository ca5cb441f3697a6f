"""The tests of a framework that is not installed here are left out: `.ci/adapters` runs them where it is."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.tools import is_installed

HOSTS = {
    "test_langchain.py": "langchain",
    "test_openai_agents.py": "agents",
    "test_fastmcp.py": "fastmcp",
    "test_livekit.py": "livekit",
    "test_google_adk.py": "google.adk",
    "test_claude_agent_sdk.py": "claude_agent_sdk",
    "test_temporal.py": "temporalio",
    "test_pgqueuer.py": "pgqueuer",
    "test_dbos.py": "dbos",
    "test_absurd.py": "absurd_sdk",
}
"""Every framework that is not in the environment of the other tests."""


collect_ignore = [file for file, module in HOSTS.items() if not is_installed(module)]
if not is_installed("pydantic_ai"):
    collect_ignore.append("test_pydantic_ai.py")


class MissingHost(pytest.Module):
    """A file that was named on the command line where its framework is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip(f"needs {HOSTS.get(self.path.name, 'pydantic_ai')}: .ci/adapters", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return MissingHost.from_parent(parent, path=module_path) if module_path.name in collect_ignore else None
