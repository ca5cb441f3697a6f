"""Telling listeners what happened: one that fails never breaks a call."""

import inspect
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, cast

from handrail.core.context import ToolContext
from handrail.core.events import BreakerTurned, CallAccepted, CallFinished, CallIgnored, CallStarted, Event
from handrail.core.log import log
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import ConfigError

Listener = Callable[[Any], object]


class Teller:
    """Everybody who listens."""

    __slots__ = ("_of_sessions", "heard", "listeners", "slow_after")

    def __init__(self, listeners: Iterable[Listener], *, slow_after: float) -> None:
        self.listeners = tuple(map(_listener, listeners))
        self.slow_after = slow_after * 1000
        self._of_sessions: dict[str, tuple[Listener, ...]] = {}
        self.heard = bool(self.listeners)
        """Whether anybody listens."""

    @contextmanager
    def subscribe(self, session_id: str, listener: Listener) -> Generator[None]:
        """One more listener, to one session, for a while."""
        mine = _listener(listener)
        self._of_sessions[session_id] = (*self._of_sessions.get(session_id, ()), mine)
        self.heard = True
        try:
            yield
        finally:
            rest = list(self._of_sessions[session_id])
            rest.remove(mine)
            self._of_sessions[session_id] = tuple(rest)
            if not rest:
                del self._of_sessions[session_id]
            self.heard = bool(self.listeners or self._of_sessions)

    def __call__(self, event: Event) -> None:
        listeners = self.listeners
        if self._of_sessions:
            listeners += self._of_sessions.get(event.session_id, ())
        for listener in listeners:
            try:
                listener(event)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever it raises, the call goes on
                log.error("a listener failed on %s", type(event).__name__, exc_info=error)

    def accepted(self, call: ToolCall, context: ToolContext[Any]) -> None:
        """A call was taken on."""
        if self.heard:
            self(CallAccepted(at=time.time(), session_id=context.session_id, tenant_id=context.tenant_id, call=call))

    def started(self, call: ToolCall, context: ToolContext[Any]) -> None:
        """A handler is about to run."""
        if not self.heard:
            return
        if context.deps is None and context.agent_id is None:  # Every call comes by here: no more than it needs.
            self(CallStarted(at=time.time(), session_id=context.session_id, tenant_id=context.tenant_id, call=call))
        else:
            self(
                CallStarted(
                    at=time.time(),
                    session_id=context.session_id,
                    tenant_id=context.tenant_id,
                    call=call,
                    agent_id=context.agent_id,
                    dependencies=_names(context.deps),
                )
            )

    def finished(
        self, call: ToolCall, context: ToolContext[Any], result: ToolResult, decision: Decision | None
    ) -> None:
        """A call has its answer."""
        if self.heard:
            self(
                CallFinished(
                    at=time.time(),
                    session_id=context.session_id,
                    tenant_id=context.tenant_id,
                    call=call,
                    result=result,
                    decision=decision,
                    slow=result.duration_ms > self.slow_after,
                )
            )

    def ignored(self, call: ToolCall, context: ToolContext[Any], reason: str) -> None:
        """A call arrived again, and is not run again."""
        if self.heard:
            self(
                CallIgnored(
                    at=time.time(), session_id=context.session_id, tenant_id=context.tenant_id, call=call, reason=reason
                )
            )

    def breaker_turned(self, tool: str, state: str) -> None:
        """A tool's breaker changed its state."""
        self(BreakerTurned(at=time.time(), session_id="", tool_name=tool, state=state))


def _listener(listener: Listener) -> Listener:
    if not callable(listener) or inspect.iscoroutinefunction(listener):
        raise ConfigError(f"A listener is a plain function that takes an event, not {listener!r}.")
    return listener


def _names(deps: Any) -> tuple[str, ...]:
    if deps is None:
        return ()
    if isinstance(deps, Mapping):
        return tuple(sorted(name for name in cast(Mapping[Any, Any], deps) if isinstance(name, str)))
    return (type(deps).__name__,)
