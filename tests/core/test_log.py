"""Handrail's own logger says what broke and where, and never quotes a value."""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from handrail import Executor, ToolCall, ToolContext, tool
from handrail.core import Redactor
from handrail.core.log import NAME, WITHHELD, build_safe_exc_info, log, silence_log

CANARY = "kestrel"
SOURCE = Path(__file__).parents[2] / "src" / "handrail"


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError(CANARY)


def bird() -> str:
    return CANARY


def simply() -> None:
    raise ValueError(bird())


def with_a_cause() -> None:
    try:
        simply()
    except ValueError as error:
        raise KeyError(bird()) from error


def while_handling() -> None:
    try:
        simply()
    except ValueError:
        raise TypeError(bird())  # noqa: B904  # the other kind of chain


def in_a_group() -> None:
    raise ExceptionGroup(bird(), [ValueError(bird()), ExceptionGroup(bird(), [KeyError(bird())])])


def with_a_note() -> None:
    error = ValueError(bird())
    error.add_note(bird())
    raise error


def with_source_of_its_own() -> None:
    compile(f"{bird()} = = 1", bird(), "exec")


def oddly() -> None:
    raise Odd


RAISING = [simply, with_a_cause, while_handling, in_a_group, with_a_note, with_source_of_its_own, oddly]


def written(raising: Callable[[], None], caplog: pytest.LogCaptureFixture, *, level: int) -> str:
    with caplog.at_level(level, logger=NAME):
        try:
            raising()
        except Exception:
            log.exception("%s broke", "it")
    [record] = caplog.records
    assert record.getMessage() == "it broke"
    return caplog.text


@pytest.mark.parametrize("raising", RAISING)
def test_the_text_of_an_exception_is_withheld(raising: Callable[[], None], caplog: pytest.LogCaptureFixture) -> None:
    text = written(raising, caplog, level=logging.INFO)

    assert CANARY not in text
    assert WITHHELD in text
    assert f"in {raising.__name__}" in text


@pytest.mark.parametrize(
    ("raising", "kind", "words"),
    [(with_a_cause, "KeyError", "direct cause"), (while_handling, "TypeError", "During handling")],
)
def test_its_type_its_frames_and_its_causes_are_there(
    raising: Callable[[], None], kind: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = written(raising, caplog, level=logging.INFO)

    assert f"ValueError: {WITHHELD}" in text
    assert f"{kind}: {WITHHELD}" in text
    assert words in text
    assert "raise ValueError(bird())" in text


def test_every_exception_of_a_group_is_there(caplog: pytest.LogCaptureFixture) -> None:
    text = written(in_a_group, caplog, level=logging.INFO)

    assert text.count("ExceptionGroup: ") == 2
    assert f"ValueError: {WITHHELD}" in text
    assert f"KeyError: {WITHHELD}" in text


def test_at_debug_the_text_is_there_redacted(caplog: pytest.LogCaptureFixture) -> None:
    def raising() -> None:
        raise ValueError(f"{bird()} has password=hunter2")

    text = written(raising, caplog, level=logging.DEBUG)

    assert "ValueError: kestrel has password=[redacted]" in text


@pytest.mark.parametrize("raising", RAISING)
def test_at_debug_nothing_that_is_raised_breaks_the_log(
    raising: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    assert f"in {raising.__name__}" in written(raising, caplog, level=logging.DEBUG)


@pytest.mark.parametrize("given", ["an exception", "a triple"])
def test_an_exception_can_also_be_given(given: str, caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError(CANARY)

    try:
        raise RuntimeError(CANARY)
    except RuntimeError:
        log.error("broke", exc_info=error if given == "an exception" else (ValueError, error, None))
        log.error("plain")  # without the one that is being handled

    assert CANARY not in caplog.text
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]


def test_a_chain_without_an_end_has_one_in_the_log() -> None:
    first, second = ValueError(CANARY), KeyError(CANARY)
    first.__cause__, second.__cause__ = second, first

    shown = build_safe_exc_info(first, texts=False)[1]

    length = 0
    while shown is not None:
        length, shown = length + 1, shown.__cause__
    assert 2 <= length <= 50


def test_a_redactor_of_ones_own_decides_what_a_text_may_say() -> None:
    shown = build_safe_exc_info(ValueError("see KV-17"), texts=True, redactor=Redactor(patterns=[r"KV-\d+"]))[1]

    assert str(shown) == "see [redacted]"


def test_nobody_else_in_handrail_has_a_logger() -> None:
    """So that this one is the only place where an exception is written."""
    having = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "getLogger" in path.read_text(encoding="utf-8")
    ]

    assert sorted(having) == ["core/log.py", "monitor/log.py"]


async def test_debug_shows_the_texts_of_one_executor_and_not_of_another(caplog: pytest.LogCaptureFixture) -> None:
    @tool(read_only=True)
    async def look(what: str) -> str:
        """Look."""
        raise RuntimeError(f"cannot look at {what}")

    def ask(what: str) -> ToolCall:
        return ToolCall(id=what, name="look", arguments_json=json.dumps({"what": what}))

    context = ToolContext(session_id="s-1")
    shows, hides = Executor([look], debug=True), Executor([look])
    both = [shows.run(ask("open-thing"), context), hides.run(ask("closed-thing"), context)]
    await asyncio.gather(*both)
    await shows.run(ask("open-again"), context)
    await hides.run(ask("closed-again"), context)

    assert "cannot look at open-thing" in caplog.text
    assert "cannot look at open-again" in caplog.text
    assert "closed-thing" not in caplog.text
    assert "closed-again" not in caplog.text


def test_a_silent_block_ends_as_it_began(caplog: pytest.LogCaptureFixture) -> None:
    with suppress(KeyError), silence_log():
        log.error("in the block")
        raise KeyError
    log.error("after it")

    assert [record.getMessage() for record in caplog.records] == ["after it"]
