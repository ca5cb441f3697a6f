"""The command, as a person types it."""

from pathlib import Path

import pytest

from handrail.cli.main import main


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
    ):
        if text is not None:
            wrong.write_text(text)
        assert main(["chat", str(wrong)]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("handrail: ")
        assert says in shown.err
