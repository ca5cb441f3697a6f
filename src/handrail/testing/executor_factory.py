"""A factory of executors that records their calls, decisions and events, for tests to assert on."""

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from msgspec import Struct

from handrail.authorize.policy import Policy
from handrail.core.events import CallFinished, Event, Listener
from handrail.core.values import Decision, ToolCall, ToolResult
from handrail.errors import shorten
from handrail.execute.executor import Executor
from handrail.registry.registry import ToolRegistry
from handrail.testing.run import ALLOWED


class RecordedCall(Struct, frozen=True, kw_only=True):
    """One call that has a result."""

    name: str
    arguments: Any
    """As the model sent them; the text itself if it is not JSON."""
    result: ToolResult
    decision: Decision | None = None
    """None if no decision was needed: an unknown tool, invalid arguments, or a replayed result."""
    call: ToolCall

    def __repr__(self) -> str:
        outcome = repr(self.result.output) if self.result.error is None else self.result.error.code
        return f"{self.name}({shorten(self.call.arguments_json or '{}')}) -> {shorten(outcome)}"


class ExecutorFactory:
    """Makes executors and records what they do: `make_executor([pay])` is a normal `Executor`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        """All events of all executors, in order."""
        self._executors: list[Executor] = []
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}
        """The event loop in which each session's calls run."""

    def __call__(
        self,
        tools: ToolRegistry | Iterable[object] = (),
        *,
        policy: Policy | None = None,
        listeners: Iterable[Listener] = (),
        **options: Any,
    ) -> Executor:
        """Make an executor. Without a policy it has the default one, so that a test notices a missing rule.

        The options are those of `Executor`.
        """
        executor = Executor(tools, policy=policy, listeners=[self._record, *listeners], **options)
        self._executors.append(executor)
        return executor

    def allow_all(self, tools: ToolRegistry | Iterable[object] = (), **options: Any) -> Executor:
        """Make an executor whose policy allows every call."""
        return self(tools, policy=Policy(default=ALLOWED), **options)

    @property
    def calls(self) -> list[RecordedCall]:
        """Every call that has a result, including refused ones, in the order of the results.

        A repeated call that was not run again is not among them; `events` has a `CallIgnored` for it.
        """
        return [_build_call(event) for event in self.events if isinstance(event, CallFinished)]

    @property
    def decisions(self) -> list[Decision]:
        """The decisions about the calls, in the same order."""
        return [call.decision for call in self.calls if call.decision is not None]

    def find_calls(self, name: str, /, **arguments: Any) -> list[RecordedCall]:
        """Find the calls of a tool; with arguments, only those whose arguments include them."""
        return [call for call in self.calls if call.name == name and _has_arguments(call.arguments, arguments)]

    def __repr__(self) -> str:
        # pytest prints this beside a failed `assert make_executor.find_calls(…)`.
        return f"<ExecutorFactory: {', '.join(map(repr, self.calls)) or 'no calls'}>"

    def close(self) -> None:
        """Cancel the running calls of every executor, for a caller without an event loop."""
        for loop in {id(loop): loop for loop in self._loops.values()}.values():
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(self._close(loop), loop).result()
            elif not loop.is_closed():
                loop.run_until_complete(self._close(loop))
            # A closed loop has cancelled its tasks.
        self._executors.clear()

    async def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        sessions = [session for session, its_loop in self._loops.items() if its_loop is loop]
        pairs = [(executor, session) for executor in self._executors for session in sessions]
        await asyncio.gather(
            *(executor.cancel_all(session_id) for executor, session_id in pairs if executor.running_calls(session_id))
        )

    def _record(self, event: Event) -> None:
        self.events.append(event)
        with suppress(RuntimeError):  # A handler in a worker thread can emit events.
            self._loops[event.session_id] = asyncio.get_running_loop()


def _build_call(event: CallFinished) -> RecordedCall:
    call = event.call
    try:
        arguments = json.loads(call.arguments_json or "{}")
    except (ValueError, RecursionError):
        arguments = call.arguments_json
    return RecordedCall(name=call.name, arguments=arguments, result=event.result, decision=event.decision, call=call)


def _has_arguments(arguments: Any, expected: dict[str, Any]) -> bool:
    if not isinstance(arguments, dict):
        return not expected
    actual = cast(dict[str, Any], arguments)
    return all(name in actual and actual[name] == expected[name] for name in expected)
