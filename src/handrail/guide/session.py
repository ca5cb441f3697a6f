"""The session that an agent opens, and its `TurnStrategy`."""

from collections.abc import AsyncIterator, Callable
from typing import Final, cast

from handrail.chat.session import ChatSession
from handrail.chat.turn import TurnState
from handrail.core.redact import Redactor
from handrail.errors import ConfigError
from handrail.guide.definition import Guide
from handrail.guide.judging import VariableReader
from handrail.guide.turn import GuidedTurn, GuidedTurnResult
from handrail.guide.values import Judge
from handrail.providers.provider import ModelRequest, ModelResponse, StreamEvent


class GuidedStrategy:
    """The `TurnStrategy` of guided calling: guidelines select the tools, a judge selects the calls, code checks both.

    `guide` is called at the beginning of every turn, so that changes apply from the next turn on.
    """

    keeps_pending: Final = True

    def __init__(self, guide: Callable[[], Guide], judge: Judge, *, redactor: Redactor | None = None) -> None:
        self._guide = guide
        self._judge = judge
        self._redactor = redactor or Redactor()
        self._variables = VariableReader()

    async def run(self, state: TurnState) -> GuidedTurnResult:
        """Run a turn until the customer is next."""
        turn = GuidedTurn(self._guide(), self._judge, state, variables=self._variables, redactor=self._redactor)
        return await turn.run()


class GuidedSession(ChatSession):
    """A `ChatSession` whose turns are guided: their results have insights and a trace."""

    async def send(self, text: str) -> GuidedTurnResult:
        """Send a message, and wait for the end of the turn."""
        return cast(GuidedTurnResult, await super().send(text))

    async def resume(self) -> GuidedTurnResult:
        """Resume a turn that stopped for an approval, an error of the provider, or its budget."""
        return cast(GuidedTurnResult, await super().resume())

    def send_sync(self, text: str) -> GuidedTurnResult:
        """`send` for a caller that has no event loop."""
        return cast(GuidedTurnResult, super().send_sync(text))

    def resume_sync(self) -> GuidedTurnResult:
        """`resume` for a caller that has no event loop."""
        return cast(GuidedTurnResult, super().resume_sync())


class NoProvider:
    """The provider of a session that only has a judge; every request to it is an error."""

    @property
    def name(self) -> str:
        """`none`."""
        return "none"

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """Refuse."""
        raise _build_no_provider_error()

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Refuse."""
        raise _build_no_provider_error()


def _build_no_provider_error() -> ConfigError:
    return ConfigError("This agent has no provider, only a judge: it can only run guided turns.")
