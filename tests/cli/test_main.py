"""The command, as a person types it."""

import asyncio
import json
import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

import handrail
from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.cli.doctor import EXTRAS
from handrail.cli.main import main
from handrail.store import open_store

ROOT = Path(__file__).parents[2]


def test_the_recorded_conversation_moves_the_money_once_and_says_that_it_is_recorded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["chat"]) == 0

    shown = capsys.readouterr().out
    assert "recorded" in shown.splitlines()[0]
    assert "invalid_arguments" in shown
    assert "needs the customer" in shown
    assert shown.count("Transferred 120 EUR to Sophie.") == 1
    assert "already_executed, not run again" in shown
    assert shown.splitlines()[-1].endswith("transfers made: 120 EUR to Sophie")


@pytest.mark.parametrize("option", [["--model", "gpt-5"], ["--provider", "openai"], ["--session", "s-1"]])
def test_what_the_recorded_conversation_has_no_use_for_is_refused(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", *option]) == 1
    assert f"{option[0]} needs a terminal; without one" in capsys.readouterr().err


def test_quiet_leaves_only_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--quiet"]) == 0

    shown = capsys.readouterr().out
    assert "invalid_arguments" not in shown
    assert "Done: 120 EUR went to Sophie, once." in shown


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: handrail" in capsys.readouterr().out


def test_a_command_that_fails_says_why_and_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong = tmp_path / "tools.py"
    for text, says in (
        (None, "is not a file"),
        ("", "must define TOOLS"),
        ("TOOLS = [3]", "is not tool-shaped"),
        ("TOOLS = []\nPOLICY = 3", "POLICY in"),
        ("TOOLS = []\nINSTRUCTIONS = 3", "INSTRUCTIONS in"),
        ("TOOLS = []\nmake_deps = 3", "make_deps in"),
        ("TOOLS = 5", "must be a list of tools, got int"),
        ("from handrail import tool\n@tool\ndef pay() -> str:\n    'Pay.'\nTOOLS = pay", "a list of tools, got Tool"),
    ):
        if text is not None:
            wrong.write_text(text)
        assert main(["chat", str(wrong)]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("handrail: ")
        assert says in shown.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["openapi", "inspect", "http://[bad"], "source must be a valid URL, got 'http://[bad'"),
        (["mcp", "inspect", "npx 'server"], "npx 'server is not a command: No closing quotation"),
        (["mcp", "serve", "tools.py:NUMBER"], "tools.py:NUMBER must be an Executor or a list of tools, got int."),
        (["mcp", "serve", "tools.py:TOOL", "--http", "--port", "65536"], "port must be 0 to 65535, got 65536."),
        (["serve", "--grace", "-1"], "grace must be at least 0 seconds, got -1."),
        (["worker", "tools.py:TOOL", "--grace", "-1"], "grace must be at least 0 seconds, got -1."),
    ],
)
def test_a_value_that_cannot_be_used_is_named(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tools.py").write_text("NUMBER = TOOL = 5\n")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith(f"handrail: {problem}")


def test_a_limit_may_be_larger_than_a_database_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    assert main(["keys", "create", "--role", "viewer", "--who", "ann", "--store", url]) == 0
    for command in (["doubts", "list"], ["audit"], ["approvals", "list"]):
        assert main([*command, "--limit", "9" * 20, "--store", url]) == 0
    assert "nothing is in doubt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "says"),
    [
        (
            ["audit", "--sesion", "s-1"],
            "handrail audit ",
            "unrecognized arguments: --sesion s-1; did you mean '--session'?",
        ),
        (["approvals", "list", "--all"], "handrail approvals list ", "unrecognized arguments: --all"),
        (["--verison"], "handrail ", "unrecognized arguments: --verison; did you mean '--version'?"),
    ],
)
def test_an_unknown_option_is_answered_with_the_usage_of_its_command(
    arguments: list[str], usage: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)

    shown = capsys.readouterr().err
    assert shown.startswith(f"usage: {usage}[-h]")
    assert shown.strip().endswith(says)


@pytest.mark.parametrize(
    "command", [["why", "s-1", "c-1"], ["audit"], ["doubts", "list"], ["approvals", "list"], ["keys", "list"]]
)
def test_without_the_extra_sql_a_command_says_how_to_install_it(command: list[str]) -> None:
    program = (
        f"import sys; sys.modules['sqlalchemy'] = None; from handrail.cli.main import main; sys.exit(main({command}))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode == 1
    assert ended.stderr == "handrail: `sqlalchemy` is not installed. Install it with: pip install 'handrail[sql]'\n"


def test_the_file_of_a_gateway_is_not_run_as_an_agent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("sources: {}\n")
    for command in (["chat", str(file)], ["tools", "list", "--agent", str(file)]):
        assert main(command) == 1
        assert capsys.readouterr().err == f"handrail: {file} is not a Python file; expected one that defines TOOLS.\n"


def test_the_version_is_the_one_that_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])

    assert capsys.readouterr().out == f"handrail {version('handrail')}\n"
    assert handrail.__version__ == version("handrail")


def test_the_doctor_knows_what_every_extra_gives(capsys: pytest.CaptureFixture[str]) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert EXTRAS.keys() == declared.keys() - {"all", "dev"}

    assert main(["doctor"]) == 0

    shown = capsys.readouterr().out
    assert f"handrail {handrail.__version__}, in " in shown
    assert f"Python {platform.python_version()}" in shown
    assert re.search(r"^  sql +installed +ledger", shown, re.MULTILINE)
    for extra, gives in EXTRAS.items():
        assert re.search(rf"^  {extra}  +\S.* {re.escape(gives)}$", shown, re.MULTILINE)
    assert re.search(r"^  smollm2-135m +98 MB ", shown, re.MULTILINE)


def test_the_doctor_says_what_an_extra_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_version(name: str) -> str:
        if name in ("fastapi", "rich"):
            raise PackageNotFoundError(name)
        return "0.1" if name == "uvicorn" else version(name)

    monkeypatch.setattr("handrail.cli.doctor.version", find_version)
    assert main(["doctor"]) == 0

    shown = capsys.readouterr().out
    wanted = (
        r"^  serve +in part +handrail serve: the gateway and its console \(fastapi missing, uvicorn 0\.1 is older than "
    )
    assert re.search(wanted, shown, re.MULTILINE)


def test_the_doctor_opens_a_store_and_does_not_change_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'handrail.db'}"
    (tmp_path / "handrail.db").touch()
    assert main(["doctor", "--store", url]) == 1
    assert "does not open: the tables of this database are at revision None" in capsys.readouterr().out

    async def create() -> None:
        async with open_store(url):
            pass

    asyncio.run(create())
    assert main(["doctor", "--store", url]) == 0
    assert "opens, and its tables are those of this version" in capsys.readouterr().out


EVIL = "x\x1b[2J\x1b]0;title\x07\u202e\n2026-11-18 12:00:00  call_finished  pay  ok  allow operator (ann)"
"""What a model or a caller can name a call, a session or a customer."""


@pytest.mark.parametrize(
    "command",
    [
        *(["audit"], ["doubts", "list"], ["approvals", "list"], ["approvals", "list", "--history"]),
        *(["audit", "--json"], ["approvals", "list", "--json"], ["why", EVIL, f"0{EVIL}"]),
    ],
)
def test_what_others_have_named_is_one_line_and_moves_no_cursor(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'handrail.db'}"

    @tool
    async def pay(to: str) -> str:
        """Pay."""
        raise ConnectionError("lost")

    async def run() -> int:
        policy = Policy([Rule.ask("pay", by="operator", where={"to": {"equals": "bob"}}), Rule.allow("pay")])
        async with open_store(url) as store:
            executor = Executor([pay], policy=policy, store=store)
            context = ToolContext[Any](session_id=EVIL, customer_id=EVIL, tenant_id=EVIL)
            for number, to in enumerate((EVIL, "bob")):
                await executor.run(
                    ToolCall(id=f"{number}{EVIL}", name="pay", arguments_json=json.dumps({"to": to})), context
                )
            await store.audit.flush(timeout=10)
            kinds = {"audit": len(await store.audit.query(limit=100))}
            await executor.aclose()
            return kinds.get(command[0], 1)

    count = asyncio.run(run())
    assert main([*command, "--store", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    if command[0] == "why":
        lines = lines[:1]
        assert lines[0].endswith("ok  allow operator (ann))")
    if command[0] == "doubts":  # A second line has its worker.
        assert lines.pop().startswith("    worker ")
    assert len(lines) == count
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("2026-11-18 12:00:00") for line in lines)


def test_a_closed_output_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # As the interpreter does for `handrail doctor >&-`.
    assert main(["doctor"]) == 0
