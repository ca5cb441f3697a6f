"""Every state of a call with every fault: nobody waits in silence, no call is left behind, and a yes is a yes."""

from pathlib import Path

import pytest

from tests.phone.faulty_calls import STATES, TROUBLES, describe, find_wrong, play_faulty

PAIRS = [(state, trouble) for state in STATES for trouble in TROUBLES]
CHOSEN = [
    (state, trouble)
    for row, state in enumerate(STATES)
    for column, trouble in enumerate(TROUBLES)
    if (3 * row + column) % 11 == 0
]
"""A part of all pairs in which every state and every fault comes up."""


def check(state: str, trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    played = play_faulty(state, trouble)

    assert list(find_wrong(played)) == [], describe(played)


@pytest.mark.parametrize(("state", "trouble"), CHOSEN)
def test_a_fault_in_a_state_leaves_nobody_waiting_nothing_behind_and_no_yes_unheard(
    state: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    check(state, trouble, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("state", STATES)
def test_every_fault_in_every_state(state: str, trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    check(state, trouble, caplog)


def test_every_state_and_every_fault_is_in_the_chosen_part() -> None:
    assert {state for state, _ in CHOSEN} == set(STATES)
    assert {trouble for _, trouble in CHOSEN} == set(TROUBLES)
    assert len(CHOSEN) * 10 < len(PAIRS) * 1.1


def test_the_documentation_has_the_numbers_of_states_and_faults() -> None:
    text = (Path(__file__).parents[2] / "docs/phone.md").read_text("utf-8")

    assert f"every state of a call ({len(STATES)}," in text
    assert f"with every fault ({len(TROUBLES)}:" in text
    assert f"| {len(PAIRS)} |" in text
