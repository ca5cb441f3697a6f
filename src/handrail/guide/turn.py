"""One guided turn: plan, run, plan again with the results, reply."""

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress

from msgspec import structs

from handrail.chat.conversation import PendingCall
from handrail.chat.turn import TurnState
from handrail.chat.turn_result import ChatEvent, TurnResult
from handrail.core.events import CallFinished, TurnPlanned
from handrail.core.redact import Redactor
from handrail.core.values import Decision, ToolCall
from handrail.errors import ApprovalError, shorten
from handrail.formats.parse import parse_object
from handrail.guide.confirmation import PendingDecision, decide_pending, find_approval_state
from handrail.guide.definition import Guide
from handrail.guide.evaluation import (
    PlannedCall,
    Situation,
    build_call_key,
    build_verdict_keys,
    evaluate,
)
from handrail.guide.inputs import TurnInputs, VariableReader
from handrail.guide.judge_client import JudgeClient
from handrail.guide.matching import GuidelineState
from handrail.guide.planning import Planner, PlanningResult
from handrail.guide.recorder import Recorder
from handrail.guide.reply_writer import ReplyWriter, WrittenReply
from handrail.guide.trace import TurnTrace
from handrail.guide.values import GuidedTurnResult, Judge, Plan, ReplyRequest
from handrail.providers.messages import AssistantMessage, UserMessage
from handrail.providers.provider import TextDelta


class GuidedTurn:
    """Plays one guided turn: plans, runs the calls, plans again with their results, and replies."""

    def __init__(
        self, guide: Guide, judge: Judge, state: TurnState, *, variables: VariableReader, redactor: Redactor
    ) -> None:
        self._guide = guide
        self._state = state
        self._inputs = TurnInputs(guide, state, variables)
        self._guidelines = GuidelineState(guide)
        self._client = JudgeClient(state, judge, timeout=guide.settings.judge_timeout)
        self._planner = Planner(guide, judge, state, self._client)
        self._writer = ReplyWriter(guide, judge, state, self._client)
        self._recorder = Recorder(guide, redactor)
        self._iteration = 0
        self._done: set[str] = set()
        """Keys of calls that were made in this turn, or that the customer rejected."""
        self._calls: list[ToolCall] = []
        self._decisions: dict[str, Decision | None] = {}
        state.make_result = self._build_result

    async def run(self) -> AsyncGenerator[ChatEvent]:
        """Run the turn until the customer is next."""
        try:
            async with aclosing(self._run()) as events:
                async for event in events:
                    if isinstance(event, CallFinished):
                        self._decisions[event.call.id] = event.decision
                    yield event
        finally:
            self._record_results()
            self._emit()

    async def _run(self) -> AsyncGenerator[ChatEvent]:
        state = self._state
        messages = state.conversation.messages
        has_spoken = bool(messages) and isinstance(messages[-1], UserMessage)
        async with aclosing(self._run_decided()) as events:
            async for event in events:
                yield event
        if not _is_reply_needed(state) or state.check_budget() is not None:
            await state.end_with_pending()
            return
        if has_spoken or not self._calls:  # After an approval alone, reply first; the reply may match more guidelines.
            async with aclosing(self._plan_and_run()) as events:
                async for event in events:
                    yield event
        while state.check_budget() is None and (written := await self._write()) is not None:
            if not written.new_matches:
                await self._save_reply(written.text)
                yield TextDelta(text=written.text)
                break
            self._guidelines.add_matches(written.new_matches)
            self._resolve_guidelines()
            async with aclosing(self._plan_and_run(only_new=True)) as events:
                async for event in events:
                    yield event
        await state.end_with_pending()

    # Calls that an earlier turn left.

    async def _run_decided(self) -> AsyncGenerator[ChatEvent]:
        """Run the calls that were decided since the last turn, or that a stopped process left without a result."""
        state = self._state
        if state.conversation.open_calls:
            calls = state.conversation.open_calls
            self._recorder.start_iteration(0)
            self._record_calls(calls)
            async with aclosing(state.run_calls(())) as events:
                async for event in events:
                    yield event
        decided = [one for one in state.conversation.pending if await self._is_decided(one)]
        if decided:
            self._recorder.start_iteration(0)
            self._record_calls(one.call for one in decided)
            async with aclosing(state.run_calls(one.call for one in decided)) as events:
                async for event in events:
                    yield event

    async def _is_decided(self, pending: PendingCall) -> bool:
        """Whether the approval of a pending call was decided or has expired."""
        state = await find_approval_state(self._state.executor.approvals, pending)
        if (
            state is None
        ):  # Expired. The customer's message is planned first; without one, the call is asked about again.
            return not _is_reply_needed(self._state)
        return state != "pending"

    def _record_calls(self, calls: Iterable[ToolCall]) -> None:
        for call in calls:
            self._calls.append(call)
            self._record_confirmed(call, reason="it was decided since the last turn")
            self._guidelines.considered.add(call.name)

    def _record_confirmed(self, call: ToolCall, *, reason: str) -> None:
        self._recorder.record_call(call, parse_object(call.arguments_json), reason=reason, confirmation="yes")
        self._mark_done(call)
        self._guidelines.add_prepared(call.guideline_ids)

    def _mark_done(self, call: ToolCall) -> None:
        if (key := build_call_key(self._guide, call.name, call.arguments_json)) is not None:
            self._done.add(key)

    # Iterations.

    async def _plan_and_run(self, *, only_new: bool = False) -> AsyncGenerator[ChatEvent]:
        """Plan and run while results may let more calls run; with `only_new`, the judge is not asked if the tools of
        the guidelines that became active need no inference."""
        asks_judge = not only_new or self._is_inference_needed(self._guidelines.list_new_candidates())
        while True:
            async with aclosing(self._iterate(asks_judge=asks_judge)) as events:
                async for event in events:
                    yield event
            if self._state.check_budget() is not None or self._iteration >= self._guide.settings.max_iterations:
                return
            self._resolve_guidelines()  # The results may have led to the next state of a journey.
            if new := self._guidelines.list_new_candidates():
                asks_judge = self._is_inference_needed(new)
            elif self._should_plan_again():
                asks_judge = True
            else:
                return

    def _is_inference_needed(self, tools: Iterable[str]) -> bool:
        return any(not self._guide.tools[one].needs_no_inference for one in tools)

    async def _iterate(self, *, asks_judge: bool) -> AsyncGenerator[ChatEvent]:
        """Plan, check the plan, and run its calls."""
        self._iteration += 1
        self._recorder.start_iteration(self._iteration)
        planned = PlanningResult()
        if asks_judge:
            matched = self._guidelines.get_matched_ids()
            planned = await self._planner.plan(self._iteration, matched, await self._inputs.read())
        if planned is None:
            return
        self._match(planned)
        calls = await self._decide(planned)
        if calls:
            async with aclosing(self._state.run_calls(calls)) as events:
                async for event in events:
                    yield event

    def _match(self, planned: PlanningResult) -> None:
        """Update the active guidelines with what the judge matched."""
        for unknown in self._guidelines.add_matches(planned.matches):
            self._recorder.add_note(f"the judge named an unknown guideline: {shorten(unknown)}")
        reasons = self._resolve_guidelines()
        self._recorder.record_guidelines(self._guidelines.explain(reasons))
        self._guidelines.consider_candidates()
        if planned.error:
            self._recorder.add_note(planned.error)
            for tool in sorted(planned.shown) or [""]:
                self._recorder.record_failure(tool, planned.error, self._iteration)
        for tool, reason in planned.failed.items():
            self._recorder.record_failure(tool, reason, self._iteration)

    def _resolve_guidelines(self) -> dict[str, str]:
        done = {one.tool_name for one in self._state.results if one.ok} | self._inputs.list_known_tools()
        return self._guidelines.resolve(done)

    async def _decide(self, planned: PlanningResult) -> list[ToolCall]:
        """Return the calls of this iteration: those that the customer confirmed, and new ones that pass every check."""
        guide, state = self._guide, self._state
        plan = Plan(matches=planned.matches, verdicts=planned.verdicts)
        confirmed: list[ToolCall] = []
        used: set[int] = set()
        if state.conversation.pending and not planned.error and self._iteration == 1:
            decisions, used = decide_pending(
                state.conversation.pending,
                plan.verdicts,
                build_verdict_keys(plan, guide),
                self._build_pending_keys(),
                can_confirm={one.call.id: self._can_confirm(one) for one in state.conversation.pending},
            )
            confirmed = [call for one in decisions if (call := await self._apply_decision(one)) is not None]
        kept = set(self._build_pending_keys().values())
        evaluation = evaluate(
            plan,
            Situation(
                guide=guide,
                iteration=self._iteration,
                shown=frozenset() if planned.error else planned.shown - planned.failed.keys(),
                active=self._guidelines.active,
                choices=(await self._inputs.read()).choices,
                done=self._done | kept,
                known=self._inputs.list_known_tools(),
                ran={call.name for call in self._calls},
                is_customers_word=self._inputs.is_customers_word,
            ),
            skip=used,
        )
        self._recorder.record_evaluation(evaluation)
        new = [self._build_call(number, one) for number, one in enumerate(evaluation.calls, start=1)]
        for call, one in zip(new, evaluation.calls, strict=True):
            self._recorder.record_call(call, one.arguments)
            self._done.add(one.key)
        self._calls += [*confirmed, *new]
        return [*confirmed, *new]

    def _build_call(self, number: int, planned: PlannedCall) -> ToolCall:
        turn = self._state.conversation.turn
        return ToolCall(
            id=f"guided_{turn}_{self._iteration}_{number}",
            name=planned.tool,
            arguments_json=planned.arguments_json,
            response_id=f"guided_{turn}_{self._iteration}",
            guideline_ids=planned.guideline_ids,
        )

    def _should_plan_again(self) -> bool:
        """Whether the results of this iteration may let another tool run."""
        if self._iteration >= self._guide.settings.max_iterations:
            return False
        response = f"guided_{self._state.conversation.turn}_{self._iteration}"
        ran = {call.id: call for call in self._calls if call.response_id == response}
        fresh = [one for one in self._state.results if one.call_id in ran]
        if not fresh:
            return False
        states = self._recorder.get_states(self._iteration)
        ran_tools = {call.name for call in ran.values()}
        together = {
            tool
            for one in self._guide.guidelines
            if one.id in self._guidelines.active and ran_tools & set(one.tools)
            for tool in one.tools
        }
        return any(
            self._guide.tools[tool].runnable
            and (state == "cannot_run" or (state == "not_applicable" and tool in together))
            for tool, state in states.items()
            if tool in self._guidelines.considered
        )

    # Pending calls.

    def _build_pending_keys(self) -> dict[str, str]:
        keys = {
            one.call.id: build_call_key(self._guide, one.call.name, one.call.arguments_json)
            for one in self._state.conversation.pending
        }
        return {call_id: key for call_id, key in keys.items() if key is not None}

    def _can_confirm(self, pending: PendingCall) -> bool:
        """Whether a message of the customer can confirm a call: it was read back in an earlier turn, the customer has
        written since, and not all guidelines of the call were rejected."""
        read_back = pending.read_back_at
        spoken = any(isinstance(one, UserMessage) for one in self._state.conversation.messages[read_back:])
        asked_by = [one for one in pending.call.guideline_ids if one in self._guide.by_id]
        return (
            pending.approval.by == "customer"
            and read_back > 0
            and pending.approval.turn < self._state.context.turn
            and spoken
            and bool(asked_by)
            and not all(map(self._guidelines.is_rejected, asked_by))
        )

    async def _apply_decision(self, decision: PendingDecision) -> ToolCall | None:
        """Approve, deny or withdraw a pending call; return the call if it should run."""
        pending, approvals = decision.pending, self._state.executor.approvals
        call, token = pending.call, pending.approval.token
        who = self._state.context.customer_id or "customer"
        self._guidelines.considered.add(call.name)
        if decision.action == "keep":
            return None
        if decision.action == "run":
            with suppress(ApprovalError):  # Expired, or decided elsewhere: then the executor asks again, or refuses.
                await approvals.approve(token, by="customer", who=who, reason="agreed in words")
            self._record_confirmed(call, reason=decision.reason)
            return call
        if decision.action == "deny":
            self._mark_done(call)
            with suppress(ApprovalError):
                await approvals.deny(token, by="customer", who=who, reason="said no in words")
        await approvals.withdraw(token)
        conversation = self._state.conversation
        rest = tuple(one for one in conversation.pending if one.call.id != call.id)
        await self._state.update(structs.replace(conversation, pending=rest))
        self._recorder.add_note(f"{call.name} ({call.id}) will not run: {decision.reason}")
        return None

    # The reply.

    async def _write(self) -> WrittenReply | None:
        """Write the reply, or return guidelines that apply only now; None if the turn ended."""
        guide, state = self._guide, self._state
        self._record_results()
        inputs = await self._inputs.read()
        may_plan = self._iteration < guide.settings.max_iterations
        scope = await self._planner.select_guidelines(self._guidelines.get_matched_ids())
        followed = self._guidelines.list_for_reply()
        followed_ids = {one.id for one in followed}
        request = ReplyRequest(
            messages=state.conversation.messages,
            instructions=guide.instructions,
            guidelines=followed,
            candidates=tuple(one for one in scope if one.id not in followed_ids),
            results=state.results,
            insights=self._recorder.build_insights(self._guidelines.list_candidates()),
            pending=state.conversation.pending,
            variables=inputs.variables,
            terms=guide.terms,
        )
        return await self._writer.write(
            request, considered=self._guidelines.considered, pending=state.conversation.pending, may_plan=may_plan
        )

    async def _save_reply(self, text: str) -> None:
        """Save the reply, and mark the pending calls that it reads back."""
        state = self._state
        conversation = state.conversation
        at = len(conversation.messages) + 1
        pending = tuple(
            structs.replace(one, read_back_at=one.read_back_at or at) if one.approval.by == "customer" else one
            for one in conversation.pending
        )
        state.conversation = structs.replace(conversation, pending=pending)
        await state.reply_with(text)

    # Trace and events.

    def _record_results(self) -> None:
        results = {one.call_id: one for one in self._state.results}
        for call in self._calls:
            self._recorder.record_result(results.get(call.id), call.id, self._decisions.get(call.id))

    def _build_trace(self) -> TurnTrace:
        return self._recorder.build_trace(
            session_id=self._state.context.session_id,
            turn=self._state.conversation.turn,
            reply=self._writer.trace,
            model_calls=self._client.model_calls,
        )

    def _build_result(self, result: TurnResult) -> TurnResult:
        fields = {name: getattr(result, name) for name in TurnResult.__struct_fields__}
        insights = self._recorder.build_insights(self._guidelines.list_candidates())
        return GuidedTurnResult(**fields, insights=insights, trace=self._build_trace())

    def _emit(self) -> None:
        context, trace = self._state.context, self._build_trace()
        self._state.executor.emit(
            TurnPlanned(
                at=time.time(),
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                turn=self._state.conversation.turn,
                guideline_ids=tuple(one.id for one in self._guidelines.list_for_reply()),
                call_ids=tuple(call.id for call in self._calls),
                model_calls=self._client.model_calls,
                iterations=self._iteration,
                trace=trace.summary(),
            )
        )


def _is_reply_needed(state: TurnState) -> bool:
    """Whether there is something to reply to: a message of the customer, or results."""
    messages = state.conversation.messages
    return bool(messages) and not isinstance(messages[-1], AssistantMessage)
