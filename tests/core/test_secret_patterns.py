"""Secrets without a name: they give themselves away by their looks, and nothing else does."""

import json
import random
import signal
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.core import Redactor
from handrail.core.redact import HIDDEN
from handrail.core.secret_patterns import IBAN_LENGTHS

REDACTOR = Redactor()

# Keys and tokens


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-aB3dE5gH7jK9mN1pQ3sT5",
        "sk_live_aB3dE5gH7jK9mN1pQ3sT5",
        "sk-ant-api03-aB3dE5gH7jK9mN1pQ3sT5-xyz_AA",
        "ghp_aB3dE5gH7jK9mN1pQ3sT5uV7",
        "github_pat_aB3dE5gH7jK9mN1pQ3sT5uV7",
        "xoxb-123456789012-abcdefghijkl",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA-1234567890abcdefghijklmnopqrstu",
        "hf_aB3dE5gH7jK9mN1pQ3sT5uV7",
        "Bearer abc123def456",
        "bearer AbCdEfGhIjKlMnOpQrStUv==",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIB\nabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIB, cut off",
    ],
)
@pytest.mark.parametrize("around", ["{}", "use {} now", "({})", '"{}"', "x\n{}\n"])
def test_a_secret_gives_itself_away_by_its_looks(secret: str, around: str) -> None:
    text = around.format(secret)

    for shown in (REDACTOR.text(text), REDACTOR.value({"note": text})["note"], REDACTOR.value([text])[0]):
        assert HIDDEN in shown
        assert secret.split("\n")[-1] not in shown


def test_the_password_of_an_address_is_hidden_and_its_host_is_not() -> None:
    assert REDACTOR.text("postgresql://executor:hunter2@db.test/executor") == f"postgresql://{HIDDEN}@db.test/executor"


@pytest.mark.parametrize(
    "text",
    ["bearer certificates", "pk_customer_orders", "sk-SK", "a sip:ann@host.test call", "http://localhost:80/a@b"],
)
def test_ordinary_words_do_not_look_like_secrets(text: str) -> None:
    assert REDACTOR.text(text) == text


# Card numbers


def with_check_digit(digits: str) -> str:
    """Digits with the one after them that makes them a card's."""
    total = 0
    for place, char in enumerate(reversed(digits), 1):
        doubled = int(char) * (2 if place % 2 else 1)
        total += doubled - 9 if doubled > 9 else doubled
    return f"{digits}{-total % 10}"


BEGINNINGS = [
    ("4", 13), ("4", 16), ("4", 19), ("51", 16), ("55", 16), ("2221", 16), ("2720", 16), ("34", 15), ("37", 15),
    ("30", 14), ("36", 14), ("38", 14), ("6011", 16), ("65", 16), ("62", 19), ("3528", 16),
]  # fmt: skip

cards = st.sampled_from(BEGINNINGS).flatmap(
    lambda kind: st.text("0123456789", min_size=kind[1] - len(kind[0]) - 1, max_size=kind[1] - len(kind[0]) - 1).map(
        lambda rest: with_check_digit(kind[0] + rest)
    )
)


def grouped(digits: str, separator: str, size: int) -> str:
    return separator.join(digits[at : at + size] for at in range(0, len(digits), size))


@given(
    cards,
    st.sampled_from(["", " ", "-"]),
    st.integers(1, 6),
    st.sampled_from(["{}", "card {}.", "17 {}", "({}) 12/27"]),
)
def test_a_card_number_never_survives_however_it_is_grouped(card: str, separator: str, size: int, around: str) -> None:
    written = grouped(card, separator, size)

    assert written not in REDACTOR.text(around.format(written))


@given(cards)
def test_a_card_number_that_is_a_number_never_survives(card: str) -> None:
    assert REDACTOR.value({"n": int(card)}) == {"n": HIDDEN}
    assert REDACTOR.text(json.dumps([int(card)])) == f'["{HIDDEN}"]'


@given(cards, st.integers(1, 9))
def test_a_wrong_check_digit_makes_it_an_ordinary_number(card: str, off: int) -> None:
    number = card[:-1] + str((int(card[-1]) + off) % 10)

    assert REDACTOR.text(f"order {number} is here") == f"order {number} is here"
    assert REDACTOR.value(int(number)) == int(number)


@given(st.integers(10**12, 2 * 10**12 - 1), st.sampled_from([1, 1_000, 1_000_000]), st.integers(0, 999))
def test_a_moment_in_milli_micro_or_nanoseconds_is_no_card(milliseconds: int, factor: int, rest: int) -> None:
    moment = milliseconds * factor + rest % factor

    assert REDACTOR.value({"at": moment}) == {"at": moment}
    assert REDACTOR.text(f"at {moment} it was done") == f"at {moment} it was done"


@pytest.mark.parametrize(
    "text",
    [
        "0.4111111111111111",
        "4111111111111111.25",
        "a4111111111111111f",
        "41111111111111111111111111",
        "+49 30 1234567",
        "2026-11-15 20:39:31.123456",
        "6f1b2c3d-1234-4321-9876-0123456789ab",
    ],
)
def test_other_long_numbers_are_no_cards(text: str) -> None:
    assert REDACTOR.text(text) == text


# IBANs


def iban(country: str, seed: int) -> str:
    letters = "0123456789" if seed % 2 else "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    body = "".join(random.Random(seed).choices(letters, k=IBAN_LENGTHS[country] - 4))
    rest = int("".join(str(int(char, 36)) for char in f"{body}{country}00")) % 97
    return f"{country}{98 - rest:02}{body}"


ibans = st.builds(iban, st.sampled_from(sorted(IBAN_LENGTHS)), st.integers(0, 10_000))


@given(
    ibans,
    st.sampled_from(["", " ", "-"]),
    st.sampled_from([str.upper, str.lower]),
    st.sampled_from(["{}", "to {} AND ON", "({})"]),
)
def test_an_iban_never_survives_however_it_is_written(
    number: str, separator: str, case: Callable[[str], str], around: str
) -> None:
    written = case(grouped(number, separator, 4))

    assert written not in REDACTOR.text(around.format(written))


@pytest.mark.parametrize("number", ["DE89370400440532013000", "GB82 WEST 1234 5698 7654 32", "NO9386011117947"])
def test_known_ibans_are_known(number: str) -> None:
    assert REDACTOR.text(number) == HIDDEN


@pytest.mark.parametrize("text", ["DE89370400440532013000X", "ZZ89370400440532013000", "DE8937040044"])
def test_other_references_are_no_ibans(text: str) -> None:
    assert REDACTOR.text(f"see {text}.") == f"see {text}."


@given(ibans, st.integers(1, 96))
def test_wrong_check_digits_make_it_an_ordinary_reference(number: str, off: int) -> None:
    other = f"{number[:2]}{(int(number[2:4]) + off) % 97 or 97:02}{number[4:]}"

    assert REDACTOR.text(f"see {other}.") == f"see {other}."


# Time


@pytest.fixture
def _cpu_seconds() -> Iterator[None]:
    """A bound on the time that the processor spends, however busy the machine is."""

    def too_long(*_: object) -> None:
        raise AssertionError("more than 15 seconds of work")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, 15)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


LOOKING = [
    *("sk-", "sk-a-", "sk_a1", "ghp_", "xox", "AKIA", "AIza", "eyJ", "eyJ-", "eyJaaaaaaaa.", "bearer ", "bearer a"),
    *(
        "@",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN ",
        "a_",
        "aB",
        "A",
        "4",
        "4 ",
        "4111 ",
        "4111-1111 1111",
        "DE89",
        "\n",
        "é",
        " ",
        "[redacted]",
    ),
]
"""What patterns look at: a million steps are nothing to them."""
NAMING = [
    *("://", "://a:", "://:", "password", "password=", 'password:"', "password='\\", '\\"', "'", '"a":', "{", "[", "}"),
    *('{"a":', "DE89 ", "de89 3704", "=", ":", " : ", "pin=", "tokens=1", "token=\\"),
    "authorization: ",
]
"""What is looked at piece by piece."""


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_cpu_seconds")
@pytest.mark.parametrize(
    ("unit", "length"), [*((unit, 600_000) for unit in LOOKING), *((unit, 60_000) for unit in NAMING)]
)
def test_a_long_hostile_text_takes_linear_time(unit: str, length: int) -> None:
    """A second or two; what is worse than linear takes minutes."""
    text = unit * (length // len(unit))

    for hostile in (text, f"password={text}x", json.dumps({text: 1})):
        REDACTOR.text(hostile)


@pytest.mark.parametrize("unit", ["4", "4 ", "4111 1111-"])
def test_a_run_of_digits_takes_little_memory(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    tracemalloc.start()
    try:
        REDACTOR.text(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 30 * len(text)  # Backtracking kept 120 bytes for each character.


def test_cards_are_found_anywhere_in_a_long_run() -> None:
    run = " ".join(["1234 5678", "4111 1111 1111 1111", "99", "3782-822463-10005", "7"] * 2)

    assert REDACTOR.text(run) == " ".join(["1234 5678", HIDDEN, "99", HIDDEN, "7"] * 2)
    assert REDACTOR.text("4111 1111 1111 1111 1a") == f"{HIDDEN} 1a"
    assert REDACTOR.text("4111111111111111 4.5") == f"{HIDDEN} 4.5"
