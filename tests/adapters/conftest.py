"""The tests of a framework that is not installed here are left out: `.ci/adapters` runs them where it is."""

from importlib.util import find_spec

HOSTS = {
    "test_langchain.py": "langchain",
    "test_openai_agents.py": "agents",
    "test_fastmcp.py": "fastmcp",
    "test_livekit.py": "livekit",
}
"""Every framework that is not in the environment of the other tests."""

collect_ignore = [file for file, module in HOSTS.items() if find_spec(module) is None]
if find_spec("pydantic_ai") is None:
    collect_ignore.append("test_pydantic_ai.py")
