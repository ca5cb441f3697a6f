"""Whether a person agreed: a yes says nothing else, and what is neither yes nor no is asked again."""

import json
from pathlib import Path

import pytest

from handrail import ConfigError
from handrail.core.consent import read_answer
from handrail.core.locale_texts import LANGUAGES, load_locale

HELD_OUT: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_name("consent.json").read_text("utf-8"))
"""Sentences that were written after the words of the locales, and never used to improve them."""
SHOWN = "transfer money (recipient: Sophie Chapman; amount: 500)"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("known", [True, False])
def test_no_sentence_of_the_held_out_list_that_is_not_a_yes_is_read_as_one(language: str, known: bool) -> None:
    locales = (language,) if known else ()
    lists = HELD_OUT[language]
    answers = {text: read_answer(text, locales=locales, shown=SHOWN) for text in lists["no"] + lists["unclear"]}
    assert [text for text, answer in answers.items() if answer == "yes"] == []
    agreed = [text for text in lists["yes"] if read_answer(text, locales=locales, shown=SHOWN) == "yes"]
    assert len(agreed) >= len(lists["yes"]) - 1


def test_the_published_figures_of_the_held_out_list() -> None:
    def count(kind: str) -> tuple[int, int]:
        texts = [text for lists in HELD_OUT.values() for text in lists[kind]]
        return sum(read_answer(text, shown=SHOWN) == kind for text in texts), len(texts)

    assert {kind: count(kind) for kind in ("yes", "no", "unclear")} == {
        "yes": (109, 112),
        "no": (105, 112),
        "unclear": (67, 68),
    }


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Yes, send 500 to Sophie", "yes"),
        ("Yes, five hundred to Sophie Chapman", "yes"),
        ("yes, 400", "unclear"),
        ("Yes, send 500 to Mark", "unclear"),
        ("yes?", "unclear"),
        ("", "unclear"),
        ("...", "unclear"),
        ("Yes, but make it 400", "unclear"),
        ("No, stop, do not pay that!", "no"),
        ("No, wait … yes", "unclear"),
        ("No problem, go ahead", "yes"),
        ("Thanks", "unclear"),
        ("500", "unclear"),
        ("Yes. My card was stolen yesterday", "unclear"),
        ("Да", "yes"),
        ("ＯＫ", "yes"),
    ],
)
def test_a_yes_repeats_what_was_shown_and_says_nothing_else(text: str, answer: str) -> None:
    assert read_answer(text, shown=SHOWN) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("yes, 500k", "unclear"),
        ("yes, 500 k", "unclear"),
        ("yes, 500m", "unclear"),
        ("yes, 500,000", "unclear"),
        ("yes, 500.000", "unclear"),
        ("yes, 0.5k", "yes"),
        ("yes, 500.00", "yes"),
        ("yes, 500,00", "yes"),
        ("yes, 5,00,000", "unclear"),
        ("да, 500к", "unclear"),
        ("да, 500 К.", "yes"),
    ],
)
def test_a_number_that_can_be_a_thousand_times_as_much_is_another_one(text: str, answer: str) -> None:
    assert read_answer(text, shown=SHOWN) == answer


def test_a_number_with_three_decimals_is_the_same_number_if_it_is_written_like_that() -> None:
    assert read_answer("yes, 12.345", shown="book (rate: 12.345)") == "yes"
    assert read_answer("yes, 0,125", shown="book (share: 0.125)") == "yes"
    assert read_answer("yes, 1,500", shown="pay (amount: 1500)") == "yes"
    assert read_answer("yes, 1,500", shown="pay (amount: 1.5)") == "unclear"


def test_numbers_in_another_order_are_what_somebody_else_was_shown() -> None:
    shown = "transfer (from account: 7001; to account: 7002; amount: 500)"
    assert read_answer("yes, 500 from 7001 to 7002", shown=shown) == "unclear"
    assert read_answer("yes, from 7002 to 7001", shown=shown) == "unclear"
    assert read_answer("yes, 500, from 7001", shown=shown) == "unclear"
    assert read_answer("yes, from 7001 to 7002, the amount is 500, yes, 500", shown=shown) == "yes"


@pytest.mark.parametrize(
    ("shown", "text", "answer"),
    [
        ("amount: 500; currency: EUR", "yes, 500 euros", "yes"),
        ("amount: 500; currency: EUR", "yes, €500", "yes"),
        ("amount: 500; currency: EUR", "yes, 500 dollars", "unclear"),
        ("amount: 500; currency: EUR", "yes, $500", "unclear"),
        ("amount: 500; currency: EUR", "oui, 500 USD", "unclear"),
        ("amount: 500; currency: EUR", "是，500元", "unclear"),
        ("amount: 500; currency: AUD", "yes, 500 dollars", "yes"),
        ("amount: 500; currency: USD", "yes, 500 AUD", "unclear"),
        ("amount: 500; currency: JPY", "yes, \uffe5500", "yes"),
        ("amount: 500; currency: RUB", "да, 500 ₽", "yes"),
        ("amount: 500; currency: EUR", "да, 500 ₽", "unclear"),
        ("amount: 500; currency: EUR", "yes, 500 ₺", "unclear"),
        ("amount: ₺500; fee: 2 EUR", "yes, 500 ₺", "yes"),
        ("amount: 500", "yes, 500 dollars", "yes"),
    ],
)
def test_another_currency_than_the_one_that_was_shown_is_no_yes(shown: str, text: str, answer: str) -> None:
    assert read_answer(text, shown=f"transfer ({shown})") == answer


@pytest.mark.parametrize("sign", "❓⁉¿؟👎❌❎✕✖☒🚫⛔🛑✋🤚🙅🤔🤷")
def test_signs_of_a_question_or_a_refusal_make_a_yes_unclear(sign: str) -> None:
    assert read_answer(f"yes {sign}", shown=SHOWN) == "unclear"
    assert read_answer("yes 👍🙂", shown=SHOWN) == "yes"


@pytest.mark.parametrize(
    "text",
    [
        "are you sure",
        "you sure",
        "is that correct",
        "am I right",
        "shall I confirm",
        "do you confirm",
        "Sind Sie sicher",
        "ist das richtig",
        "est-ce correct",
        "klopt dat",
    ],
)
def test_a_question_without_its_mark_is_no_yes(text: str) -> None:
    assert read_answer(text, shown=SHOWN) == "unclear"
    assert read_answer("do it, that is correct, sure", shown=SHOWN) == "yes"


def test_the_words_of_the_action_are_no_refusal_but_a_refusal_is() -> None:
    shown = "cancel order (order: 12)"
    assert read_answer("Yes, cancel it", shown=shown, action="cancel_order") == "yes"
    assert read_answer("Yes, cancel it", shown=shown) == "unclear"
    assert read_answer("No, do not cancel it", shown=shown, action="cancel_order") == "no"


@pytest.mark.parametrize(("text", "word"), [("Yes.", "yes"), ("Oui.", "oui"), ("Sí.", "sí"), ("是", "是")])
def test_a_yes_is_one_also_if_the_read_back_has_the_word(text: str, word: str) -> None:
    assert read_answer(text, shown=f"subscribe (newsletter: {word})") == "yes"


def test_words_of_what_was_shown_do_not_hide_a_refusal() -> None:
    assert read_answer("no", shown="note: no onions, don't ring") == "no"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_refusal_of_a_language_is_never_a_yes(language: str) -> None:
    words = load_locale(language)
    for refusal in words["consent.no"].split("|"):
        agreement = words["consent.yes"].split("|")[0]
        assert read_answer(refusal, locales=(language,)) == "no", refusal
        assert read_answer(f"{agreement}, {refusal}", locales=(language,)) != "yes", refusal


def test_a_locale_without_words_is_an_error() -> None:
    assert load_locale("pt-BR") is load_locale("pt")
    with pytest.raises(ConfigError, match="locale must be one of en, fr"):
        load_locale("xx")


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Sure, of course"),
        ("en", "Is fine, thanks"),
        ("de", "Passt, das stimmt"),
        ("de", "Stimmt, das passt so"),
        ("nl", "Klopt, dat is goed"),
    ],
)
def test_a_yes_that_begins_like_a_question_is_a_yes(language: str, text: str) -> None:
    assert read_answer(text, locales=(language,)) == "yes"


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "ok, are you sure"),
        ("en", "yes is that correct"),
        ("de", "ja, sind Sie sicher"),
        ("nl", "ja, weet u het zeker"),
        ("fr", "oui, vous êtes sûr"),
    ],
)
def test_a_question_after_a_yes_makes_it_unclear(language: str, text: str) -> None:
    assert read_answer(text, locales=(language,)) == "unclear"
    assert read_answer(text) == "unclear"


@pytest.mark.parametrize(
    ("language", "currency", "text"),
    [
        ("pl", "PLN", "Tak, 500 złotych"),
        ("pl", "PLN", "tak, 500 zł"),
        ("ru", "RUB", "Да, 500 рублей"),
        ("pt", "BRL", "Sim, 500 reais"),
        ("es", "USD", "Sí, 500 dólares"),
        ("it", "USD", "Sì, 500 dollari"),
        ("zh", "CNY", "是的，500块"),
    ],
)
def test_a_yes_may_say_the_currency_in_the_words_of_its_language(language: str, currency: str, text: str) -> None:
    shown = "transfer (amount: 500; currency: {})"
    assert read_answer(text, locales=(language,), shown=shown.format(currency)) == "yes"
    assert read_answer(text, locales=(language,), shown=shown.format("EUR")) == "unclear"
