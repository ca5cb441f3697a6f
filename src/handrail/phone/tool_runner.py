"""Runs the tool calls of one phone call, and takes what its tools ask of the call to the state machine."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from handrail.core.context import ToolContext
from handrail.core.events import CallIgnored
from handrail.core.log import log
from handrail.core.text import copy_json
from handrail.core.time_budget import TimeBudget
from handrail.core.values import Approval, Failure, ToolCall, ToolResult
from handrail.errors import must_propagate
from handrail.execute.executor import Executor
from handrail.phone import signals as s
from handrail.phone.confirmation import CallerApprovals, Confirmations, ReadBack, describe_call
from handrail.phone.digits import DigitCollector
from handrail.phone.events import CallLog, ResultSpoken
from handrail.tenants.call_control import Digits, HangUpOutcome, TransferOutcome
from handrail.tenants.texts import Texts
from handrail.tenants.tool_builder import ToolBuildResult


class ToolRunner:
    """The tool calls of one phone call on their way through the executor; every one ends as a `ToolFinished`."""

    def __init__(
        self,
        *,
        executor: Executor,
        built: ToolBuildResult,
        context: ToolContext[Any],
        confirmations: Confirmations,
        texts: Texts,
        events: CallLog,
    ) -> None:
        self.executor = executor
        self.called: dict[str, tuple[str, float]] = {}
        """The name of each called tool, and when."""
        self._built = built
        self._names = frozenset(tool.name for tool in executor.registry)
        self._context = context
        self._confirmations = confirmations
        self._texts = texts
        self._events = events
        self._spoken: set[str] = set()
        """Calls whose result the caller has begun to hear."""
        self.fallbacks: dict[str, ToolCall] = {}
        """Calls that got no result of their own, until their output is sent."""
        self.approvals = CallerApprovals(
            executor, confirmations, customer_id=context.customer_id, describe=self._describe
        )

    def _start(self, call: ToolCall) -> None:
        self.called[call.id] = call.name, asyncio.get_running_loop().time()
        self._events.note("ws_tool_invocation_built", call=call)
        if call.name not in self._names:
            self._events.note("ws_tool_dispatcher_missing_fallback_output", "warning", call=call)
        self._events.note("ws_tool_invocation_submitting_to_dispatcher", "debug", call=call)

    async def run(self, call: ToolCall, *, turn: int) -> s.ToolFinished:
        """Run one call; whatever happens, the model gets an output."""
        if turn != self._context.turn:
            self._context = structs.replace(self._context, turn=turn)
        context = self._context
        try:
            self._start(call)
            if self.approvals.refused or self._confirmations.has_answers:
                await TimeBudget(self.executor.timeouts.overhead).run(self.approvals.decide(call, context))
            return self._finish(call, await self.executor.run(call, context))
        except (Exception, asyncio.CancelledError) as error:  # whatever happens, the model gets an output
            if must_propagate(error):
                raise
            log.exception("the call %s of %s got no result", call.id, context.session_id)
            self.fallbacks[call.wire_id] = call
            failure = Failure(code="tool_execution_failed", message=self._texts("calls.not_run"))
            text = ToolResult(error=failure, tool_name=call.name, call_id=call.id).for_model()
            return s.ToolFinished(call_id=call.id, output=text)

    def _finish(self, call: ToolCall, result: ToolResult) -> s.ToolFinished:
        output, approval = result.for_model(), result.approval
        control = result.control
        if approval is None or approval.by != "customer":
            return s.ToolFinished(
                call_id=call.id,
                output=output,
                is_silent=result.silent,
                hands_off=control is not None and control.mode == "manual",
                is_transient=control is not None and control.lifespan == "response" and result.error is None,
            )
        read_back = self._describe(approval)
        return s.ToolFinished(
            call_id=call.id,
            output=output,
            approval=approval.token,
            read_back=read_back.text,
            values=read_back.values,
            action=read_back.action,
            notice=read_back.notice,
        )

    def _describe(self, approval: Approval) -> ReadBack:
        # The values that will run: a hook may have changed those of the model.
        given = copy_json(dict(approval.arguments))
        return describe_call(self._built, approval.tool, given, self._texts, repeats=approval.repeat > 0)

    # What became of an output.

    def report_fallback(self, call: ToolCall, *, is_sent: bool) -> None:
        """The output of a call without a result was sent, or could not be sent and will be tried again."""
        if is_sent:
            self._events.note("tool_run_and_respond_fallback_output_sent", "warning", call=call)
        else:
            self.fallbacks[call.wire_id] = call
            self._events.note("tool_run_and_respond_fallback_output_failed", "error", call=call)

    def report_ignored(self, command: s.IgnoreCall) -> None:
        """A call arrived again."""
        if command.reason == "other_arguments":
            self._events.note("tool_invocation_conflicting_arguments", "error", call=command.call)
        else:
            self._events.emit(CallIgnored, call=command.call, reason=command.reason)

    def report_spoken(self, call_ids: tuple[str, ...]) -> None:
        """The caller begins to hear about these results."""
        now = asyncio.get_running_loop().time()
        for call_id in call_ids:
            if call_id in self.called and call_id not in self._spoken:
                self._spoken.add(call_id)
                name, called_at = self.called[call_id]
                self._events.emit(ResultSpoken, call_id=call_id, tool_name=name, seconds=now - called_at)


class ToolRequests:
    """What tools have asked of one phone call, until the state machine has an answer."""

    def __init__(self, feed: Callable[[s.Signal], None]) -> None:
        self.digits = DigitCollector()
        self._feed = feed
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._requests = itertools.count(1)

    async def transfer(
        self, target_uri: str, *, announcement: str, call_id: str | None = None, output: str = ""
    ) -> TransferOutcome:
        """Announce the transfer, and transfer the call."""
        request_id = f"transfer_{next(self._requests)}"
        return await self._ask(
            request_id,
            s.TransferRequested(
                request_id=request_id, target_uri=target_uri, announcement=announcement, call_id=call_id, output=output
            ),
        )

    async def hang_up(self, call_id: str, *, goodbye: str) -> HangUpOutcome:
        """Say goodbye and end the call, after the output of the tool call that asked for it."""
        request_id = f"hang_up_{next(self._requests)}"
        return await self._ask(request_id, s.HangUpRequested(request_id=request_id, call_id=call_id, goodbye=goodbye))

    def control_for(self, call_id: str) -> "ToolCallControl":
        """The call as one tool call sees it."""
        return ToolCallControl(self, call_id)

    def finish(self, request_id: str, outcome: TransferOutcome | HangUpOutcome) -> None:
        """Tell a tool what became of its request."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    async def _ask(self, request_id: str, signal: s.Signal) -> Any:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = waiting
        self._feed(signal)
        return await waiting


class ToolCallControl(Struct, frozen=True):
    """The call as one tool call sees it."""

    control: ToolRequests
    call_id: str

    async def transfer(self, target_uri: str, *, announcement: str = "", output: str = "") -> TransferOutcome:
        return await self.control.transfer(target_uri, announcement=announcement, call_id=self.call_id, output=output)

    async def hang_up(self, *, goodbye: str = "") -> HangUpOutcome:
        return await self.control.hang_up(self.call_id, goodbye=goodbye)

    async def collect_digits(self, *, max_digits: int, timeout: float, terminator: str = "#") -> Digits | None:
        return await self.control.digits.collect(max_digits=max_digits, timeout=timeout, terminator=terminator)

    def digits(self, digits_id: str) -> str:
        return self.control.digits.get(digits_id)
