"""How a turn is played: the `TurnStrategy` protocol, and the plain strategy, where the model decides what to call."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from handrail.chat.turn import TurnState
from handrail.chat.turn_result import ChatEvent


class TurnStrategy(Protocol):
    """Decides what happens in a turn: when the model is asked, and which calls run."""

    def run(self, state: TurnState) -> AsyncGenerator[ChatEvent]:
        """Run one turn on `state`, until it is the person's turn again, and yield what happens.

        A strategy with `keeps_pending = True` decides itself what becomes of `conversation.pending`; for any other
        strategy they are turned into open calls before it runs.
        """
        ...


class PlainStrategy:
    """Offers the model every tool, and runs the calls it makes until it makes no more."""

    async def run(self, state: TurnState) -> AsyncGenerator[ChatEvent]:
        """Run the open calls and ask the model, in turns, until it replies without a call or the turn is stopped."""
        while True:
            if state.conversation.open_calls:
                async with aclosing(state.run_open_calls()) as events:
                    async for event in events:
                        yield event
            if state.check_budget() is not None:
                return
            async with aclosing(state.ask_model()) as deltas:
                async for delta in deltas:
                    yield delta
            if state.response is None or not state.response.calls:
                return
