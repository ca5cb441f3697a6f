"""How the public API looks to a type checker. Nobody runs this; tests/house/test_types.py has pyright check it."""

from typing import assert_type


def the_harness_sees_an_inferred_type(names: list[str]) -> None:
    assert_type(max(names), str)
    assert_type(max(names), int)  # E: reportAssertTypeFailure
