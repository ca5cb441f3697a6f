"""The command line is one program among others: who reads its output may stop reading."""

import subprocess
import sys


def test_a_reader_that_leaves_is_no_error() -> None:
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "handrail.cli", "doctor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    program.stdout.close()
    _, errors = program.communicate(timeout=60)

    assert (program.returncode, errors) == (0, "")
