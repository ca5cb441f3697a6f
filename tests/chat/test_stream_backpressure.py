"""A reader that is slower than the model holds the model back: nothing is dropped, and memory does not grow."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from handrail import Executor
from handrail.chat import ChatSession, TurnResult
from handrail.providers import ModelRequest, ModelResponse, StreamEvent, TextDelta
from tests.chat.bank import Bank, at
from tests.execute.helpers import quiet

DELTAS = 5_000


class Eager:
    """A provider that never waits, and counts what was read of it."""

    name = "eager:model"

    def __init__(self) -> None:
        self.read = 0
        self.closed = 0

    async def ask(self, request: ModelRequest) -> ModelResponse:
        raise NotImplementedError

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
        try:
            for number in range(DELTAS):
                self.read += 1
                yield TextDelta(text=f"{number} ")
            yield ModelResponse(text="".join(f"{number} " for number in range(DELTAS)))
        finally:
            self.closed += 1


async def test_a_slow_reader_holds_the_model_back_and_misses_nothing() -> None:
    provider = Eager()
    session = ChatSession(provider, Executor(), context=at(Bank()))
    texts: list[str] = []
    ahead = 0
    async with aclosing(session.stream("Go.")) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                texts.append(event.text)
                if len(texts) % 1_000 == 1:
                    await quiet(lambda: provider.read)
                ahead = max(ahead, provider.read - len(texts))
            elif isinstance(event, TurnResult):
                assert event.text == "".join(texts)

    assert len(texts) == DELTAS
    assert 1 < ahead <= 110


@pytest.mark.parametrize("how", ["interrupt", "close"])
async def test_a_model_that_is_held_back_can_be_stopped(how: str) -> None:
    provider = Eager()
    session = ChatSession(provider, Executor(), context=at(Bank()))
    async with aclosing(session.stream("Go.")) as events:
        async for event in events:
            await quiet(lambda: provider.read)
            if how == "close":
                break
            session.interrupt()
            if isinstance(event, TurnResult):
                assert event.stop_reason == "interrupted"
                assert event.text.startswith("0 1 2 ")

    assert provider.closed == 1
    assert provider.read <= 110
