"""What is installed is what pyproject.toml says."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HOSTS = {
    *("pydantic-ai", "langchain", "openai-agents", "fastmcp", "livekit", "google-adk", "claude-agent-sdk"),
    "temporal",
}
"""The frameworks and the engines that there are adapters for."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def needed(*extras: str) -> set[Requirement]:
    """The requirements of the package with these extras; `handrail[a,b]` is followed."""
    lines = PROJECT["dependencies"] + [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    requirements = {Requirement(line) for line in lines}
    own = {requirement for requirement in requirements if requirement.name == "handrail"}
    return (requirements - own).union(*(needed(*requirement.extras) for requirement in own))


def pins(file: str) -> dict[str, str]:
    text = (ROOT / "requirements" / file).read_text()
    return {canonicalize_name(name): version for name, version in re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", text)}


def test_every_extra_that_is_declared_is_used_and_every_one_that_is_named_is_declared() -> None:
    declared = set(PROJECT["optional-dependencies"]) - {"all", "dev"}
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    pages = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    hinted = set(re.findall(r"MissingExtraError\([^()]+, extra=\"([\w-]+)\"\)", source))
    named = {item for found in re.findall(r"handrail\[([\w, -]+)\]", source + pages) for item in found.split(",")}

    assert declared == hinted
    assert named - {"NAME"} <= declared | {"all"}


def test_all_has_every_extra_but_dev_and_the_frameworks_that_an_application_has_already() -> None:
    features = set(PROJECT["optional-dependencies"]) - {"all", "dev"} - HOSTS

    assert needed("all") == needed(*features)


def test_the_pinned_files_fit_pyproject() -> None:
    """Red means: run ./scripts/lock."""
    for file, extras in {"dev.txt": ["dev"], "run.txt": []}.items():
        pinned = pins(file)
        unfit = [
            str(requirement)
            for requirement in needed(*extras)
            if not requirement.specifier.contains(pinned.get(canonicalize_name(requirement.name), "0"))
        ]

        assert unfit == [], file


def test_the_conversation_runs_on_the_versions_that_are_tested() -> None:
    assert pins("run.txt").items() <= pins("dev.txt").items()


def test_the_installed_version_is_the_one_in_pyproject() -> None:
    assert importlib.metadata.version("handrail") == PROJECT["version"]


def test_the_wheel_is_typed_and_carries_only_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")

    names = zipfile.ZipFile(wheel).namelist()

    assert "handrail/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"handrail", f"handrail-{PROJECT['version']}.dist-info"}
