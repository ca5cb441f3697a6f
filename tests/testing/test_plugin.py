"""The pytest plugin, seen from a project that uses it: every test here runs pytest in a folder of its own."""

import json
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from handrail.testing import plugin

ROOT = Path(__file__).parents[2]

BANK = '''
import pytest
from handrail import Policy, Rule, ToolCall, ToolContext, ToolError, tool
from handrail.testing import run_tool_async

HERE = ToolContext(session_id="s-1", customer_id="ann", turn=1)


def call(name, arguments="{}", call_id="1"):
    return ToolCall(id=call_id, name=name, arguments_json=arguments)


@tool
def pay(amount: int, password: str = "") -> str:
    """Pay an amount."""
    from pathlib import Path
    with Path(__file__).with_name("effects").open("a") as file:
        file.write("paid\\n")
    return f"paid {amount}"
'''


class Project:
    """A folder with one file of tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tests(self, code: str, *, name: str = "test_bank.py") -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(BANK + dedent(code))

    def run(self, *options: str) -> tuple[int, str]:
        """The exit code of pytest, and what it printed."""
        plugins = ("handrail.testing.plugin", "pytest_asyncio.plugin", "xdist.plugin", "no:cacheprovider")
        loaded = [part for item in plugins for part in ("-p", item)]
        settings = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", "-W", "error")
        command = [sys.executable, "-m", "pytest", "-q", *settings, *loaded, *options]
        # Without autoload: the installed plugin may be there under its own name, or not yet.
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "src")}
        environment.pop("PYTEST_ADDOPTS", None)
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    @property
    def effects(self) -> int:
        """How often the tool really ran."""
        file = self.folder / "effects"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def cassettes(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*.json"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]

    assert points == {"handrail": plugin.__name__}
    assert import_module(points["handrail"]) is plugin


def test_the_plugin_is_light_until_a_fixture_is_used() -> None:
    code = "import sys, handrail.testing.plugin; print([name for name in sys.modules if name.startswith('handrail.')])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    for name in ("handrail.execute", "handrail.providers", "handrail.testing.cassette", "handrail.testing.servers"):
        assert repr(name) not in done.stdout
    assert "handrail.testing.plugin" in done.stdout


def test_make_executor_records_shows_what_was_called_and_is_closed_at_the_end(project: Project) -> None:
    project.tests('''
        import asyncio


        async def test_records(make_executor):
            executor = make_executor([pay], policy=Policy([Rule.allow("pay")]))
            await executor.run(call("pay", '{"amount": 5}'), HERE)
            assert make_executor.find_calls("pay", amount=5)
            assert len(make_executor.calls) == 1


        def test_is_new_for_every_test_and_works_without_a_loop(make_executor):
            assert not make_executor.calls
            assert not make_executor([pay]).run_sync(call("pay", '{"amount": 5}'), HERE).ok
            assert [decision.action for decision in make_executor.decisions] == ["ask"]


        async def test_shows_what_was_called(make_executor):
            await make_executor.allow_all([pay]).run(call("pay", '{"amount": 5}'), HERE)
            assert make_executor.find_calls("refund")


        async def test_leaves_something_running(make_executor):
            @tool(read_only=True)
            async def hangs() -> None:
                """Hangs."""
                try:
                    await asyncio.Event().wait()
                finally:
                    print("it was ended")

            globals()["kept"] = asyncio.ensure_future(make_executor([hangs]).run(call("hangs"), HERE))
            while not make_executor.events:
                await asyncio.sleep(0)
    ''')
    code, said = project.run("-rP")

    assert code == 1
    assert "3 passed" in said
    assert "1 failed" in said
    assert """<ExecutorFactory: pay({"amount": 5}) -> 'paid 5'>.find_calls""" in said
    assert "it was ended" in said


def test_a_cassette_is_recorded_and_replayed_without_running_anything(project: Project) -> None:
    project.tests("""
        async def test_pays(cassette):
            (recorded,) = cassette.tools([pay])
            assert (await run_tool_async(recorded, amount=5, password="canary-7f3a")).output == "paid 5"
    """)
    code, said = project.run()
    assert code == 1
    assert "there is no cassette" in said
    assert "pytest --cassette=record" in said
    assert "1 failed" in said
    assert (project.effects, project.cassettes()) == (0, [])

    assert project.run("--cassette=record")[0] == 0
    assert (project.effects, project.cassettes()) == (1, ["cassettes/test_bank/test_pays.json"])
    assert "canary" not in (project.folder / project.cassettes()[0]).read_text()

    for mode in ("replay", "strict", "new"):
        code, said = project.run(f"--cassette={mode}")
        assert code == 0, said
    assert project.effects == 1


def test_a_call_that_is_not_recorded_fails_the_test_even_if_nobody_looks_at_the_result(project: Project) -> None:
    project.tests("""
        async def test_does_not_look(cassette):
            await run_tool_async(cassette.tools([pay])[0], amount=5)


        async def test_looks(cassette):
            assert (await run_tool_async(cassette.tools([pay])[0], amount=6)).ok


        async def test_asks_late(request):
            cassette = request.getfixturevalue("cassette")
            await run_tool_async(cassette.tools([pay])[0], amount=7)


        def test_does_not_call(cassette):
            assert cassette.tools([pay])[0].name == "pay"
    """)
    code, said = project.run()

    assert code == 1
    assert "3 failed" in said
    assert "1 passed" in said
    for amount in (5, 6, 7):
        assert f'\'pay\' was called with {{"amount":{amount},"password":"[redacted]"}}' in said
    assert project.effects == 0


def test_unused_recordings_fail_only_when_that_is_asked_for(project: Project) -> None:
    project.tests("""
        async def test_pays(cassette):
            await run_tool_async(cassette.tools([pay])[0], amount=5)
    """)
    assert project.run("--cassette=record")[0] == 0
    file = project.folder / project.cassettes()[0]
    read = json.loads(file.read_text())
    read["tools"].append({**read["tools"][0], "arguments": {"amount": 6}})
    file.write_text(json.dumps(read))

    assert project.run()[0] == 0
    code, said = project.run("--cassette=strict")
    assert code == 1
    assert 'recordings that were not used: pay({"amount":6})' in said


def test_new_records_only_what_has_no_recording_and_a_failed_test_saves_nothing(project: Project) -> None:
    project.tests("""
        async def test_old(cassette):
            await run_tool_async(cassette.tools([pay])[0], amount=5)
    """)
    assert project.run("--cassette=new")[0] == 0
    project.tests("""
        async def test_old(cassette):
            await run_tool_async(cassette.tools([pay])[0], amount=5)


        async def test_another(cassette):
            await run_tool_async(cassette.tools([pay])[0], amount=6)


        async def test_fails(cassette):
            await run_tool_async(cassette.tools([pay])[0], amount=7)
            raise KeyError
    """)
    assert "1 failed" in project.run("--cassette=new")[1]

    assert project.effects == 3
    assert project.cassettes() == ["cassettes/test_bank/test_another.json", "cassettes/test_bank/test_old.json"]


def test_every_test_has_a_file_of_its_own_whatever_it_is_called_also_with_workers(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.parametrize("name", ["a/b", "a:b", "../../up", "x" * 300, "é", ""])
        async def test_pays(cassette, name):
            await run_tool_async(cassette.tools([pay])[0], amount=len(name))


        class TestDesk:
            async def test_pays(self, cassette):
                await run_tool_async(cassette.tools([pay])[0], amount=1)
        """,
        name="deep/test_bank.py",
    )
    code, said = project.run("--cassette=record", "-n", "2")
    assert code == 0, said

    found = project.cassettes()
    assert len(found) == 7
    assert all(item.startswith("deep/cassettes/test_bank/") and item.count("/") == 3 for item in found)
    assert "deep/cassettes/test_bank/TestDesk.test_pays.json" in found
    code, said = project.run("--cassette=strict", "-n", "2")
    assert code == 0, said


def test_a_corrupt_cassette_is_named(project: Project) -> None:
    project.tests("""
        def test_pays(cassette):
            pass
    """)
    file = project.folder / "cassettes" / "test_bank" / "test_pays.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    code, said = project.run()

    assert code == 1
    assert f"the cassette {file} cannot be read" in said


def test_a_project_hides_more_with_a_redactor_of_its_own(project: Project) -> None:
    project.tests("""
        from handrail.core.redact import Redactor


        @pytest.fixture(scope="session")
        def cassette_redactor():
            return Redactor(patterns=["paid [0-9]+"])


        async def test_pays(cassette):
            await run_tool_async(cassette.tools([pay])[0], amount=5)
    """)
    assert project.run("--cassette=record")[0] == 0

    assert "paid 5" not in (project.folder / project.cassettes()[0]).read_text()


def test_an_unknown_mode_is_a_usage_error(project: Project) -> None:
    code, said = project.run("--cassette=all")

    assert code == 4
    assert "invalid choice: 'all'" in said
