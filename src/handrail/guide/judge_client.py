"""Sends requests to a judge: with a timeout, and again if the response is malformed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar, cast

from msgspec import Struct

from handrail.chat.turn import TurnState
from handrail.core.log import log
from handrail.errors import BadResponseError, ConfigError, ProviderError, shorten
from handrail.guide.checking import MalformedResponse
from handrail.guide.values import Draft, Judge, Plan
from handrail.providers.provider import Usage

T = TypeVar("T")

MAX_ATTEMPTS: Final = 3
"""The most attempts of one request whose responses are malformed."""
NO_USABLE_RESPONSE: Final = "the judge gave no usable response"


class NoResponse(Struct, frozen=True):
    """A request has no usable response; `interrupted` if the turn ended before there was one."""

    reason: str
    interrupted: bool = False


class _Outcome(Struct, Generic[T], frozen=True):
    response: T | None = None
    error: str = ""
    final: bool = False


class JudgeClient:
    """Sends the requests of one turn to the judge, and counts its model calls."""

    def __init__(self, state: TurnState, judge: Judge, *, timeout: float) -> None:
        self._state = state
        self._timeout = timeout
        provider: object = getattr(getattr(judge, "provider", None), "name", None)
        self._provider = provider if isinstance(provider, str) else f"judge:{type(judge).__name__}"
        self.model_calls = 0
        """Model calls of this turn, as the judge counts them; a request without a usable response counts as one."""

    async def ask(self, send: Callable[[str], Awaitable[Any]], check: Callable[[object], T]) -> T | NoResponse:
        """Send a request and check the response; if it is malformed, send it again with the error.

        A `ProviderError` or `ConfigError` is raised, and the turn can be resumed. After any other failure of the judge
        there is no usable response.
        """
        error = ""
        for _ in range(MAX_ATTEMPTS):
            if self._state.check_budget() is not None:
                return NoResponse("the turn ended", interrupted=True)
            outcome = await self._state.wait(self._ask_once(send, error, check))
            if outcome is None:
                return NoResponse("the turn was interrupted", interrupted=True)
            if outcome.response is not None:
                return outcome.response
            self.model_calls += 1
            error = outcome.error
            if outcome.final:
                break
        return NoResponse(f"{NO_USABLE_RESPONSE}: {error}")

    def count(self, response: Plan | Draft) -> None:
        """Add the model calls and the usage of a response."""
        self.model_calls += (
            response.model_calls if type(response.model_calls) is int and 0 <= response.model_calls < 100 else 1
        )
        if isinstance(response.usage, Usage):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._state.add_usage(response.usage)

    async def _ask_once(
        self, send: Callable[[str], Awaitable[Any]], error: str, check: Callable[[object], T]
    ) -> _Outcome[T]:
        """Send the request, and emit a `ModelCalled` about it."""
        started = time.monotonic()
        response: Any = None
        failed: str | None = "interrupted"
        try:
            async with asyncio.timeout(self._timeout):
                response = await send(error)
            failed = "bad_response"
            outcome = _Outcome(check(response))
            failed = None
            return outcome
        except TimeoutError:
            failed = "timeout"
            log.error("the judge did not respond within %s seconds", self._timeout)
            return _Outcome(error=f"no response within {self._timeout:g} seconds", final=True)
        except (MalformedResponse, BadResponseError) as problem:
            failed = "bad_response"
            return _Outcome(error=shorten(str(problem), 1_000))
        except (ProviderError, ConfigError) as problem:
            failed = problem.code
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _Outcome(error="the judge cancelled itself", final=True)
        except Exception as problem:  # a judge is the developer's code: the turn continues without it
            log.error("the judge failed", exc_info=problem)
            failed = "judge_failed"
            return _Outcome(error=f"the judge failed with {type(problem).__name__}")
        finally:
            if not isinstance(response, Plan | Draft):
                self._state.report_model_call(started, provider=self._provider, error=failed)
            elif response.model_calls != 0:  # Otherwise no model was asked.
                usage = cast(object, response.usage)
                found = usage if isinstance(usage, Usage) else None
                self._state.report_model_call(started, provider=self._provider, usage=found, error=failed)
