"""`handrail phone simulate`: whole calls from files."""

import re
from pathlib import Path

import pytest

from handrail.cli.main import main

SCRIPT = """
name: a greeting
call: {to: "+441632960100"}
model: [{say: "North Lamps, good morning."}]
caller: [{wait: speech}, {wait: silence}, {hangup: 1}]
expect: [{heard: "%s"}]
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "call.yaml"
    file.write_text(SCRIPT % "good morning")
    return file


def test_the_example_goes_as_its_scripts_expect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["phone", "simulate"]) == 0

    printed = capsys.readouterr().out
    assert 'caller  "Yes, please."' in printed
    assert "output of booked: Booked: monday, 09:30, Ann Lee." in printed
    assert 'refer {"target_uri": "tel:+441632960101"} -> 200' in printed
    assert "FAIL" not in printed
    assert printed.count("unanswered 0, never voiced 0, duplicate outputs 0, errors 0") == 3


def test_a_call_that_does_not_go_as_expected_fails(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["phone", "simulate", str(script)]) == 0
    assert "response.done" not in capsys.readouterr().out
    script.write_text(SCRIPT % "good night")
    assert main(["phone", "simulate", str(script), "--verbose"]) == 1
    printed = capsys.readouterr().out
    assert "FAIL heard: good night (heard ['North Lamps, good morning.'])" in printed
    assert "input_audio_buffer" not in printed  # the caller said nothing
    assert "output_audio_buffer.stopped" in printed


def test_an_agent_of_ones_own(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tenants = tmp_path / "tenants"
    tenants.mkdir()
    (tenants / "shop.yaml").write_text('tenant_id: shop\nnumbers: ["+441632960100"]\ngreeting: Hello.\n')
    agent = tmp_path / "agent.py"
    agent.write_text("from handrail.tenants import ToolBuilder\nTOOLS = ToolBuilder()\n")
    assert main(["phone", "simulate", str(script), "--tenants", str(tenants), "--agent", str(agent)]) == 0
    assert main(["phone", "simulate", str(script), "--tenants", str(tenants)]) == 0
    agent.write_text("TOOLS = []\n")
    assert main(["phone", "simulate", str(script), "--agent", str(agent)]) == 1
    assert "must define TOOLS, a ToolBuilder, got list" in capsys.readouterr().err


def test_files_that_are_wrong_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "call.yaml"
    script.write_text("caller: [{shout: hello}]\n")
    assert main(["phone", "simulate", str(script)]) == 1
    assert "call.yaml:1: caller[0]: has none of the keys say" in capsys.readouterr().err
    assert main(["phone", "simulate", "--agent", str(tmp_path / "missing.py")]) == 1
    assert "missing.py is not a file" in capsys.readouterr().err


def test_a_copy_of_the_example_is_played_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["phone", "example", "mine"]) == 0
    assert main(["phone", "example", "mine"]) == 1
    assert "mine: the example cannot be copied: File exists." in capsys.readouterr().err
    monkeypatch.chdir(tmp_path / "mine")
    agent = Path("agent.py")
    agent.write_text(agent.read_text().replace('"14:00"', '"17:00"'))

    assert main(["phone", "simulate", "calls/book.yaml"]) == 0
    assert '"10:00","17:00"' in capsys.readouterr().out
    Path("calls/other.yaml").write_text('call: {to: "+4915100000"}\nexpect: [{ended: caller}]\n')
    assert main(["phone", "simulate"]) == 1
    printed = capsys.readouterr().out
    assert "FAIL ended: caller (it ended: rejected)" in printed
    assert "no tenant has the dialled number +4915100000" in printed
    assert "the tenants have +441632960100, +33199000100" in printed
    assert printed.endswith("4 calls, 1 failed\n")
    agent.write_text("import os\nos.nothing\n")
    assert main(["phone", "simulate"]) == 1
    assert "agent.py:2: AttributeError: module 'os' has no attribute 'nothing'" in capsys.readouterr().err


def test_the_first_page_of_the_documentation_shows_what_the_example_does(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/phone.md").read_text("utf-8")
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert main(["phone", "simulate"]) == 0
    printed = [line[9:].strip() for line in capsys.readouterr().out.splitlines()]  # without the time

    lines = [line.strip() for line in shown.group(1).splitlines() if line.strip() not in ("", "…")]
    assert len(lines) > 8
    assert [line for line in lines if line not in printed] == []


def test_a_recording_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["phone", "transcript", str(tmp_path / "none.jsonl")]) == 1
    assert capsys.readouterr().err == (
        f"handrail: {tmp_path / 'none.jsonl'}: the recording cannot be read: No such file or directory.\n"
    )
    (tmp_path / "sound.wav").write_bytes(b"RIFF\xff\xff")
    assert main(["phone", "transcript", str(tmp_path / "sound.wav")]) == 1
    assert "the recording cannot be read: it is not UTF-8." in capsys.readouterr().err
