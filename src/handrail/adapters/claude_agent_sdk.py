"""Handrail under an agent of the Claude Agent SDK: hooks that run every tool call through an executor."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from msgspec import Struct

from handrail.adapters import host_calls
from handrail.adapters.host_calls import ContextSource, HostResult, resolve_context
from handrail.core.log import log
from handrail.core.values import ToolCall
from handrail.errors import ApprovalError, MissingExtraError, ToolError
from handrail.execute.executor import Executor

try:
    from claude_agent_sdk import ClaudeAgentOptions
    from claude_agent_sdk.types import (
        CanUseTool,
        HookCallback,
        HookMatcher,
        PermissionResult,
        PermissionResultDeny,
        PreToolUseHookInput,
        ToolPermissionContext,
    )
except ImportError as error:  # pragma: no cover
    raise MissingExtraError("claude-agent-sdk", extra="claude-agent-sdk") from error

__all__ = ["guard_options"]

_DECISION_TIMEOUT = 3_600.0
"""Seconds that a hook may take: a person may have to decide."""
_CHANGED = "`{}` was not run: another hook changed its arguments. Nothing was done."


def guard_options(
    options: ClaudeAgentOptions,
    executor: Executor,
    *,
    context: ContextSource[PreToolUseHookInput],
    by: Literal["customer", "operator"] = "customer",
    who: str | None = None,
) -> ClaudeAgentOptions:
    """Options whose tools run under an executor: `ClaudeSDKClient(guard_options(options, executor, context=…))`.

    What `options.can_use_tool` decides about a call that `by` has to approve is recorded as their decision, also its
    `updated_input`; `who` is the context's customer if not given. Without it, and for a call in doubt, the model is
    told, and calls again after the approval. A call whose arguments another `PreToolUse` hook of the options changes is
    denied: Claude Code takes those of any hook.
    """
    guard = _Guard(executor, context, options.can_use_tool, by, who)
    before = HookMatcher(hooks=[guard.before], timeout=_DECISION_TIMEOUT, on_failure="block")
    after = HookMatcher(hooks=[guard.after])
    hooks: dict[Any, list[HookMatcher]] = dict(options.hooks or {})
    hooks["PreToolUse"] = [
        replace(matcher, hooks=[guard.refuse_changes(hook) for hook in matcher.hooks])
        for matcher in hooks.get("PreToolUse", [])
    ]
    for event, matcher in (("PreToolUse", before), ("PostToolUse", after), ("PostToolUseFailure", after)):
        hooks[event] = [*hooks.get(event, []), matcher]
    return replace(options, hooks=hooks, can_use_tool=options.can_use_tool and guard.can_use_tool)


class _Running(Struct):
    """A call that Claude runs: what it was asked with, what it will return, and the guard that waits for it."""

    given: Any
    turn: int
    outcome: asyncio.Future[Any]
    guard: asyncio.Task[HostResult]


class _Guard:
    def __init__(self, executor: Executor, context: Any, decide: CanUseTool | None, by: Any, who: str | None) -> None:
        self._executor = executor
        self._context: ContextSource[PreToolUseHookInput] = context
        self._decide = decide
        self._by: Literal["customer", "operator"] = by
        self._who = who
        self._running: dict[str, _Running] = {}
        """The calls that Claude runs now, by its ids."""
        self._refused: set[str] = set()
        """Calls whose arguments another hook changed, and that were not running."""

    def refuse_changes(self, hook: HookCallback) -> HookCallback:
        """A hook of the application that cannot change arguments after they were authorised: it denies the call."""

        async def run(given: Any, tool_use_id: str | None, context: Any) -> Any:
            output = cast(dict[str, Any], await hook(given, tool_use_id, context))
            specific = cast(dict[str, Any], (output or {}).get("hookSpecificOutput") or {})
            if specific.get("updatedInput") is None:
                return output
            call_id, text = str(given.get("tool_use_id") or tool_use_id or ""), _CHANGED.format(given["tool_name"])
            log.error("%s Change arguments in a hook of the executor, where they are authorised.", text)
            self._refused.add(call_id)
            await self._settle(call_id, ToolError(text))
            return _decide(permissionDecision="deny", permissionDecisionReason=text)

        return run

    async def before(self, given: Any, tool_use_id: str | None, _: Any) -> Any:
        """Let a call run, with the arguments that were authorised, or deny it with what the model is to know."""
        call_id, name = str(given.get("tool_use_id") or tool_use_id or ""), str(given["tool_name"])
        if not call_id or call_id in self._running:
            reason = f"`{name}` was not run: this call has no id, or is running."
            return _decide(permissionDecision="deny", permissionDecisionReason=reason)
        call = ToolCall(
            id=call_id, name=name, arguments_json=json.dumps(host_calls.to_json_value(given.get("tool_input") or {}))
        )
        turn = await asyncio.to_thread(_count_turns, str(given.get("transcript_path") or ""))
        answer = await self._start(call, given, turn=turn, wakes=0)
        pause = answer.describe_pause() if isinstance(answer, HostResult) and answer.is_pause else {}
        if self._decide is not None and pause.get("by") == self._by:
            await self._ask(self._decide, call, given, pause["arguments"])
            answer = await self._start(call, given, turn=turn, wakes=1)
        if isinstance(answer, HostResult):
            return _decide(permissionDecision="deny", permissionDecisionReason=answer.result.for_model())
        return _decide(permissionDecision="allow", updatedInput=dict(answer))

    async def after(self, given: Any, tool_use_id: str | None, _: Any) -> Any:
        """Record what became of a call."""
        failed = given["hook_event_name"] != "PostToolUse"
        answer = host_calls.ToolFailedError(given.get("error")) if failed else given.get("tool_response")
        await self._settle(str(given.get("tool_use_id") or tool_use_id or ""), answer)
        return {}

    async def _settle(self, call_id: str, answer: Any) -> None:
        if (running := self._running.get(call_id)) is None:
            return  # It was refused, or its time was over: the ledger knows that.
        outcome = running.outcome
        if not outcome.done():
            outcome.set_exception(answer) if isinstance(answer, Exception) else outcome.set_result(answer)
        await asyncio.wait([running.guard])

    async def can_use_tool(self, name: str, given: dict[str, Any], context: ToolPermissionContext) -> PermissionResult:
        """What Claude asks by itself: a call that is denied did nothing, and one that is changed is authorised anew."""
        assert self._decide is not None
        decision = await self._decide(name, given, context)
        call_id = context.tool_use_id or ""
        running = self._running.get(call_id)
        if isinstance(decision, PermissionResultDeny):
            await self._settle(call_id, ToolError(decision.message or "It was denied."))
            return decision
        changed = decision.updated_input
        if changed is None or changed == given:
            return decision
        await self._settle(call_id, ToolError("It was not run with these arguments: others were wanted."))
        if running is None:
            return PermissionResultDeny(message=f"`{name}` was not run: its arguments were changed too late.")
        call = ToolCall(
            id=f"{call_id}.changed", name=name, arguments_json=json.dumps(host_calls.to_json_value(changed))
        )
        answer = await self._start(call, running.given, turn=running.turn, wakes=1, known_as=call_id)
        if isinstance(answer, HostResult):
            return PermissionResultDeny(message=answer.result.for_model())
        return replace(decision, updated_input=dict(answer))

    async def _start(
        self, call: ToolCall, given: Any, *, turn: int, wakes: int, known_as: str | None = None
    ) -> Mapping[str, Any] | HostResult:
        """The arguments with which the call may run, or the result that it has without running.

        `known_as` is Claude's id of the call, where it is another one.
        """
        loop = asyncio.get_running_loop()
        entered, outcome = loop.create_future(), loop.create_future()

        async def proceed(arguments: Mapping[str, Any], pauses: int) -> Any:
            if call.id in self._refused:
                raise ToolError(_CHANGED.format(call.name))
            entered.set_result(arguments)
            return await outcome

        context = resolve_context(self._context, given, turn=turn, wakes=wakes)
        guard = asyncio.create_task(
            host_calls.run_host_call(self._executor, call, context, proceed, control=host_calls.ControlFlow())
        )
        call_id = known_as or call.id
        self._running[call_id] = _Running(given=given, turn=turn, outcome=outcome, guard=guard)
        guard.add_done_callback(lambda _: self._running.pop(call_id, None))
        await asyncio.wait([entered, guard], return_when=asyncio.FIRST_COMPLETED)
        return entered.result() if entered.done() else await guard

    async def _ask(self, decide: CanUseTool, call: ToolCall, given: Any, arguments: dict[str, Any]) -> None:
        decision = await decide(call.name, arguments, ToolPermissionContext(tool_use_id=call.id))
        denial = decision if isinstance(decision, PermissionResultDeny) else None
        changed = None if isinstance(decision, PermissionResultDeny) else decision.updated_input
        context = resolve_context(self._context, given)
        try:
            await host_calls.record_decision(
                self._executor,
                call.id,
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                by=self._by,
                who=self._who or context.customer_id or "",
                is_approved=denial is None,
                reason=denial.message if denial else "",
                arguments=changed,
            )
        except ApprovalError as error:
            log.warning("the decision about %s was not recorded: %s", call.name, error)


def _decide(**decision: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}


def _count_turns(transcript: str) -> int:
    """How many messages of the person the transcript has; 0 if it cannot be read."""
    try:
        with Path(transcript).open(encoding="utf-8", errors="replace") as lines:
            return sum(_is_message(line) for line in lines if '"user"' in line and '"tool_result"' not in line)
    except (OSError, ValueError):
        return 0


def _is_message(line: str) -> bool:
    """Whether a line of a transcript is a message of the person; one that cannot be read is none."""
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and cast(Any, entry).get("type") == "user" and not cast(Any, entry).get("isMeta")
