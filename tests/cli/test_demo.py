"""`handrail demo`, as a person runs it: in a process of its own, which forks and kills others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.cli.main import main

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


def test_the_picture_of_the_demo_in_the_readme_is_what_it_prints() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")

    assert ("Every process is real" in readme) == (OUTPUT in readme)
