"""The crash test itself, on a real database, with real kills."""

from pathlib import Path

import pytest

from handrail.testing.crashtest import STEPS, Attempt, CrashReport, crashtest, main


async def test_no_effect_is_doubled_lost_or_falsely_reported_when_a_process_is_killed(tmp_path: Path) -> None:
    steps = ("after claim", "after effect")

    report = await crashtest(f"sqlite+aiosqlite:///{tmp_path / 'crash.db'}", steps=steps)

    assert (report.double, report.lost, report.false) == (0, 0, 0), str(report)
    assert {(attempt.step, attempt.verified) for attempt in report.attempts} == {
        (step, told) for step in steps for told in (False, True)
    }
    assert any(said == "outcome_unknown" for attempt in report.attempts for said, _ in attempt.results)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_step_of_a_call_survives_a_kill(tmp_path: Path) -> None:
    report = await crashtest(f"sqlite+aiosqlite:///{tmp_path / 'crash.db'}")

    assert (report.double, report.lost, report.false) == (0, 0, 0), str(report)
    assert len(report.attempts) == 2 * len(STEPS)


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["-h"], 0), ([], 2), (["a.db", "b.db"], 2)])
def test_the_command_says_how_it_is_used(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == status
    assert "python -m handrail.testing.crashtest sqlite" in capsys.readouterr().out


def test_a_database_that_cannot_be_used_is_named_and_is_not_taken_for_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crash.db"]) == main([f"sqlite:///{tmp_path}/nowhere/crash.db"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("url must be a database URL")
    assert second.startswith("the directory of the database must exist")


@pytest.mark.parametrize(
    ("effects", "results", "counts"),
    [
        (2, [("ok", 1), ("ok", 2)], (1, 0, 0)),
        (0, [("ok", 0), ("ok", 0)], (0, 0, 1)),
        (1, [("tool_execution_failed", 1), ("ok", 1)], (0, 0, 1)),
        (0, [("cancelled", 0), ("cancelled", 0)], (0, 1, 0)),
        (0, [("outcome_unknown", 0), ("outcome_unknown", 0)], (0, 0, 0)),
        (1, [("tool_execution_failed", 0), ("ok", 1)], (0, 0, 0)),
    ],
)
def test_a_report_counts_what_is_wrong(
    effects: int, results: list[tuple[str, int]], counts: tuple[int, int, int]
) -> None:
    report = CrashReport(
        attempts=(Attempt(step="after claim", verified=False, effects=effects, results=tuple(results)),)
    )

    assert (report.double, report.lost, report.false) == counts
