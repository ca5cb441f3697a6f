"""The check of a reply, measured on a committed set: which sentences claim an effect that did not happen."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from handrail.guide.reply_checks import build_effect, find_false_claims, has_statements

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "claims.json").read_text())
EFFECTS = [build_effect(name, text) for name, text in CASES["tools"].items()]


def share(texts: list[str]) -> tuple[float, list[str]]:
    """Which share of the texts makes a claim, and those that do not."""
    missed = [text for text in texts if not find_false_claims(text, candidates=EFFECTS)]
    return 1 - len(missed) / len(texts), missed


@pytest.mark.proves("GC-D16", "GC-44")
@pytest.mark.parametrize(("part", "recall", "alarms"), [("tuned", 1.0, 0.0), ("held_out", 0.87, 0.0)])
def test_claims_are_found_and_honest_texts_are_left_alone(part: str, recall: float, alarms: float) -> None:
    found, missed = share(CASES[part]["claims"])
    wrong, _ = share(CASES[part]["honest"])

    assert found >= recall, missed
    assert wrong <= alarms, [text for text in CASES[part]["honest"] if find_false_claims(text, candidates=EFFECTS)]


@pytest.mark.parametrize(("part", "recall", "alarms"), [("indirect", 60, 1), ("indirect_held_out", 29, 1)])
def test_a_claim_in_other_words_is_found_or_contradicted(part: str, recall: int, alarms: int) -> None:
    caught = [
        text for text in CASES[part]["claims"] if find_false_claims(text, candidates=EFFECTS) or has_statements(text)
    ]
    rejected = [text for text in CASES[part]["honest"] if find_false_claims(text, candidates=EFFECTS)]

    assert len(caught) >= recall, set(CASES[part]["claims"]) - set(caught)
    assert len(rejected) <= alarms, rejected


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("誰に送りますか？", False),
        ("送りました。他にご用はありますか？", True),
        ("À qui dois-je l'envoyer ?", False),
        ("C'est fait. Autre chose ?", True),
        ("Sure, of course. How much is it?", False),
        ("Sure. It costs 3.50.", True),
    ],
)
def test_a_statement_is_told_from_a_question_in_every_language(text: str, states: bool) -> None:
    assert has_statements(text) is states


def test_what_was_really_done_may_be_said() -> None:
    done, open_ = [build_effect("transfer_money")], [build_effect("pay_bill")]

    assert find_false_claims("I transferred the money. Shall I pay the bill?", candidates=open_, committed=done) == ()
    assert find_false_claims("It is done.", candidates=open_, committed=done) == ()
    assert find_false_claims("I transferred the money and paid the bill.", candidates=open_, committed=done)
    assert find_false_claims("The bill has been paid.", candidates=open_, committed=done)


def test_an_effect_that_nobody_considered_is_only_claimed_in_the_first_person() -> None:
    effects = [build_effect("cancel_order", "Cancel an order.")]

    assert find_false_claims("I have cancelled your order.", candidates=[], others=effects)
    assert find_false_claims("Your bank has cancelled the order by itself.", candidates=[], others=effects) == ()
    assert find_false_claims("I have looked at it.", candidates=[], others=effects) == ()


def test_the_page_has_the_figures_of_the_texts_that_were_held_out() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guided.md").read_text()
    plain, indirect = CASES["held_out"], CASES["indirect_held_out"]
    rows = {
        '16 claims in plain words ("I have wired the funds")': plain["claims"],
        '30 claims in other words ("Your debt to the landlord is zero")': indirect["claims"],
        "27 honest texts": plain["honest"] + indirect["honest"],
    }
    for name, texts in rows.items():
        rewritten = [text for text in texts if find_false_claims(text, candidates=EFFECTS)]
        kept = [text for text in texts if text not in rewritten and has_statements(text)]
        left = len(texts) - len(rewritten) - len(kept)
        assert f"| {name} | {len(rewritten)} | {len(kept)} | {left} |" in page


@pytest.mark.parametrize("words", ["you will see ", "you'll get ", "nobody can ", "1.", "confirmation of "])
def test_a_long_draft_that_repeats_itself_is_checked_in_a_moment(words: str) -> None:
    text = words * (100_000 // len(words))
    started = time.process_time()
    find_false_claims(text, candidates=EFFECTS)

    assert time.process_time() - started < 2.0  # It took up to 17 seconds, in which the event loop did nothing else.
