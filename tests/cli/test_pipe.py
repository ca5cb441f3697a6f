"""The command line is one program among others: who reads its output may stop reading."""

import subprocess
import sys
from pathlib import Path


def start(*arguments: str) -> tuple[int, str]:
    """Run a command whose reader has left: its exit code, and what it complained about."""
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "handrail.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    program.stdout.close()
    _, errors = program.communicate(timeout=60)
    return program.returncode, errors


def test_a_reader_that_leaves_is_no_error() -> None:
    assert start("doctor") == (0, "")


def test_a_check_whose_output_was_cut_off_is_not_passed(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("TOOLS = []\n")
    policy = tmp_path / "policy.json"
    policy.write_text('{"rules": [{"allow": "unknown"}]}')
    command = ["policy", "check", str(policy), "--tools", f"{tmp_path / 'tools.py'}:TOOLS"]
    assert start(*command) == (1, "")
