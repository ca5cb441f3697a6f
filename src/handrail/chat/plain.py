"""The plain turn: ask the model, have its calls answered, until it has no more to say."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from handrail.chat.talk import ChatEvent, Talk


class PlainTurn:
    """The model sees every tool, and decides alone what it calls."""

    async def play(self, talk: Talk) -> AsyncGenerator[ChatEvent]:
        """Bring the conversation to where the next word is the person's."""
        while True:
            if talk.conversation.unanswered:
                async with aclosing(talk.answer()) as events:
                    async for event in events:
                        yield event
            if not talk.goes_on():
                return
            async with aclosing(talk.ask()) as pieces:
                async for piece in pieces:
                    yield piece
            if talk.reply is None or not talk.reply.calls:
                return
