"""Questions to a judge: with a deadline, asked again when the answer is malformed, and never trusted."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from handrail.chat.turn import TurnState
from handrail.core.log import log
from handrail.errors import BadResponseError, ConfigError, ProviderError, shorten
from handrail.guide.checking import MalformedAnswer
from handrail.guide.values import Draft, Plan
from handrail.providers.provider import Usage

T = TypeVar("T")

MAX_ATTEMPTS: Final = 3
"""How often a judge is asked one question whose answers are malformed."""


class Unanswered(Struct, frozen=True):
    """A question that has no usable answer; `interrupted` if that is nobody's fault."""

    reason: str
    interrupted: bool = False


class _Outcome(Struct, Generic[T], frozen=True):
    answer: T | None = None
    error: str = ""
    final: bool = False


class Questions:
    """Asks the judge in one turn, and counts."""

    def __init__(self, state: TurnState, *, timeout: float) -> None:
        self._state = state
        self._timeout = timeout
        self.asked = 0
        """Model calls of this turn, as the judge counts them; a question without a usable answer is one."""

    async def ask(self, question: Callable[[str], Awaitable[Any]], check: Callable[[object], T]) -> T | Unanswered:
        """Ask, and ask again with what is wrong with the answer.

        A provider that is down or refuses the key raises, and the turn can be resumed; so does a mistake of the
        developer. Any other failure of the judge is an answer that cannot be used.
        """
        error = ""
        for _ in range(MAX_ATTEMPTS):
            if self._state.check_budget() is not None:
                return Unanswered("the turn ended", interrupted=True)
            outcome = await self._state.wait(self._once(question, error, check))
            if outcome is None:
                return Unanswered("the turn was interrupted", interrupted=True)
            if outcome.answer is not None:
                return outcome.answer
            self.asked += 1
            error = outcome.error
            if outcome.final:
                break
        return Unanswered(f"the judge gave no usable answer: {error}")

    def count(self, answer: Plan | Draft) -> None:
        """Count what an answer took."""
        self.asked += answer.model_calls if type(answer.model_calls) is int and 0 <= answer.model_calls < 100 else 1
        if isinstance(answer.usage, Usage):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._state.add_usage(answer.usage)

    async def _once(
        self, question: Callable[[str], Awaitable[Any]], error: str, check: Callable[[object], T]
    ) -> _Outcome[T]:
        try:
            async with asyncio.timeout(self._timeout):
                answer = await question(error)
            return _Outcome(check(answer))
        except TimeoutError:
            log.error("the judge did not answer within %s seconds", self._timeout)
            return _Outcome(error=f"no answer within {self._timeout:g} seconds", final=True)
        except (MalformedAnswer, BadResponseError) as problem:
            return _Outcome(error=shorten(str(problem), 1_000))
        except (ProviderError, ConfigError):
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _Outcome(error="the judge cancelled itself", final=True)
        except Exception as problem:  # a judge is the developer's code: the turn goes on without it
            log.error("the judge failed", exc_info=problem)
            return _Outcome(error=f"the judge failed with {type(problem).__name__}")
