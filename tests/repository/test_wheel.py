"""The wheel, installed in an environment that has only the base dependencies: what a new user's first minutes are."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
import uv
from packaging.requirements import Requirement
from pytest_examples import find_examples

from tests.docs.test_snippets import PRINTED, ROOT

AGENT = '''
from handrail import Policy, Rule, tool

@tool
def pay(amount: int) -> str:
    """Pay."""
    return ""

TOOLS = [pay]
POLICY = Policy([Rule.allow("pay")])
'''

HELP = """
import argparse, contextlib, io, sys
from importlib import import_module
from handrail.cli.main import _COMMANDS, main

def walk(parser, words):
    yield words
    for action in parser._actions:
        for name, child in (action.choices or {}).items() if isinstance(action, argparse._SubParsersAction) else ():
            yield from walk(child, [*words, name])

for name, (module, _) in _COMMANDS.items():
    parser = argparse.ArgumentParser()
    import_module(f"handrail.cli.{module}").add_arguments(parser)
    for words in walk(parser, [name]):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            main([*words, "--help"])
        assert shown.getvalue().startswith(f"usage: handrail {' '.join(words)}"), words
        print(*words)
"""

RUN = """
import ast, asyncio, sys
from pathlib import Path
program = compile(Path(sys.argv[1]).read_text(), sys.argv[1], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(program, sys.modules["__main__"].__dict__))
"""


class Machine:
    """A new user's machine: an empty home, and Python with what was installed."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "venv" / "bin"
        self.folder = root / "work"
        self.folder.mkdir()
        self._env = {"PATH": os.defpath, "HOME": str(self.folder), "LANG": "C.UTF-8"}

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def prints(self, *command: str | Path) -> str:
        """What a command prints that ends well and writes nothing to standard error."""
        ended = self.run(*command)
        assert (ended.returncode, ended.stderr) == (0, ""), (command, ended)
        return ended.stdout


def find_base_distributions(name: str = "handrail") -> dict[str, Distribution]:
    """The distributions that are installed with one, without extras."""
    found: dict[str, Distribution] = {}
    for text in distribution(name).requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            found |= {needed.name: distribution(needed.name)} | find_base_distributions(needed.name)
    return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    root = tmp_path_factory.mktemp("machine")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(root)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = root.glob("*.whl")
    venv.create(root / "venv", with_pip=False)
    machine = Machine(root)
    # The pinned base dependencies are copied from here: nothing is downloaded.
    packages = Path(machine.prints("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for item in find_base_distributions().values():
        for file in item.files or ():
            if ".." not in file.parts:
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(item.locate_file(file)), target)
    install = [uv.find_uv_bin(), "pip", "install", "--offline", "--no-index", "--no-deps", "--python"]
    subprocess.run([*install, machine.bin / "python", wheel], check=True, capture_output=True)
    return machine


def test_the_base_install_has_what_pyproject_says_and_nothing_else() -> None:
    assert sorted(find_base_distributions()) == [
        *("annotated-types", "docstring-parser", "filelock", "jsonschema-rs", "msgspec", "platformdirs", "pydantic"),
        *("pydantic-core", "typing-extensions", "typing-inspection"),
    ]


def test_the_help_of_every_command_needs_no_extra(machine: Machine) -> None:
    assert machine.prints("handrail", "--help").startswith("usage: handrail")
    assert machine.prints("handrail", "--version") == f"handrail {distribution('handrail').version}\n"

    commands = machine.prints("python", "-W", "error", "-c", HELP).splitlines()

    assert {"chat", "mcp serve", "policy check", "doubts resolve", "doctor"} <= set(commands)


def test_the_doctor_says_what_is_missing(machine: Machine) -> None:
    shown = machine.prints("handrail", "doctor")

    assert re.search(r"^  sql +missing +ledger, approvals", shown, re.MULTILINE)
    assert "installed  " not in shown
    assert "pip install 'handrail[NAME]'" in shown
    assert re.search(r"^  smollm2-135m +98 MB +handrail model pull smollm2-135m$", shown, re.MULTILINE)
    assert not (machine.folder / ".cache").exists()


def test_the_programs_of_the_readme_that_need_no_framework_run_and_write_nothing_to_standard_error(
    machine: Machine,
) -> None:
    sources = [example.source for example in find_examples(ROOT / "README.md") if "pydantic_ai" not in example.source]
    assert len(sources) >= 5
    program = "\n".join(sources)
    (machine.folder / "readme.py").write_text(program)

    shown = machine.prints("python", "-W", "error", "-c", RUN, "readme.py")

    assert shown.splitlines() == PRINTED.findall(program)


def test_the_demo_kills_processes_and_pays_once(machine: Machine) -> None:
    assert machine.prints("handrail", "demo") == (ROOT / "docs" / "demo.txt").read_text("utf-8")


def test_an_executor_in_memory_is_verified_without_an_extra(machine: Machine) -> None:
    (machine.folder / "agent.py").write_text(
        f"{AGENT}\nfrom handrail import Executor\nexecutor = Executor(TOOLS, policy=POLICY)\n"
    )

    ended = machine.run("handrail", "verify", "agent.py:executor")

    assert (ended.returncode, ended.stderr) == (1, "")
    assert "  FAILS     a call that is delivered twice takes effect once" in ended.stdout


def test_a_policy_is_checked_and_models_are_listed_without_an_extra(machine: Machine) -> None:
    (machine.folder / "agent.py").write_text(AGENT)
    (machine.folder / "policy.json").write_text(json.dumps({"rules": [{"deny": "payy"}]}))

    assert machine.prints("handrail", "policy", "check", "--agent", "agent.py") == "1 rule, 1 tool: all can apply.\n"
    wrong = machine.run("handrail", "policy", "check", "policy.json", "--tools", "agent.py:TOOLS")
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert "unknown tool 'payy'; did you mean 'pay'?" in wrong.stdout
    assert "smollm2-135m" in machine.prints("handrail", "model", "list")


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["chat"], "cli"),
        (["doubts", "list", "--store", "sqlite:///nope.db"], "sql"),
        (["policy", "check", "policy.yaml"], "yaml"),
        (["mcp", "inspect", "https://shop.example/mcp"], "mcp"),
        (["openapi", "inspect", "https://shop.example/openapi.json"], "openapi"),
        (["phone", "simulate"], "yaml"),
        (["eval", "tools", "--provider", "embedded"], "embedded"),
    ],
)
def test_a_command_that_needs_an_extra_says_which(machine: Machine, command: list[str], extra: str) -> None:
    (machine.folder / "policy.yaml").write_text("rules: []\n")

    ended = machine.run("handrail", *command)

    assert ended.returncode == 1, ended
    assert ended.stderr.startswith("handrail: ")
    assert f"pip install 'handrail[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (machine.folder / "nope.db").exists()
