"""Every export is a promise."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import handrail
import handrail.testing

ROOT = Path(__file__).parents[1]

NAMES = {
    *("tool", "build_tool", "as_tool", "LLMFunctionTool", "Tool", "ToolFlags", "ToolLike"),
    *("ToolContext", "ToolCall", "ToolResult", "MediaPart", "Failure", "Control", "Decision"),
    *(
        "ToolRegistry",
        "assemble_tool_pool",
        "Executor",
        "Policy",
        "Provenance",
        "Rule",
        "ChatSession",
        "Agent",
        "Guideline",
    ),
    *("HandrailError", "ToolError", "ToolNotFoundError", "ToolArgsParseError", "InvalidArgumentsError"),
    *("PermissionDeniedError", "ToolExecutionError", "ConfigError", "ToolDefinitionError", "ToolBuildError"),
}


def modules_loaded_by(code: str) -> set[str]:
    """The names of the modules that a fresh interpreter has after running some code."""
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{code}\nimport json\n"
    program += "print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout))


def loaded_by(code: str) -> set[str]:
    """The names of the packages that a fresh interpreter has after running some code."""
    return {name.partition(".")[0] for name in modules_loaded_by(code)}


def test_importing_the_executor_loads_nothing_that_only_a_tool_or_a_request_needs() -> None:
    loaded = modules_loaded_by("from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool")

    slow = {"pydantic.main", "pydantic.json_schema", "jsonschema_rs", "email", "handrail.formats", "handrail.models"}
    assert not loaded & slow
    assert not [name for name in loaded if name.startswith(("handrail.formats.", "handrail.registry.search"))]
    assert not loaded & {"hashlib", "difflib", "random", "secrets", "concurrent.futures.thread"}


def test_importing_an_agent_loads_nothing_that_only_a_file_needs() -> None:
    loaded = modules_loaded_by("from handrail import Agent")

    assert not loaded & {"pydantic.main", "handrail.guide.agent_file", "handrail.sources", "importlib.metadata"}


def test_importing_the_phone_gateway_loads_neither_chats_nor_sources_that_no_tenant_has() -> None:
    loaded = modules_loaded_by("from handrail.phone import PhoneGateway")

    assert not loaded & {"handrail.guide.agent", "handrail.chat.session", "handrail.providers.structured_output"}
    assert not loaded & {"handrail.sources.openapi.source", "handrail.sources.plugins", "importlib.metadata"}
    assert not loaded & {"handrail.sources.mcp.server_options", "pkgutil"}
    assert not loaded & {"importlib.resources", "tempfile", "difflib"}


def test_the_public_names_are_these() -> None:
    assert set(handrail.__all__) == NAMES
    assert sorted(handrail.__all__) == handrail.__all__
    assert dir(handrail) == handrail.__all__


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_is_there(name: str) -> None:
    found: Any = getattr(handrail, name)

    assert found.__name__ == name
    assert found.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'handrail' has no attribute 'Tol'"):
        _ = handrail.Tol


def test_importing_everything_works() -> None:
    assert "handrail" in loaded_by("from handrail import *\nassert LLMFunctionTool and ToolRegistry and as_tool")


@pytest.mark.parametrize("code", ["import handrail", "from handrail import tool"])
def test_importing_handrail_loads_none_of_the_optional_packages(code: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    optional = {Requirement(line).name.replace("-", "_") for lines in extras.values() for line in lines} - {"handrail"}
    optional |= {"google", "yaml", "opentelemetry"}  # Packages that are not called like their distribution.
    assert {"openai", "anthropic", "mcp", "sqlalchemy", "rich"} <= optional

    assert loaded_by(code) & optional == set()


def test_importing_handrail_leaves_the_dear_parts_for_later() -> None:
    """`jsonschema_rs` and `docstring_parser` come with the first tool that needs them."""
    assert loaded_by("from handrail import tool") & {"jsonschema_rs", "docstring_parser", "difflib"} == set()


def test_importing_the_testing_kit_loads_neither_pytest_nor_an_sdk() -> None:
    code = "from handrail.testing import *\nassert ScriptedProvider and Cassette and ExecutorFactory and run_tool"

    assert loaded_by(code) & {"pytest", "_pytest", "openai", "anthropic", "google", "mcp", "sqlalchemy"} == set()


def test_the_names_of_the_testing_kit_are_these() -> None:
    names = ["Cassette", "ExecutorFactory", "RecordedCall", "ScriptedProvider", "run_tool", "run_tool_async"]

    assert handrail.testing.__all__ == dir(handrail.testing) == names
    assert [getattr(handrail.testing, name).__name__ for name in names] == names
    with pytest.raises(AttributeError, match=r"module 'handrail\.testing' has no attribute 'Casette'"):
        _ = handrail.testing.Casette


@pytest.mark.parametrize(
    ("names", "missing", "extra"),
    [
        ("handrail.serve import build_app", "starlette", "serve"),
        ("handrail.serve import ChatAgent", "fastapi", "serve"),
        ("handrail.store import SqlStore", "sqlalchemy", "sql"),
    ],
)
def test_an_import_without_its_extra_says_how_to_install_it(names: str, missing: str, extra: str) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); sys.modules[{missing!r}] = None\nfrom {names}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert f"`{missing}` is not installed. Install it with: pip install 'handrail[{extra}]'" in run.stderr
