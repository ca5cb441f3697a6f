"""Executors that write down what they were asked, decided and answered, so that a test can look at it."""

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from msgspec import Struct

from handrail.authorize.policy import Policy
from handrail.core.events import CallFinished, Event
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import shorten
from handrail.execute.executor import Executor
from handrail.execute.tell import Listener
from handrail.registry.registry import ToolRegistry
from handrail.testing.run import ALLOWED


class Recorded(Struct, frozen=True, kw_only=True):
    """One call that has its answer."""

    name: str
    arguments: Any
    """As the model sent them; the text itself where it is not JSON."""
    result: ToolResult
    decision: Decision | None = None
    """None where nothing had to be decided: no such tool, bad arguments, an answer that was known already."""
    call: ToolCall

    def __repr__(self) -> str:
        answer = repr(self.result.output) if self.result.error is None else self.result.error.code
        return f"{self.name}({shorten(self.call.arguments_json or '{}')}) -> {shorten(answer)}"


class Rail:
    """Makes executors, and records what they do: `rail([pay])` is an `Executor` like any other."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        """Everything that was told, in order."""
        self._executors: list[Executor] = []
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}
        """Where the calls of a session run."""

    def __call__(
        self,
        tools: ToolRegistry | Iterable[object] = (),
        *,
        policy: Policy | None = None,
        listeners: Iterable[Listener] = (),
        **options: Any,
    ) -> Executor:
        """An executor with these tools. Without a policy it has the default one, so that a missing rule is noticed.

        The options are those of `Executor`.
        """
        executor = Executor(tools, policy=policy, listeners=[self._hear, *listeners], **options)
        self._executors.append(executor)
        return executor

    def allow_all(self, tools: ToolRegistry | Iterable[object] = (), **options: Any) -> Executor:
        """An executor that runs whatever is asked of it."""
        return self(tools, policy=Policy(default=ALLOWED), **options)

    @property
    def calls(self) -> list[Recorded]:
        """Every call that has its answer, in the order of the answers, refused ones among them.

        One that arrived again, and was not run again, is only a `CallIgnored` in `events`.
        """
        return [_recorded(event) for event in self.events if isinstance(event, CallFinished)]

    @property
    def decisions(self) -> list[Decision]:
        """What was decided about the calls, in the same order."""
        return [call.decision for call in self.calls if call.decision is not None]

    def called(self, name: str, /, **arguments: Any) -> list[Recorded]:
        """The calls of a tool, of those only the ones with these arguments; none is an empty list."""
        return [call for call in self.calls if call.name == name and _has(call.arguments, arguments)]

    def __repr__(self) -> str:
        # What pytest shows beside a failed `assert rail.called(…)`.
        return f"<rail: {', '.join(map(repr, self.calls)) or 'nothing was called'}>"

    def close(self) -> None:
        """Close every executor, as `Executor.close` does, for a caller that has no event loop."""
        for loop in {id(loop): loop for loop in self._loops.values()}.values():
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(self._close(loop), loop).result()
            elif not loop.is_closed():
                loop.run_until_complete(self._close(loop))
            # A loop that is closed has cancelled what ran in it.
        self._executors.clear()

    async def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        sessions = [session for session, its in self._loops.items() if its is loop]
        every = [(executor, session) for executor in self._executors for session in sessions]
        await asyncio.gather(*(executor.cancel_all(one) for executor, one in every if executor.running_calls(one)))

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        with suppress(RuntimeError):  # A handler may tell something in its thread.
            self._loops[event.session_id] = asyncio.get_running_loop()


def _recorded(event: CallFinished) -> Recorded:
    call = event.call
    try:
        arguments = json.loads(call.arguments_json or "{}")
    except (ValueError, RecursionError):
        arguments = call.arguments_json
    return Recorded(name=call.name, arguments=arguments, result=event.result, decision=event.decision, call=call)


def _has(arguments: Any, wanted: dict[str, Any]) -> bool:
    if not isinstance(arguments, dict):
        return not wanted
    given = cast(dict[str, Any], arguments)
    return all(name in given and given[name] == wanted[name] for name in wanted)
