"""`handrail demo`, as a person runs it: in a process of its own, which forks and kills others."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.authorize import Approvals, MemoryApprovals
from handrail.cli.demo.store import use_file
from handrail.cli.main import main
from handrail.cli.processes import run_processes
from handrail.execute import Ledger, MemoryLedger

ROOT = Path(__file__).parents[2]
OUTPUT = (ROOT / "docs" / "demo.txt").read_text("utf-8")
"""What the command prints, and what the README shows."""


def run_demo(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "handrail.cli", "demo"],
        env={**os.environ, "TMPDIR": str(directory), "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_five_failures_pay_wrongly_without_handrail_and_never_with_it(tmp_path: Path) -> None:
    ended = run_demo(tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == OUTPUT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_the_two_programs_of_each_failure_are_shown(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--explain", str(number)]) == 0

    shown = capsys.readouterr().out
    title = next(line for line in OUTPUT.splitlines() if line.startswith(f"{number}. "))
    assert shown.startswith(title)
    assert "_without(directory: Path) -> str:" in shown
    assert "_with(directory: Path) -> ToolResult:" in shown
    assert "executor.run" in shown


def test_a_failure_that_does_not_exist_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--explain", "6"])

    assert "argument --explain: invalid choice: 6" in capsys.readouterr().err


def test_every_method_of_the_demos_store_is_a_transaction(tmp_path: Path) -> None:
    """What is added to a protocol and forgotten there would work in one process only."""
    options = use_file(tmp_path / "ledger")
    for part, memory, protocol, others in (
        (options["ledger"], MemoryLedger, Ledger, {"end_renewals"}),
        (options["approvals"], MemoryApprovals, Approvals, {"wait"}),
    ):
        names = {name for name, member in vars(protocol).items() if inspect.iscoroutinefunction(member)} - others
        assert len(names) > 5
        assert {name for name in names if getattr(type(part), name) is getattr(memory, name)} == set()


def test_the_picture_of_the_demo_in_the_readme_is_what_it_prints() -> None:
    assert OUTPUT in (ROOT / "README.md").read_text("utf-8")


def test_a_process_that_is_interrupted_prints_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(RuntimeError, match="a process ended with 1"):
        run_processes(interrupt)
    assert capfd.readouterr().err == ""
