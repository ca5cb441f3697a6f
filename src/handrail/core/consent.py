"""Reads whether a person agreed to what they were shown: yes, no, or neither.

A yes is a message that says nothing else: every word agrees, repeats what was shown, or means nothing by itself. A
question, a condition, another number or a word that is not known is neither, and the person is asked again.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final, Literal, TypeAlias

from handrail.core.lazy_loading import LazyPattern
from handrail.core.locale_texts import LANGUAGES, load_locale
from handrail.core.value_mentions import is_number_word, repeats_currencies, repeats_numbers, split_words

Answer: TypeAlias = Literal["yes", "no", "unclear"]
_Kind: TypeAlias = Literal["filler", "yes", "limit", "no"]

_KINDS: Final[tuple[_Kind, ...]] = ("filler", "yes", "limit", "no")
"""A phrase that is listed twice is the later of these: in doubt it restricts."""
_DOUBT: Final = LazyPattern(
    "[?\xbf\u061f\uff1f\u2047-\u2049\u2753\u2754\u2612\u274c\u274e\u2715-\u2718\u26d4\u270b\U0001f44e\U0001f595"
    "\U0001f6ab\U0001f6d1\U0001f645\U0001f914\U0001f91a\U0001f937]"
)
"""Question marks, and signs of a refusal or of doubt (a cross, a thumb down, a stop sign, a shrug), whatever the words
are."""


def read_answer(
    text: str, *, locales: Iterable[str] = (), shown: str = "", action: str = "", repeats: bool = False
) -> Answer:
    """Read a person's answer to a question.

    `locales` are the languages that they may speak; all of them by default, and the one that knows most of the words
    counts. `shown` is what they were asked about: they may repeat its words and numbers. `action` names what would be
    done, such as `cancel order`: only its words may sound like a refusal. With `repeats` it would be done
    once more, and they may say so.
    """
    words = split_words(text)
    if not words:
        return "unclear"
    shown_words, action_words = frozenset(split_words(shown)), frozenset(split_words(action))
    is_doubtful = _DOUBT.compiled.search(text) is not None
    is_other = is_doubtful or not (repeats_numbers(text, shown) and repeats_currencies(text, shown))
    best: tuple[int, int, Answer] | None = None
    for locale in tuple(locales) or LANGUAGES:
        again = frozenset(split_words(load_locale(locale)["consent.again"])) if repeats else frozenset[str]()
        vocabulary = _build_vocabulary(locale)
        kinds = list(_classify_words(words, vocabulary, shown_words | again, action_words | again))
        # A word that was shown says nothing about the language: "yes" is a value, too, in the read-back of a call.
        known = [kind for kind in _classify_words(words, vocabulary, again, action_words | again) if kind is not None]
        answer = _decide(kinds)
        if answer == "yes" and (is_other or _begins_question(words, locale)):
            answer = "unclear"
        # Of two languages that know as many words, the one that restricts more counts.
        rank = (len(known), {"yes": 0, "unclear": 1, "no": 2}[answer])
        if best is None or rank > best[:2]:
            best = (*rank, answer)
    return best[2] if best is not None else "unclear"


def _begins_question(words: Sequence[str], locale: str) -> bool:
    """Whether a message begins as a question does, which many people end without its mark."""
    for phrase in load_locale(locale)["consent.question"].split("|"):
        question = split_words(phrase)
        if question and words[: len(question)] == question:
            return _measure_yes(words, _build_vocabulary(locale)) <= len(question)
    return False


def _measure_yes(words: Sequence[str], vocabulary: Mapping[tuple[str, ...], _Kind]) -> int:
    """How many words of a beginning that can be a question are a yes: "is fine", or "sure", and then "of course"."""
    longest = max(map(len, vocabulary), default=1)
    length, kind = _find_phrase(words[:longest], vocabulary)
    if kind == "yes" and length == 1:
        more, kind = _find_phrase(words[1 : 1 + longest], vocabulary)
        length += more
    return length if kind == "yes" else 0


def _decide(kinds: Sequence[_Kind | None]) -> Answer:
    if "no" in kinds:
        return "unclear" if "yes" in kinds else "no"
    return "yes" if "yes" in kinds and "limit" not in kinds and None not in kinds else "unclear"


def _classify_words(
    words: Sequence[str], vocabulary: Mapping[tuple[str, ...], _Kind], shown: frozenset[str], action: frozenset[str]
) -> Iterable[_Kind | None]:
    """Yield what each word means, as part of the longest phrase that is known; None for an unknown word."""
    longest = max(map(len, vocabulary), default=1)
    place = 0
    while place < len(words):
        length, kind = _find_phrase(words[place : place + longest], vocabulary)
        if kind is None:
            kind = _classify_unknown(words[place], vocabulary, shown)
        elif length == 1 and kind in ("no", "limit") and words[place] in action:
            kind = "filler"
        for _ in range(length):
            yield kind
        place += length


def _find_phrase(words: Sequence[str], vocabulary: Mapping[tuple[str, ...], _Kind]) -> tuple[int, _Kind | None]:
    """Find the longest phrase at the beginning of some words; of none, the length is 1."""
    for length in range(len(words), 0, -1):
        if (kind := vocabulary.get(tuple(words[:length]))) is not None:
            return length, kind
    return 1, None


def _classify_unknown(word: str, vocabulary: Mapping[tuple[str, ...], _Kind], shown: frozenset[str]) -> _Kind | None:
    if word in shown or word[0].isdigit() or is_number_word(word):  # Numbers are compared apart.
        return "filler"
    parts = word.split("'")  # An article or a pronoun that is elided: l'argent.
    found = {vocabulary.get((part,)) for part in parts if part not in shown}
    if len(parts) == 1 or None in found:
        return None
    known: list[_Kind] = [kind for kind in _KINDS if kind in found]
    return known[-1] if known else "filler"


@cache
def _build_vocabulary(locale: str) -> Mapping[tuple[str, ...], _Kind]:
    texts = load_locale(locale)
    return {
        tuple(words): kind
        for kind in _KINDS
        for phrase in texts[f"consent.{kind}"].split("|")
        if (words := split_words(phrase))
    }
