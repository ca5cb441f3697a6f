"""One guided turn: plan, run, plan again with the results, reply."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, Literal, cast

from msgspec import structs

from handrail.chat.conversation import PendingCall
from handrail.chat.session import ChatSession
from handrail.chat.turn import DROPPED_OUTPUT, TurnResult, TurnState
from handrail.core.events import TurnPlanned
from handrail.core.locale_texts import load_locale, select_locale
from handrail.core.log import log
from handrail.core.redact import Redactor
from handrail.core.text import encodable
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ApprovalError, ProviderError, RefusalError, shorten
from handrail.formats.call_parsing import parse_object
from handrail.guide.active_guidelines import ActiveGuidelines
from handrail.guide.compiled_agent import MAX_TEXT, Guide
from handrail.guide.confirmation import (
    PendingDecision,
    add_read_back,
    decide_pending,
    find_approval_state,
    find_objection,
    format_pending,
)
from handrail.guide.judge_requests import (
    JudgeClient,
    Planner,
    PlanningResult,
    TurnInputs,
    VariableReader,
    read_inputs,
    retrieve,
)
from handrail.guide.parameters import call_function
from handrail.guide.reply import ReplyWriter, WrittenReply, describe_outcome
from handrail.guide.trace import Recorder, TurnTrace
from handrail.guide.values import Guideline, Judge, Plan, PlanRequest, ReplyRequest, ToolInsights
from handrail.guide.verdicts import (
    AdaptedArguments,
    PlannedCall,
    Situation,
    adapt_verdicts,
    build_call_key,
    build_verdict_keys,
    check_verdicts,
)
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage, to_history_result


class GuidedTurnResult(TurnResult, frozen=True, kw_only=True):
    """The result of a guided turn, with its insights and its trace."""

    insights: ToolInsights = ToolInsights()
    trace: TurnTrace = TurnTrace()


REFUSED_MESSAGE: Final = "(This message was removed: the model's provider refused it.)"


class GuidedTurn:
    """Plays one guided turn: plans, runs the calls, plans again with their results, and replies."""

    def __init__(
        self, guide: Guide, judge: Judge, state: TurnState, *, variables: VariableReader, redactor: Redactor
    ) -> None:
        self._guide = guide
        self._state = state
        self._variables = variables
        self._guidelines = ActiveGuidelines(guide, state.conversation.tracked)
        self._client = JudgeClient(state, judge, timeout=guide.settings.judge_timeout)
        self._planner = Planner(guide, judge, self._client)
        self._writer = ReplyWriter(guide, judge, self._client, get_locale=self._select_locale)
        self._recorder = Recorder(guide, redactor)
        messages = state.conversation.messages
        self._has_spoken = bool(messages) and isinstance(messages[-1], UserMessage)
        self._iteration = 0
        self._states: dict[str, str] = {}
        """The last state of every candidate of this iteration."""
        self._done: set[str] = set()
        """Keys of calls that were made in this turn, or that the customer rejected."""
        self._calls: list[ToolCall] = []
        self._said: dict[str, Mapping[str, Any]] = {}
        """What the customer said for the calls whose values an adapter changed."""
        self._carried: tuple[ToolResult, ...] = ()
        """Results of a turn that was stopped before it could reply."""
        self._visible: list[ToolResult] = []
        """The results of this turn, as a model may see them."""
        self._withdrawn: list[str] = []
        """The pending calls that this turn dropped, as the customer reads them."""
        self._notified: set[str] = set()
        """The guidelines whose `on_match` was called."""
        self._retrieval: asyncio.Task[dict[str, str]] | None = None
        """The retrievers of the agent, which find text while the turn plans."""

    async def run(self) -> GuidedTurnResult:
        """Run the turn until the customer is next."""
        try:
            if not self._state.is_over:
                await self._run()
        except RefusalError:
            if not self._has_spoken:
                raise
            await self._reply_to_refusal()
        finally:
            if self._retrieval is not None and not self._retrieval.done():
                self._retrieval.cancel()
                await asyncio.wait([self._retrieval])
            if self._client.is_refused and self._has_spoken:
                await self._set_message_aside()
            trace = self._build_trace()
            self._emit(trace)
        result = self._state.build_result()
        fields = {name: getattr(result, name) for name in TurnResult.__struct_fields__}
        return GuidedTurnResult(**fields, insights=self._build_insights(), trace=trace)

    async def _reply_to_refusal(self) -> None:
        """Reply to a message that the provider refused; calls that wait are read back as in every reply."""
        locale, pending = self._select_locale(), self._state.conversation.pending
        text = load_locale(locale)["reply.refused"]
        await self._save_reply(add_read_back(text, pending, self._guide.tools, locale, withdrawn=self._withdrawn))
        await self._state.end_with_pending()

    def _select_locale(self) -> str:
        return select_locale(getattr(self._state.context.tenant, "locale", None), self._guide.locale)

    async def _run(self) -> None:
        state, has_spoken = self._state, self._has_spoken
        self._carry_over(has_spoken=has_spoken)
        await self._run_decided()
        if not _is_reply_needed(state) or state.progress.check() is not None:
            await self._end_without_reply()
            return
        if self._guide.retrievers:
            self._retrieval = asyncio.create_task(retrieve(self._guide.retrievers, state))
        inputs = await read_inputs(self._guide, state, self._variables)
        self._guidelines.match_in_code(inputs.matched)
        if has_spoken or not self._calls:  # After an approval alone, reply first; the reply may match more guidelines.
            await self._plan_and_run_or_reply(inputs)
        while state.progress.check() is None and (written := await self._write(inputs)) is not None:
            if not written.new_matches:
                await self._save_reply(written.text)
                await state.end_with_pending()
                return
            self._guidelines.add_matches(written.new_matches)
            self._resolve_guidelines()
            await self._plan_and_run_or_reply(inputs, only_new=True)
        await self._end_without_reply()

    async def _end_without_reply(self) -> None:
        """End a turn that was interrupted, reached a limit, or was handed to a person."""
        # Whoever replies does not know what was dropped, and the customer may think that it was made. While calls are
        # open, no text can follow them.
        if self._withdrawn and not self._state.conversation.open_calls:
            await self._state.reply_with(
                add_read_back("", (), self._guide.tools, self._select_locale(), withdrawn=self._withdrawn)
            )
        await self._state.end_with_pending()

    async def _set_message_aside(self) -> None:
        """Replace the message that the provider refused: every later request would be refused because of it."""
        conversation = self._state.conversation
        place = max(place for place, message in enumerate(conversation.messages) if isinstance(message, UserMessage))
        messages = list(conversation.messages)
        messages[place] = UserMessage(text=REFUSED_MESSAGE, typed="")
        if (provenance := self._state.provenance) is not None:  # As it would be after a load.
            provenance.set_customer([message.own_words for message in messages if isinstance(message, UserMessage)])
        await self._state.update(structs.replace(conversation, messages=tuple(messages)))
        self._recorder.add_note("the provider refused the customer's message; it was removed from the history")

    def _carry_over(self, *, has_spoken: bool) -> None:
        """Take over the results that no reply has reported, because a turn was stopped; with a new message, effects."""
        messages, effects = self._state.conversation.messages, self._guide.effects
        known = {result.call_id for result in self._state.results}
        for message in reversed(messages):
            if isinstance(message, AssistantMessage) and message.text:
                break
            if isinstance(message, ToolMessage):
                unreported = (
                    result
                    for result in message.results
                    if result.call_id not in known
                    and (not has_spoken or (result.error is None and result.tool_name in effects))
                )
                self._carried = (*unreported, *self._carried)
        if not has_spoken:  # The turn is resumed: what it did is not done again.
            carried = {result.call_id for result in self._carried}
            made = (message.calls for message in messages if isinstance(message, AssistantMessage))
            for call in (call for calls in made for call in calls if call.id in carried):
                self._mark_done(call)

    def _list_results(self) -> tuple[ToolResult, ...]:
        """List the results of this turn, and those that it took over, as a model may see them."""
        if new := self._state.results[len(self._visible) :]:
            messages = self._state.conversation.messages
            history = (message.results for message in messages if isinstance(message, ToolMessage))
            known = {result.call_id: result for results in history for result in results}
            self._visible += [known.get(result.call_id) or to_history_result(result) for result in new]
        return (*self._carried, *self._visible)

    def _has_effects(self) -> bool:
        return any(result.error is None and result.tool_name in self._guide.effects for result in self._list_results())

    async def _plan_and_run_or_reply(self, inputs: TurnInputs, *, only_new: bool = False) -> None:
        """Plan and run; if the judge's provider fails after an effect, go on to the reply, which reports the effect."""
        try:
            await self._plan_and_run(inputs, only_new=only_new)
        except ProviderError as error:
            if not self._has_effects():
                raise
            self._recorder.add_note(f"the provider failed after an effect: {error.code}")

    # Calls that an earlier turn left.

    async def _run_decided(self) -> None:
        """Run the calls that were decided since the last turn, or that a stopped process left without a result."""
        state = self._state
        if state.conversation.open_calls:
            self._recorder.start_iteration(0)
            for call in state.conversation.open_calls:
                self._record_earlier(call, reason="an earlier turn left it without a result")
            await state.run_calls(())
        decided = [pending.call for pending in state.conversation.pending if await self._is_decided(pending)]
        if decided:
            self._recorder.start_iteration(0)
            for call in decided:
                self._record_earlier(call, reason="it was decided since the last turn")
            await state.run_calls(decided)

    async def _is_decided(self, pending: PendingCall) -> bool:
        """Whether the approval of a pending call was decided or has expired."""
        state = await self._state.wait_for_store(find_approval_state(self._state.executor.approvals, pending))
        if state is None:  # Expired: a message is planned first; without one, the call is asked about again.
            return not _is_reply_needed(self._state)
        return state != "pending"

    def _record_earlier(self, call: ToolCall, *, reason: str, confirmation: Literal["yes"] | None = None) -> None:
        """Record a call that an earlier turn prepared."""
        self._calls.append(call)
        self._guidelines.considered.add(call.name)
        self._recorder.record_call(
            call, parse_object(call.arguments_json), reason=reason, confirmation=confirmation, is_new=True
        )
        self._mark_done(call)
        self._guidelines.add_prepared(call.guideline_ids)

    def _mark_done(self, call: ToolCall) -> None:
        if (key := build_call_key(self._guide, call.name, call.arguments_json)) is not None:
            self._done.add(key)

    # Iterations.

    async def _plan_and_run(self, inputs: TurnInputs, *, only_new: bool = False) -> None:
        """Plan and run while results may let more calls run; with `only_new`, the judge is not asked if the tools of
        the guidelines that became active need no inference."""
        asks_judge = not only_new or self._is_inference_needed(self._guidelines.list_new_candidates())
        while True:
            await self._iterate(inputs, asks_judge=asks_judge)
            if self._state.progress.check() is not None or self._iteration >= self._guide.settings.max_iterations:
                return
            if self._guide.journeys.tools:
                self._resolve_guidelines()  # The results may have led to the next state of a journey.
            if new := self._guidelines.list_new_candidates():
                asks_judge = self._is_inference_needed(new)
            elif self._should_plan_again():
                asks_judge = True
            else:
                return

    def _is_inference_needed(self, tools: Iterable[str]) -> bool:
        return any(not self._guide.tools[tool].needs_no_inference for tool in tools)

    async def _iterate(self, inputs: TurnInputs, *, asks_judge: bool) -> None:
        """Plan, check the plan, and run its calls."""
        self._iteration += 1
        self._recorder.start_iteration(self._iteration)
        planned = PlanningResult()
        if asks_judge:
            matched = self._guidelines.get_matched_ids()
            planned = await self._planner.plan(self._build_plan_request(inputs), matched, inputs)
        if planned is None:
            return
        await self._match(planned)
        if calls := await self._decide(planned, inputs):
            await self._state.run_calls(calls)
            await self._remember_said()

    def _build_plan_request(self, inputs: TurnInputs) -> PlanRequest:
        return PlanRequest(
            iteration=self._iteration,
            messages=self._state.conversation.messages,
            instructions=self._guide.instructions,
            variables=inputs.variables,
            terms=self._guide.terms,
            results=self._list_results(),
            pending=self._state.conversation.pending,
        )

    async def _match(self, planned: PlanningResult) -> None:
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
        await self._notify_matched()

    async def _notify_matched(self) -> None:
        """Call `on_match` of the guidelines that became active."""
        for guideline in self._guide.with_on_match:
            if guideline.id not in self._guidelines.active or guideline.id in self._notified:
                continue
            assert guideline.on_match is not None
            self._notified.add(guideline.id)
            try:
                await call_function(self._state.executor, guideline.on_match, self._state.context)
            except Exception as error:  # the developer's code; the turn continues
                log.error("on_match of the guideline %s failed", guideline.id, exc_info=error)

    async def _remember_said(self) -> None:
        """Keep what the customer said beside the pending calls whose values an adapter changed."""
        conversation = self._state.conversation
        pending = tuple(
            structs.replace(waiting, said=self._said[waiting.call.id]) if waiting.call.id in self._said else waiting
            for waiting in conversation.pending
        )
        if pending != conversation.pending:
            await self._state.update(structs.replace(conversation, pending=pending))

    def _resolve_guidelines(self) -> dict[str, str]:
        return self._guidelines.resolve(_order_calls(self._state.conversation.messages))

    async def _decide(self, planned: PlanningResult, inputs: TurnInputs) -> list[ToolCall]:
        """Return the calls of this iteration: those that the customer confirmed, and new ones that pass every check."""
        guide, state = self._guide, self._state
        plan, adapted = Plan(matches=planned.matches, verdicts=planned.verdicts), dict[int, AdaptedArguments]()
        if guide.has_adapters:
            waiting = [pending_call.call for pending_call in state.conversation.pending]
            plan, adapted = await adapt_verdicts(
                plan, guide, state.context, state.executor, candidates=self._guidelines.candidates, pending=waiting
            )
        confirmed: list[ToolCall] = []
        used: set[int] = set()
        if state.conversation.pending and not planned.error and self._iteration == 1:
            decisions, used = decide_pending(
                state.conversation.pending,
                plan.verdicts,
                build_verdict_keys(plan, guide),
                self._build_pending_keys(),
                objections=self._find_objections(),
                removed=self._guidelines.find_removed(state.conversation.pending),
            )
            confirmed = [call for decision in decisions if (call := await self._apply_decision(decision)) is not None]
        kept = set(self._build_pending_keys().values())
        checked = check_verdicts(
            plan,
            Situation(
                guide=guide,
                iteration=self._iteration,
                shown=frozenset() if planned.error else planned.shown - planned.failed.keys(),
                active=self._guidelines.active,
                candidates=self._guidelines.candidates,
                choices=inputs.choices,
                done=self._done | kept,
                known_calls=self._guidelines.known_calls,
                ran={call.name for call in self._calls},
                find_sources=cache(lambda: inputs.find_sources(guide, state.conversation.messages)),
                adapted=adapted,
            ),
            skip=used,
        )
        self._recorder.record_verdicts(checked)
        self._states = {evaluation.tool: evaluation.state for evaluation in checked.evaluations}
        self._states |= dict.fromkeys(planned.shown if planned.error else planned.failed, "cannot_run")
        new = [self._build_call(number, planned_call) for number, planned_call in enumerate(checked.calls, start=1)]
        for call, planned_call in zip(new, checked.calls, strict=True):
            self._recorder.record_call(call, planned_call.arguments)
            self._done.add(planned_call.key)
            if planned_call.said:
                self._said[call.id] = planned_call.said
        self._calls += new
        return [*confirmed, *new]

    def _build_call(self, number: int, planned: PlannedCall) -> ToolCall:
        turn = self._state.conversation.turn
        return ToolCall(
            id=f"guided_{turn}_{self._iteration}_{number}",
            name=planned.tool,
            arguments_json=planned.arguments_json,
            response_id=f"guided_{turn}_{self._iteration}",
            guideline_ids=planned.guideline_ids,
            ask_operator=planned.ask_operator,
        )

    def _should_plan_again(self) -> bool:
        """Whether the results of this iteration may let another tool run."""
        if self._iteration >= self._guide.settings.max_iterations:
            return False
        response = f"guided_{self._state.conversation.turn}_{self._iteration}"
        ran = {call.id: call for call in self._calls if call.response_id == response}
        fresh = [result for result in self._state.results if result.call_id in ran]
        if not fresh:
            return False
        ran_tools = {call.name for call in ran.values()}
        together = {
            tool
            for guideline in self._guide.guidelines
            if guideline.id in self._guidelines.active and ran_tools & set(guideline.tools)
            for tool in guideline.tools
        }
        return any(
            self._guide.tools[tool].runnable
            and (state == "cannot_run" or (state == "not_applicable" and tool in together))
            for tool, state in self._states.items()
            if tool in self._guidelines.considered and tool in self._guide.tools  # One of a pending call may be gone.
        )

    # Pending calls.

    def _build_pending_keys(self) -> dict[str, str]:
        keys = {
            pending_call.call.id: build_call_key(self._guide, pending_call.call.name, pending_call.call.arguments_json)
            for pending_call in self._state.conversation.pending
        }
        return {call_id: key for call_id, key in keys.items() if key is not None}

    def _find_objections(self) -> dict[str, str]:
        """Find why a yes of the judge does not count, for each pending call whose yes does not."""
        conversation = self._state.conversation
        found = {
            waiting.call.id: find_objection(
                waiting,
                pending=conversation.pending,
                tools=self._guide.tools,
                messages=conversation.messages,
                turn=self._state.context.turn,
                locale=self._select_locale(),
            )
            if not self._guidelines.are_rejected(waiting.call.guideline_ids)
            else "the judge says that its guideline does not apply"
            for waiting in conversation.pending
        }
        return {call_id: objection for call_id, objection in found.items() if objection is not None}

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
                await self._state.wait_for_store(
                    approvals.approve(token, by="customer", who=who, reason="agreed in words")
                )
            self._record_earlier(call, reason=decision.reason, confirmation="yes")
            return call
        if decision.action == "deny":
            self._mark_done(call)
            with suppress(ApprovalError):
                await self._state.wait_for_store(
                    approvals.deny(token, by="customer", who=who, reason="said no in words")
                )
        await self._state.wait_for_store(approvals.withdraw(token))
        self._withdrawn.append(format_pending(pending, self._guide.tools, self._select_locale()))
        conversation = self._state.conversation
        rest = tuple(pending_call for pending_call in conversation.pending if pending_call.call.id != call.id)
        await self._state.update(structs.replace(conversation, pending=rest))
        self._recorder.add_note(f"{call.name} ({call.id}) will not run: {decision.reason}")
        return None

    # The reply.

    async def _write(self, inputs: TurnInputs) -> WrittenReply | None:
        """Write the reply, or return guidelines that apply only now; None if the turn ended."""
        guide, state = self._guide, self._state
        await self._notify_matched()
        scope: tuple[Guideline, ...] = ()
        if self._list_results():  # Without results, nothing is known that the plan did not know.
            matched = self._guidelines.get_matched_ids()
            scope = await self._planner.select_guidelines(self._build_plan_request(inputs), matched)
        followed = (*self._guidelines.list_for_reply(), *self._list_added_guidelines())
        followed_ids = {guideline.id for guideline in followed}
        request = ReplyRequest(
            messages=state.conversation.messages,
            instructions=guide.instructions,
            guidelines=followed,
            candidates=tuple(
                guideline for guideline in scope if guideline.id not in followed_ids and guideline.matches is None
            ),
            results=self._list_results(),
            insights=self._build_insights(),
            pending=state.conversation.pending,
            variables=inputs.variables,
            terms=guide.terms,
            retrieved=await self._retrieval if self._retrieval is not None else {},
            withdrawn=tuple(self._withdrawn),
            effects=tuple(guide.effects),
            now=inputs.now,
        )
        may_plan = self._iteration < guide.settings.max_iterations
        return await self._writer.write(request, considered=self._guidelines.considered, may_plan=may_plan)

    async def _save_reply(self, text: str) -> None:
        """Save the reply, and mark the pending calls that it reads back.

        An effect that an earlier turn could not report is reported before it, whatever the judge wrote.
        """
        mine = {call.id for call in self._calls}
        late = [
            describe_outcome(result)
            for result in self._list_results()
            if result.error is None and result.tool_name in self._guide.effects and result.call_id not in mine
        ]
        text = "\n\n".join(filter(None, ["\n".join(late), text]))
        state = self._state
        conversation = state.conversation
        at = len(conversation.messages) + 1
        pending = tuple(
            structs.replace(pending_call, read_back_at=pending_call.read_back_at or at)
            if pending_call.approval.by == "customer"
            else pending_call
            for pending_call in conversation.pending
        )
        ok = {result.call_id for result in state.results if result.error is None}
        tracked = self._guidelines.find_tracked(
            conversation.tracked,
            waiting={guideline_id for pending_call in pending for guideline_id in pending_call.call.guideline_ids},
            done={guideline_id for call in self._calls if call.id in ok for guideline_id in call.guideline_ids},
            has_planned=self._client.has_planned,
        )
        state.conversation = structs.replace(conversation, pending=pending, tracked=tracked)
        await state.reply_with(text)

    def _list_added_guidelines(self) -> list[Guideline]:
        """List the guidelines that handlers of this program returned with their results, for this reply only."""
        found: list[Guideline] = []
        for result in self._state.results:
            tool = self._guide.tools.get(result.tool_name)
            if tool is None or tool.tool.source != "local" or result.error is not None:
                continue
            returned = cast(object, result.guidelines)  # A handler's: it can be anything.
            if not isinstance(returned, tuple | list):
                log.error("%s returned guidelines that are no tuple, which are ignored", result.tool_name)
                continue
            for number, given in enumerate(cast("tuple[object, ...]", returned), start=1):
                action = given.action if isinstance(given, Guideline) else given
                if not isinstance(action, str) or not action.strip() or len(action) > MAX_TEXT:
                    log.error("%s returned a guideline without an action, which is ignored", result.tool_name)
                    continue
                guideline_id = f"{result.tool_name}.{number}"
                found.append(Guideline(id=guideline_id, action=encodable(action), always=True))
        return found

    # Trace and events.

    def _build_trace(self) -> TurnTrace:
        decisions = {result.call_id: result.decision for result in self._state.progress.results}
        results = {result.call_id: result for result in self._state.results}
        for call in self._calls:
            self._recorder.record_result(results.get(call.id), call.id, decisions.get(call.id))
        return self._recorder.build_trace(
            session_id=self._state.context.session_id,
            turn=self._state.conversation.turn,
            reply=self._writer.trace,
            model_calls=self._client.model_calls,
        )

    def _build_insights(self) -> ToolInsights:
        return self._recorder.build_insights(self._guidelines.candidates)

    def _emit(self, trace: TurnTrace) -> None:
        context = self._state.context
        self._state.executor.emit(
            TurnPlanned(
                at=time.time(),
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                turn=self._state.conversation.turn,
                guideline_ids=tuple(guideline.id for guideline in self._guidelines.list_applying()),
                call_ids=tuple(call.id for call in self._calls),
                model_calls=self._client.model_calls,
                iterations=self._iteration,
                trace=trace.summary(),
            )
        )


def _order_calls(messages: Sequence[Message]) -> dict[tuple[str, str], int]:
    """Order the calls of a conversation that have a result, by the guidelines that they were made for."""
    done = {
        result.call_id
        for message in messages
        if isinstance(message, ToolMessage)
        for result in message.results
        if result.error is None and result.output != DROPPED_OUTPUT
    }
    made = (message.calls for message in messages if isinstance(message, AssistantMessage))
    calls = [call for calls in made for call in calls if call.id in done]
    return {(guideline, call.name): order for order, call in enumerate(calls) for guideline in call.guideline_ids}


def _is_reply_needed(state: TurnState) -> bool:
    """Whether there is something to reply to: a message of the customer, or results."""
    messages = state.conversation.messages
    return bool(messages) and not isinstance(messages[-1], AssistantMessage)


class GuidedStrategy:
    """The `TurnStrategy` of guided calling: guidelines select the tools, a judge selects the calls, code checks both.

    `guide` is called at the beginning of every turn, so that changes apply from the next turn on.
    """

    keeps_pending: Final = True

    def __init__(self, guide: Callable[[], Guide], judge: Judge, *, redactor: Redactor | None = None) -> None:
        self._guide = guide
        self._judge = judge
        self._redactor = redactor or Redactor()
        self._variables = VariableReader()

    async def run(self, state: TurnState) -> GuidedTurnResult:
        """Run a turn until the customer is next."""
        turn = GuidedTurn(self._guide(), self._judge, state, variables=self._variables, redactor=self._redactor)
        return await turn.run()


class GuidedSession(ChatSession[GuidedTurnResult]):
    """A `ChatSession` whose turns are guided: their results have insights and a trace."""
