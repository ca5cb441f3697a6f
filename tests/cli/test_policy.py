"""`handrail policy check`, as a developer and a CI job type it."""

from pathlib import Path

import pytest

from handrail.cli.main import main

TOOLS = '''
from handrail import Executor, ToolFlags, tool

@tool
def refund(order_id: str, amount: int) -> str:
    """Refund."""
    return ""

TOOLS = [refund]
DECLARED = {"pay": ToolFlags(key="invoice_id")}
EXECUTOR = Executor([refund], declared=DECLARED)
OPEN = Executor([refund], fallback=lambda call, context: None)
'''

POLICY = """
rules:
  - deny: refnd
  - ask: refund
    by: operator
    where: {amuont: {above: 5}}
  - allow: pay
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(TOOLS)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "good.yaml").write_text("rules:\n  - deny: refund\n    where: {amount: {above: 5}}\n")
    return tmp_path


def test_rules_that_can_never_apply_are_errors_with_their_file_and_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "check", "policy.yaml", "--tools", "agent.py:TOOLS", "--tools", "agent.py:DECLARED"]) == 1

    assert capsys.readouterr().out.splitlines() == [
        "policy.yaml:3: error: rule 1: unknown tool 'refnd'; did you mean 'refund'?",
        "policy.yaml:4: error: rule 2: unknown argument 'amuont'; did you mean 'amount'?",
        "3 rules, 2 tools: 2 can never apply.",
    ]


def test_an_executor_and_an_agent_file_have_their_tools(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", "policy.yaml", "--tools", "agent.py:EXECUTOR"]) == 1
    assert "2 can never apply" in capsys.readouterr().out
    assert main(["policy", "check", "good.yaml", "--agent", "agent.py"]) == 0
    assert capsys.readouterr().out == "1 rule, 1 tools: all can apply.\n"


def test_for_tools_that_are_not_all_known_they_are_notes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", "policy.yaml", "--tools", "agent.py:OPEN"]) == 0
    assert "policy.yaml:3: note: rule 1: unknown tool 'refnd'" in capsys.readouterr().out


def test_a_policy_that_cannot_be_read_is_an_error_with_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.yaml").write_text("rules:\n  - deny: pay\n    where: {country: NO}\n")
    assert main(["policy", "check", "bad.yaml"]) == 1
    assert "bad.yaml:3: `NO` would be read as a bool" in capsys.readouterr().err
    assert main(["policy", "check", "policy.yaml"]) == 0
    assert "not checked" in capsys.readouterr().out
    assert main(["policy", "check"]) == 1
    assert "Name a policy file" in capsys.readouterr().err
