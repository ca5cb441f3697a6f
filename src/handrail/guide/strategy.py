"""The guided strategy: a `TurnStrategy` of `ChatSession`, and the session that an agent opens."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, cast

from handrail.chat.session import ChatSession
from handrail.chat.turn import TurnState
from handrail.chat.turn_result import ChatEvent
from handrail.core.redact import Redactor
from handrail.errors import ConfigError
from handrail.guide.definition import Guide
from handrail.guide.turn import GuidedTurn
from handrail.guide.values import GuidedTurnResult, Judge
from handrail.guide.variables import VariableReader
from handrail.providers.provider import ModelRequest, ModelResponse, StreamEvent


class GuidedStrategy:
    """Guidelines decide which tools are considered, a judge which of them run, and code checks both.

    `guide` is asked at the beginning of every turn, so that a guideline that was added counts from the next one on.
    """

    keeps_pending: Final = True

    def __init__(self, guide: Callable[[], Guide], judge: Judge, *, redactor: Redactor | None = None) -> None:
        self._guide = guide
        self._judge = judge
        self._redactor = redactor or Redactor()
        self._variables = VariableReader()

    def run(self, state: TurnState) -> AsyncGenerator[ChatEvent]:
        """Bring the conversation to where the next word is the customer's."""
        turn = GuidedTurn(self._guide(), self._judge, state, variables=self._variables, redactor=self._redactor)
        return turn.run()


class GuidedSession(ChatSession):
    """A `ChatSession` whose turns are guided: their results have insights and a trace."""

    async def send(self, text: str) -> GuidedTurnResult:
        """Say something, and wait for the end of the turn."""
        return cast(GuidedTurnResult, await super().send(text))

    async def resume(self) -> GuidedTurnResult:
        """Resume a turn that stopped: somebody has decided, a provider failed, a budget ran out."""
        return cast(GuidedTurnResult, await super().resume())

    def send_sync(self, text: str) -> GuidedTurnResult:
        """`send` for a caller that has no event loop."""
        return cast(GuidedTurnResult, super().send_sync(text))

    def resume_sync(self) -> GuidedTurnResult:
        """`resume` for a caller that has no event loop."""
        return cast(GuidedTurnResult, super().resume_sync())


class NoProvider:
    """Stands where a session wants a provider and only a judge is asked."""

    @property
    def name(self) -> str:
        """No API, no model."""
        return "none"

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """Refuse."""
        raise _no_provider()

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Refuse."""
        raise _no_provider()


def _no_provider() -> ConfigError:
    return ConfigError("This agent has no provider, only a judge: it can only play guided turns.")
