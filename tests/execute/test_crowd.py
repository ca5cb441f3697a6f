"""Thousands of calls at once: each is answered, and none takes more memory than one among a few hundred."""

import pytest

from benchmarks.crowd import KINDS, bytes_per_call


@pytest.mark.parametrize("kind", KINDS)
async def test_thousands_of_sleeping_calls_take_no_more_memory_each_than_a_few_hundred(kind: str) -> None:
    few, many = [await bytes_per_call(calls, kind) for calls in (300, 3_000)]

    assert many < few * 1.25
    assert many < 20_000
