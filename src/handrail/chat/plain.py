"""The plain turn: ask the model, have its calls answered, until it has no more to say."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from handrail.chat.talk import ChatEvent, TurnState


class PlainStrategy:
    """The model sees every tool, and decides alone what it calls."""

    async def run(self, state: TurnState) -> AsyncGenerator[ChatEvent]:
        """Bring the conversation to where the next word is the person's."""
        while True:
            if state.conversation.unanswered:
                async with aclosing(state.answer()) as events:
                    async for event in events:
                        yield event
            if not state.goes_on():
                return
            async with aclosing(state.ask()) as pieces:
                async for piece in pieces:
                    yield piece
            if state.reply is None or not state.reply.calls:
                return
