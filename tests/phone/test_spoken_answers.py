"""How often an answer is understood: the table of docs/phone.md, over sentences that nothing was tuned on."""

import json
import re
from pathlib import Path

import pytest

from handrail.core.consent import read_answer
from handrail.core.locale_texts import LANGUAGES

ROOT = Path(__file__).parents[2]
Lists = dict[str, dict[str, list[str]]]
WRITTEN: Lists = json.loads((ROOT / "tests/core/consent.json").read_text("utf-8"))
SPOKEN: Lists = json.loads(Path(__file__).with_name("spoken_answers.json").read_text("utf-8"))
"""What people say on the phone, as speech recognition writes it: without punctuation, with hesitation."""
SHOWN = {
    "written": "transfer money (recipient: Sophie Chapman; amount: 500)",
    "spoken": "book an appointment: day: Tuesday, time: 9:30",
}


def count(lists: dict[str, list[str]], kind: str, answer: str, shown: str) -> int:
    return sum(read_answer(text, shown=shown) == answer for text in lists[kind])


def build_row(language: str, lists: dict[str, dict[str, list[str]]]) -> str:
    """A line of the table: yes and no of each list, and what was taken for a yes and is none."""
    cells = [language]
    mistaken = 0
    for name, kinds in lists.items():
        cells += [f"{count(kinds, kind, kind, SHOWN[name])}/{len(kinds[kind])}" for kind in ("yes", "no")]
        mistaken += sum(count(kinds, kind, "yes", SHOWN[name]) for kind in ("no", "unclear"))
    return f"| {' | '.join([*cells, str(mistaken)])} |"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_of_the_documentation_is_true(language: str) -> None:
    row = build_row(language, {"written": WRITTEN[language], "spoken": SPOKEN[language]})

    assert row in (ROOT / "docs/phone.md").read_text("utf-8")
    assert row.endswith("| 0 |")


def test_an_answer_without_punctuation_is_never_more_of_a_yes() -> None:
    for lists in WRITTEN.values():
        for text in lists["no"] + lists["unclear"]:
            assert read_answer(re.sub(r"[^\w\s'’-]", " ", text).casefold(), shown=SHOWN["written"]) != "yes", text
