"""What a call passes on its way in: rate limits, a breaker, and a bound on how many run at once."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from handrail.authorize.authoriser import Refusal
from handrail.authorize.limits import Breaker, Breakers, RateLimit, RateLimits
from handrail.core.context import ToolContext
from handrail.core.select import Selector, selector
from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.execute import answers
from handrail.execute.tell import Teller


class Gates:
    """Everything that can hold a call up although it is allowed. It counts in this process only."""

    def __init__(
        self,
        *,
        rate_limits: Iterable[RateLimit],
        breaker: Breaker | None,
        total: int | None,
        per_session: int | None,
        per_tool: Mapping[str, int],
        tell: Teller,
    ) -> None:
        self._rates = RateLimits(rate_limits)
        self._breakers = Breakers(breaker, changed=tell.breaker_turned) if breaker else None
        for limit in (total, per_session, *per_tool.values()):
            if limit is not None and limit < 1:
                raise ConfigError(f"At least 1 call must be able to run at once, not {limit}.")
        self._total = asyncio.Semaphore(total) if total else None
        self._per_session = per_session
        self._sessions: dict[str, _Shared] = {}
        self._per_tool: list[tuple[Selector, asyncio.Semaphore]] = [
            (selector(text), asyncio.Semaphore(limit)) for text, limit in per_tool.items()
        ]
        self.open = not self._rates and not breaker and not total and not per_session and not per_tool
        """Whether nothing can be held up here."""

    def check(self, tool: Tool[..., Any], context: ToolContext[Any]) -> None:
        """Raise `Refusal` if the tool rests, or was called too often."""
        if self._breakers is not None and (resting := self._breakers.refuses(tool.name)) is not None:
            raise Refusal(answers.resting(tool.name, resting))
        if self._rates and (wait := self._rates.wait_for(tool, context)):
            raise Refusal(answers.rate_limited(tool.name, wait))

    def report(self, tool: Tool[..., Any], healthy: bool | None) -> None:
        """Tell the breaker how a call went."""
        if self._breakers is not None:
            self._breakers.report(tool.name, healthy)

    @asynccontextmanager
    async def slot(self, tool: Tool[..., Any], context: ToolContext[Any]) -> AsyncGenerator[None]:
        """Wait until one more may run: of this tool, in this session, in all. Always in this order."""
        async with AsyncExitStack() as held:
            for selects, semaphore in self._per_tool:
                if selects(tool):
                    await held.enter_async_context(semaphore)
            if self._per_session:
                await held.enter_async_context(self._session(context.session_id, self._per_session))
            if self._total is not None:
                await held.enter_async_context(self._total)
            yield

    @asynccontextmanager
    async def _session(self, session_id: str, limit: int) -> AsyncGenerator[None]:
        shared = self._sessions.setdefault(session_id, _Shared(limit))
        shared.users += 1
        try:
            async with shared.semaphore:
                yield
        finally:
            shared.users -= 1
            if not shared.users:
                self._sessions.pop(session_id, None)


class _Shared:
    """A semaphore that is forgotten with its last user."""

    __slots__ = ("semaphore", "users")

    def __init__(self, limit: int) -> None:
        self.semaphore = asyncio.Semaphore(limit)
        self.users = 0
