"""What was said in a call, as values, as events and on the command line."""

from pathlib import Path

import pytest

from handrail.cli.main import main
from handrail.phone import SpeechTranscribed, read_transcript
from tests.phone.calls import play
from tests.tenants.samples import acme


def test_a_transcript_says_who_said_what_and_what_was_not_heard_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = play(
        {
            "model": [
                {"say": "Hello, this is Acme."},
                {"say": "We are open from nine to five, from Monday to Friday, and on Saturdays until noon."},
                {"say": "Goodbye."},
            ],
            "caller": [
                {"say": "When are you open? My card is 4111 1111 1111 1111."},
                {"barge": "Thanks, bye!", "on": "audio"},
                {"sleep": 5},
            ],
        },
        tenants=[acme(greeting="Hello, this is Acme.", transcription_model="gpt-4o-transcribe")],
        recordings=tmp_path,
    )

    events = sorted(played.of(SpeechTranscribed), key=lambda event: event.seconds)  # Transcripts come late.
    assert [(event.speaker, event.is_interrupted) for event in events] == [
        ("agent", False),
        ("caller", False),
        ("agent", True),
        ("caller", False),
        ("agent", False),
    ]
    assert events[0].text == "Hello, this is Acme."
    assert "4111" not in events[1].text  # Redacted as recordings are.
    [file] = tmp_path.iterdir()
    lines = read_transcript(file)
    assert [line.text for line in lines] == [event.text for event in events]
    assert main(["phone", "transcript", str(file)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 5
    assert sum(line.endswith("[interrupted]") for line in printed) == 1
