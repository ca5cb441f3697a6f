"""The benchmark of walks still follows what it says."""

import pytest

from benchmarks.walks import Walk, trace


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("read", "execute/executor.py"),
        ("consequential", "execute/ledger.py"),
        ("chat", "chat/session.py"),
        ("guided", "guide/turn.py"),
        ("phone", "phone/state_machine.py"),
        ("mcp", "sources/mcp/client.py"),
        ("mcp served", "sources/mcp/served_executor.py"),
    ],
)
async def test_every_walk_reaches_the_module_that_it_is_about(name: str, reached: str) -> None:
    walk = await trace(name)

    assert reached in walk.modules
    assert not [module for module in walk.modules if module.startswith("testing/")]


def test_a_walk_counts_changes_of_module_and_no_repetitions() -> None:
    walk = Walk(name="", modules=("a", "a", "b", "a", "c", "c"), python_calls=9)

    assert (walk.files, walk.switches, walk.stops) == (3, 3, ["a", "b", "a", "c"])
    assert Walk(name="", modules=(), python_calls=0).switches == 0
