"""Telling listeners what happened: one that fails never breaks a call."""

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from handrail.core.context import ToolContext
from handrail.core.events import BreakerTurned, CallAccepted, CallFinished, CallIgnored, CallStarted, Event
from handrail.core.log import log
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import ConfigError

Listener = Callable[[Any], object]


class Teller:
    """Everybody who listens."""

    __slots__ = ("listeners", "slow_after")

    def __init__(self, listeners: Iterable[Listener], *, slow_after: float) -> None:
        self.listeners = tuple(listeners)
        self.slow_after = slow_after * 1000
        for listener in self.listeners:
            if not callable(listener) or inspect.iscoroutinefunction(listener):
                raise ConfigError(f"A listener is a plain function that takes an event, not {listener!r}.")

    def __call__(self, event: Event) -> None:
        for listener in self.listeners:
            try:
                listener(event)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever it raises, the call goes on
                log.error("a listener failed on %s", type(event).__name__, exc_info=error)

    def accepted(self, call: ToolCall, context: ToolContext[Any]) -> None:
        """A call was taken on."""
        if self.listeners:
            self(CallAccepted(at=time.time(), session_id=context.session_id, tenant_id=context.tenant_id, call=call))

    def started(self, call: ToolCall, context: ToolContext[Any]) -> None:
        """A handler is about to run."""
        if not self.listeners:
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
        if self.listeners:
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
        if self.listeners:
            self(
                CallIgnored(
                    at=time.time(), session_id=context.session_id, tenant_id=context.tenant_id, call=call, reason=reason
                )
            )

    def breaker_turned(self, tool: str, state: str) -> None:
        """A tool's breaker changed its state."""
        self(BreakerTurned(at=time.time(), session_id="", tool_name=tool, state=state))


def _names(deps: Any) -> tuple[str, ...]:
    if deps is None:
        return ()
    if isinstance(deps, Mapping):
        return tuple(sorted(name for name in cast(Mapping[Any, Any], deps) if isinstance(name, str)))
    return (type(deps).__name__,)
