"""Ten thousand calls at once: each is answered, and none takes more memory than one among a thousand."""

import pytest

from benchmarks.crowd import KINDS, bytes_per_call


@pytest.mark.parametrize("kind", KINDS)
async def test_ten_thousand_sleeping_calls_take_no_more_memory_each_than_a_thousand(kind: str) -> None:
    few, many = [await bytes_per_call(calls, kind) for calls in (1_000, 10_000)]

    assert many < few * 1.25
    assert many < 20_000
