"""What a type checker says about code that uses Handrail: `tests/typing/` is checked, never run.

A line there that ends in `# E: rule` must be an error of that rule; every other line must be free of errors.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TYPING = Path(__file__).resolve().parents[1] / "typing"
EXPECTED = re.compile(r"# E: ([\w, ]+)$")


def promised() -> set[tuple[str, int, str]]:
    return {
        (str(path.relative_to(TYPING)), number, rule.strip())
        for path in TYPING.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := EXPECTED.search(line))
        for rule in match[1].split(",")
    }


def reported() -> dict[tuple[str, int, str], str]:
    pyright = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(TYPING)]
    quiet = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    run = subprocess.run(pyright, capture_output=True, text=True, env=quiet, check=False)
    assert run.stdout.startswith("{"), run.stdout + run.stderr
    answer = json.loads(run.stdout)
    assert answer["summary"]["filesAnalyzed"] > 0
    return {
        (
            str(Path(found["file"]).relative_to(TYPING)),
            found["range"]["start"]["line"] + 1,
            found.get("rule", "syntax"),
        ): found["message"]
        for found in answer["generalDiagnostics"]
        if found["severity"] != "information"
    }


@pytest.mark.proves("TC-29", "TC-48", "TC-54")
@pytest.mark.node
@pytest.mark.timeout(300)
def test_the_public_types_are_what_they_are_promised_to_be() -> None:
    expected, found = promised(), reported()

    assert {place: message for place, message in found.items() if place not in expected} == {}
    assert expected - found.keys() == set()
