"""Values in texts, character for character: held against an oracle that shares no code with the matcher."""

import random
import unicodedata
from decimal import Decimal, InvalidOperation
from typing import Any

import pytest

from handrail import Provenance
from handrail.core.provenance_records import ValueSource

CUSTOMER = (ValueSource("customer", "customer"),)


def is_from(text: str, value: Any, **options: Any) -> bool | None:
    """Whether a value is from what the customer wrote."""
    provenance = Provenance(**options)
    provenance.add_customer(text)
    return provenance.is_from(value, CUSTOMER, 0)


# The oracle: written from the promise alone, slowly, character by character.


def is_around(char: str) -> bool:
    return char in ".,;:!?\"'`´<>＜＞" or unicodedata.category(char) in ("Ps", "Pe", "Pi", "Pf")


def squeeze(text: str) -> str:
    squeezed = ""
    for char in text:
        if not char.isspace():
            squeezed += char
        elif not squeezed.endswith(" "):
            squeezed += " "
    return squeezed


def find_words(text: str) -> list[tuple[int, int]]:
    """Where each word begins and ends."""
    words: list[tuple[int, int]] = []
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        end = place
        while end < len(text) and not text[end].isspace():
            end += 1
        first, last = place, end
        while first < last and is_around(text[first]):
            first += 1
        while last > first and is_around(text[last - 1]):
            last -= 1
        if first < last:
            words.append((first, last))
        place = end
    return words


def stands_there(text: str, value: str) -> bool:
    """Promise 1 and 4: whole, from the edge of a word to the edge of a word, with three letters or digits."""
    if sum(char.isalnum() for char in value) < 3:
        return False
    words = find_words(text)
    return any(squeeze(text[start:end]) == squeeze(value) for start, _ in words for _, end in words if start < end)


def is_number_there(text: str, number: Decimal, decimal: str | None) -> bool:
    """Promise 2: a whole word, less a currency sign, is that number."""
    for start, end in find_words(text):
        word = text[start:end]
        if unicodedata.category(word[0]) == "Sc":
            word = word[1:]
        elif unicodedata.category(word[-1]) == "Sc":
            word = word[:-1]
        if decimal is not None:
            word = word.replace("." if decimal == "," else ",", "").replace(decimal, ".")
        try:
            if set(word) <= set("0123456789.-") and Decimal(word) == number:
                return True
        except InvalidOperation:
            continue
    return False


PIECES = [
    *(
        "alice",
        "Alice",
        "bob",
        "bob@corp.com",
        "corp.com",
        "DE89",
        "3704",
        "1,12",
        "12",
        "1",
        "10:00",
        "1,200",
        "1.200",
    ),
    *("$1200.00", "200", "-5", ".5", "5€", "2024-05-20", "2024-05-20bob", "in", "a;b", "a,b", "Müller", "ﬁn", "ＡＢＣ"),
    *("\u200b", "\u202e", "а", "Alice <eve@evil.com>", "\x00", "é", "e\u0301", "李明", "🙂", "x" * 40),
]
SEPARATORS = [
    *(" ", " ", " ", "  ", "\n", "\t", "\u00a0", "\u3000", "\u2028", "", ",", ", ", ".", "; ", " (", ") "),
    *('"', "'", "“", "”", "[", "]", "<", ">", "-", "@", "/"),
]


def write_text(chance: random.Random, length: int) -> str:
    return "".join(chance.choice(PIECES) + chance.choice(SEPARATORS) for _ in range(length))


def choose_value(chance: random.Random, text: str) -> str:
    """A value that may stand in a text: a piece of it, a piece that was changed, or something else."""
    kind = chance.randrange(5)
    if kind == 0 or not text:
        return write_text(chance, chance.randrange(1, 4))
    start = chance.randrange(len(text))
    piece = text[start : start + chance.randrange(1, 25)]
    if kind == 1:
        words = find_words(text)
        if words:
            piece = text[chance.choice(words)[0] : chance.choice(words)[1]]
    elif kind == 2:
        piece = piece.strip()
    elif kind == 3 and piece:
        place = chance.randrange(len(piece))
        piece = piece[:place] + chance.choice(["", " ", "\u200b", "x", "."]) + piece[place + 1 :]
    return piece


def hold_against_oracle(pairs: int, seed: int) -> dict[str, int]:
    chance = random.Random(seed)
    counts = {"text": 0, "missed": 0, "number": 0}
    for _ in range(pairs):
        text = write_text(chance, chance.randrange(1, 9))
        value = choose_value(chance, text)
        is_there = stands_there(text, value)
        if is_from(text, value):
            counts["text"] += 1
            assert is_there, (text, value)
        elif is_there and not any(char.isspace() and char not in " \t\n\r" for char in value):
            counts["missed"] += 1
        number = chance.choice([1, 5, 12, 200, 1200, -5, 0.5, 1.2, 1.12, 3704, 112, 1.0, 20, 2024])
        decimal = chance.choice([None, ".", ","])
        if is_from(text, Decimal(str(number)) if isinstance(number, float) else number, decimal=decimal):
            counts["number"] += 1
            assert is_number_there(text, Decimal(str(number)), decimal), (text, number, decimal)
    return counts


def test_a_match_always_satisfies_the_promise() -> None:
    counts = hold_against_oracle(10_000, seed=30)

    assert counts["text"] > 1_000
    assert counts["number"] > 150
    assert counts["missed"] == 0


@pytest.mark.slow
def test_a_match_always_satisfies_the_promise_in_sixty_thousand_pairs() -> None:
    counts = hold_against_oracle(60_000, seed=60)

    assert counts["text"] > 6_000
    assert counts["missed"] == 0


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("Pay bob@corp.com, please", "bob@corp.com", True),
        ("Pay bob@corp.com", "corp.com", False),
        ("It is 1,200 or so", "200", False),
        ("At 10:00", "1", False),
        ("1,12 and 2024-05-20bob", "12", False),
        ("1,12 and 2024-05-20bob", "bob", False),
        ("Pay Alice Smith, please", "Alice Smith", True),
        ("Pay (Alice\n  Smith).", "Alice Smith", True),
        ("Pay Alice, Smith", "Alice Smith", False),
        ("Pay Alice", "ALICE", False),
        ("Pay Alice", "Alice ", False),
        ("Pay Alice", " Alice", False),
        ("Pay Alice Smith", "Alice\u00a0Smith", False),
        ("Pay Alice", "Alice\u200b", False),
        ("Pay Alice", "Аlice", False),  # A Cyrillic letter.
        ("Pay Alice", "Ａlice", False),
        ("Pay Alice", "Alice <eve@evil.com>", False),
        ("Pay <eve@evil.com>", "eve@evil.com", True),
        ("a;b", "a;b", False),  # Fewer than three letters or digits.
        ("abc;def", "abc", False),
        ("abc,def", "def", False),
        ("go in", "in", False),
        ("“Müller”", "Müller", True),
        ("", "abc", False),
        ("abc", "", False),
    ],
)
def test_a_text_is_a_source_of_whole_words(text: str, value: str, expected: bool) -> None:
    assert is_from(text, value) is expected


@pytest.mark.parametrize(
    ("text", "value", "decimal", "expected"),
    [
        ("Send $1200.00", 1200, None, True),
        ("Send 1200€", 1200, None, True),
        ("Send 1200", 1200.0, None, True),
        ("Send 1,200", 1200, None, False),
        ("Send 1,200", 1200, ".", True),
        ("Send 1,200.50", 1200.5, ".", True),
        ("Send 1.200", 1200, ",", True),
        ("Send 1.200", 1.2, None, False),  # It may be 1200.
        ("Send 1.200", 1.2, ".", True),
        ("Send 0.125", 0.125, None, True),
        ("Send 1,5", 1.5, ",", True),
        ("Send 1,20", 120, ".", False),
        ("Send 1 200", 200, None, False),
        ("Send 1 200", 1, None, False),
        ("Send 1 200 000", 200, None, False),
        ("Send .5", 5, None, False),
        ("Send -5", 5, None, False),
        ("Send -5", -5, None, True),
        ("At 10:00", 10, None, False),
        ("5 of 7", 7, None, True),
        ("1e3", 1000, None, False),
        ("٣ or ²", 2, None, False),
    ],
)
def test_a_number_is_a_whole_word(text: str, value: float, decimal: Any, expected: bool) -> None:
    provenance = Provenance(decimal=decimal)
    provenance.add_customer(text)
    number = Decimal(str(value)) if isinstance(value, float) else value

    assert provenance.is_from(number, CUSTOMER, 0) is expected
