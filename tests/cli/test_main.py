"""The command, as a person types it."""

import pytest

from handrail.cli.main import main


def test_the_recorded_conversation_moves_the_money_once_and_says_that_it_is_recorded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["chat"]) == 0

    shown = capsys.readouterr().out
    assert "recorded" in shown.splitlines()[0]
    assert shown.count("Transferred 120 EUR to Sophie.") == 1
    assert "already_executed, not run again" in shown
    assert shown.splitlines()[-1].endswith("transfers made: 120 EUR to Sophie")


def test_quiet_leaves_only_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--quiet"]) == 0

    shown = capsys.readouterr().out
    assert "approval_required" not in shown
    assert "Shall I?" in shown


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: handrail" in capsys.readouterr().out
