"""One guided turn: plan, run, plan again with the results, reply."""

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from typing import Any, cast

from msgspec import structs
from pydantic_core import from_json

from handrail.chat.conversation import PendingCall
from handrail.chat.turn import DROPPED_OUTPUT, TurnState
from handrail.chat.turn_result import ChatEvent, TurnResult
from handrail.core.context import ToolContext
from handrail.core.events import CallFinished, TurnPlanned
from handrail.core.redact import Redactor
from handrail.core.values import Decision, ToolCall
from handrail.errors import ApprovalError, ConfigError, shorten
from handrail.guide.checking import normalised
from handrail.guide.confirmation import PendingDecision, decide_pending
from handrail.guide.definition import Guide
from handrail.guide.evaluation import (
    PlannedCall,
    Situation,
    call_key,
    candidate_names,
    evaluate,
    verdict_keys,
)
from handrail.guide.parameters import resolve_choices
from handrail.guide.planning import Knowledge, Planned, Planner
from handrail.guide.questions import Questions
from handrail.guide.recorder import Recorder
from handrail.guide.replying import Writer, Written
from handrail.guide.trace import TurnTrace
from handrail.guide.values import GuidedTurnResult, GuidelineMatch, Judge, Plan, ReplyRequest
from handrail.guide.variables import VariableReader
from handrail.providers.messages import AssistantMessage, ToolMessage, UserMessage
from handrail.providers.provider import TextDelta


class GuidedTurn:
    """The working state of one turn."""

    def __init__(
        self, guide: Guide, judge: Judge, state: TurnState, *, variables: VariableReader, redactor: Redactor
    ) -> None:
        self._guide = guide
        self._state = state
        self._reader = variables
        self._questions = Questions(state, timeout=guide.settings.judge_timeout)
        self._planner = Planner(guide, judge, state, self._questions)
        self._writer = Writer(guide, judge, state, self._questions)
        self._recorder = Recorder(guide, redactor)
        self._iteration = 0
        self._matched: dict[str, GuidelineMatch] = {}
        """What was said last about each guideline in this turn."""
        self._active: frozenset[str] = frozenset()
        self._carried: set[str] = set()
        """Guidelines of calls that an earlier turn prepared: they guide the reply, and bring in no tools."""
        self._considered: set[str] = set()
        """Every tool that was a candidate in this turn."""
        self._done: set[str] = set()
        """Keys of calls that were made in this turn, or that the customer said no to."""
        self._calls: list[ToolCall] = []
        self._decisions: dict[str, Decision | None] = {}
        self._knowledge: Knowledge | None = None
        self._known: frozenset[str] | None = None
        self._customers_words: tuple[str, ...] | None = None
        state.make_result = self._result

    async def run(self) -> AsyncGenerator[ChatEvent]:
        """Bring the conversation to where the next word is the customer's."""
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
        async with aclosing(self._carry_over()) as events:
            async for event in events:
                yield event
        if not _is_customers_turn(state) or state.check_budget() is not None:
            await state.end_with_pending()
            return
        if has_spoken or not self._calls:  # After an approval alone the reply comes first; it may bring in more.
            async with aclosing(self._plan_and_run()) as events:
                async for event in events:
                    yield event
        while state.check_budget() is None and (written := await self._write()) is not None:
            if not written.new_matches:
                await self._say(written.text)
                yield TextDelta(text=written.text)
                break
            self._matched |= {one.guideline_id: one for one in written.new_matches}
            self._active, _ = self._resolve()
            async with aclosing(self._plan_and_run(only_new=True)) as events:
                async for event in events:
                    yield event
        await state.end_with_pending()

    # What was left by an earlier turn.

    async def _carry_over(self) -> AsyncGenerator[ChatEvent]:
        """Run the calls that somebody has decided about since the last turn, or that a process left unanswered."""
        state = self._state
        if state.conversation.open_calls:
            calls = state.conversation.open_calls
            self._recorder.begin(0)
            self._note_calls(calls)
            async with aclosing(state.run_calls(())) as events:
                async for event in events:
                    yield event
        decided = [one for one in state.conversation.pending if await self._is_decided(one)]
        if decided:
            self._recorder.begin(0)
            self._note_calls(one.call for one in decided)
            async with aclosing(state.run_calls(one.call for one in decided)) as events:
                async for event in events:
                    yield event

    async def _is_decided(self, pending: PendingCall) -> bool:
        """Whether the question about a pending call is no longer open: approved, denied, or expired."""
        asked = pending.approval
        found = await self._state.executor.approvals.find(
            session_id=asked.session_id,
            tool=asked.tool,
            digest=asked.digest,
            by=asked.by,
            repeat=asked.repeat,
            now=time.time(),
        )
        if found is None:  # Expired. The customer's words are heard first; without any, the question is asked anew.
            return not _is_customers_turn(self._state)
        return found.state != "pending"

    def _note_calls(self, calls: Iterable[ToolCall]) -> None:
        for call in calls:
            self._calls.append(call)
            self._recorder.call(call, _arguments(call), reason="it was decided since the last turn", confirmation="yes")
            if (key := call_key(self._guide, call.name, call.arguments_json)) is not None:
                self._done.add(key)
            self._carried.update(one for one in call.guideline_ids if one in self._guide.by_id)
            self._considered.add(call.name)

    # One iteration.

    async def _plan_and_run(self, *, only_new: bool = False) -> AsyncGenerator[ChatEvent]:
        """Plan and run, again and again, while results may let more run; `only_new` if guidelines apply that did not
        before, whose tools may need no question."""
        asks = not only_new or any(not self._guide.tools[one].needs_no_inference for one in self._new_tools())
        while True:
            async with aclosing(self._iterate(asks=asks)) as events:
                async for event in events:
                    yield event
            if self._state.check_budget() is not None or self._iteration >= self._guide.settings.max_iterations:
                return
            self._active, _ = self._resolve()  # What ran may have led to the next state of a journey.
            if new := self._new_tools():
                asks = any(not self._guide.tools[one].needs_no_inference for one in new)
            elif self._should_plan_again():
                asks = True
            else:
                return

    async def _iterate(self, *, asks: bool) -> AsyncGenerator[ChatEvent]:
        """Plan, check the plan, run what it comes to."""
        self._iteration += 1
        self._recorder.begin(self._iteration)
        planned = await self._plan() if asks else Planned()
        if planned is None:
            return
        self._match(planned)
        calls = await self._decide(planned)
        if calls:
            async with aclosing(self._state.run_calls(calls)) as events:
                async for event in events:
                    yield event

    async def _plan(self) -> Planned | None:
        knowledge = await self._know()
        return await self._planner.plan(self._iteration, self._applied(), knowledge)

    def _new_tools(self) -> list[str]:
        return [one for one in candidate_names(self._guide, self._active) if one not in self._considered]

    def _match(self, planned: Planned) -> None:
        """Take over what the judge says about guidelines; what relationships make of it is code's."""
        said: dict[str, tuple[bool, str]] = {}
        for one in planned.matches:
            if one.guideline_id not in self._guide.by_id:
                self._recorder.note(f"the judge named an unknown guideline: {shorten(one.guideline_id)}")
                continue
            self._matched[one.guideline_id] = one
        self._active, reasons = self._resolve()
        for one in self._guide.guidelines:
            match = self._matched.get(one.id)
            if one.id in self._active or match is not None or one.id in reasons:
                reason = "always" if one.always else match.reason if match else ""
                said[one.id] = (one.id in self._active, reasons.get(one.id) or shorten(reason, 500))
        self._recorder.guidelines(said)
        self._considered.update(candidate_names(self._guide, self._active))
        if planned.error:
            self._recorder.note(planned.error)
            for tool in sorted(planned.shown) or [""]:
                self._recorder.cannot_run(tool, planned.error, self._iteration)
        for tool, reason in planned.failed.items():
            self._recorder.cannot_run(tool, reason, self._iteration)

    def _applied(self) -> set[str]:
        return {one for one, match in self._matched.items() if match.applies}

    def _resolve(self) -> tuple[frozenset[str], dict[str, str]]:
        """The guidelines that are active after what journeys and relationships make of the matches, and why."""
        done = {one.tool_name for one in self._state.results if one.ok} | self._known_results()
        applied, passed = self._guide.journeys.resolve(self._applied() | self._guide.always, done)
        resolution = self._guide.relationships.resolve(applied)
        return resolution.active, {**resolution.reasons, **passed}

    async def _decide(self, planned: Planned) -> list[ToolCall]:
        """The calls of this iteration: those that the customer confirmed, and new ones that pass every check."""
        guide, state = self._guide, self._state
        plan = Plan(matches=planned.matches, verdicts=planned.verdicts)
        confirmed: list[ToolCall] = []
        used: set[int] = set()
        if state.conversation.pending and not planned.error and self._iteration == 1:
            decisions, used = decide_pending(
                state.conversation.pending,
                plan.verdicts,
                verdict_keys(plan, guide),
                self._pending_keys(),
                can_confirm={one.call.id: self._can_confirm(one) for one in state.conversation.pending},
            )
            confirmed = [call for one in decisions if (call := await self._act_on(one)) is not None]
        kept = set(self._pending_keys().values())
        evaluation = evaluate(
            plan,
            Situation(
                guide=guide,
                iteration=self._iteration,
                shown=frozenset() if planned.error else planned.shown - planned.failed.keys(),
                active=self._active,
                choices=(await self._know()).choices,
                done=self._done | kept,
                known=self._known_results(),
                ran={call.name for call in self._calls},
                is_customers_word=self._is_customers_word,
            ),
            skip=used,
        )
        self._recorder.evaluated(evaluation)
        new = [self._call(number, one) for number, one in enumerate(evaluation.calls, start=1)]
        for call, one in zip(new, evaluation.calls, strict=True):
            self._recorder.call(call, one.arguments)
            self._done.add(one.key)
        self._calls += [*confirmed, *new]
        return [*confirmed, *new]

    def _call(self, number: int, planned: PlannedCall) -> ToolCall:
        turn = self._state.conversation.turn
        return ToolCall(
            id=f"guided_{turn}_{self._iteration}_{number}",
            name=planned.tool,
            arguments_json=planned.arguments_json,
            response_id=f"guided_{turn}_{self._iteration}",
            guideline_ids=planned.guideline_ids,
        )

    def _should_plan_again(self) -> bool:
        """Whether the results of this iteration may let another tool run that could not before."""
        if self._iteration >= self._guide.settings.max_iterations:
            return False
        response = f"guided_{self._state.conversation.turn}_{self._iteration}"
        ran = {call.id: call for call in self._calls if call.response_id == response}
        fresh = [one for one in self._state.results if one.call_id in ran]
        if not fresh:
            return False
        states = self._recorder.states(self._iteration)
        ran_tools = {call.name for call in ran.values()}
        together = {
            tool
            for one in self._guide.guidelines
            if one.id in self._active and ran_tools & set(one.tools)
            for tool in one.tools
        }
        return any(
            self._guide.tools[tool].runnable
            and (state == "cannot_run" or (state == "not_applicable" and tool in together))
            for tool, state in states.items()
            if tool in self._considered
        )

    # Pending calls.

    def _pending_keys(self) -> dict[str, str]:
        keys = {
            one.call.id: call_key(self._guide, one.call.name, one.call.arguments_json)
            for one in self._state.conversation.pending
        }
        return {call_id: key for call_id, key in keys.items() if key is not None}

    def _can_confirm(self, pending: PendingCall) -> bool:
        """Whether the customer's words can confirm a call: they were asked, in an earlier turn, and have spoken since;
        and nothing says that the guidelines of the call do not apply any more."""
        read_back = pending.read_back_at
        spoken = any(isinstance(one, UserMessage) for one in self._state.conversation.messages[read_back:])
        asked_by = [one for one in pending.call.guideline_ids if one in self._guide.by_id]
        dropped = [one for one in asked_by if one in self._matched and not self._matched[one].applies]
        return (
            pending.approval.by == "customer"
            and read_back > 0
            and pending.approval.turn < self._state.context.turn
            and spoken
            and bool(asked_by)
            and len(dropped) < len(asked_by)
        )

    async def _act_on(self, decision: PendingDecision) -> ToolCall | None:
        """Do what was decided about a pending call; the call, if it is to run."""
        pending, approvals = decision.pending, self._state.executor.approvals
        call, token = pending.call, pending.approval.token
        who = self._state.context.customer_id or "customer"
        self._considered.add(call.name)
        if decision.action == "keep":
            return None
        if decision.action == "run":
            with suppress(ApprovalError):  # Expired, or decided elsewhere: running it asks again, or says so.
                await approvals.approve(token, by="customer", who=who, reason="agreed in words")
            self._recorder.call(call, _arguments(call), reason=decision.reason, confirmation="yes")
            if (key := call_key(self._guide, call.name, call.arguments_json)) is not None:
                self._done.add(key)
            self._carried.update(one for one in call.guideline_ids if one in self._guide.by_id)
            return call
        if decision.action == "deny":
            if (key := call_key(self._guide, call.name, call.arguments_json)) is not None:
                self._done.add(key)
            with suppress(ApprovalError):
                await approvals.deny(token, by="customer", who=who, reason="said no in words")
        await approvals.withdraw(token)
        conversation = self._state.conversation
        rest = tuple(one for one in conversation.pending if one.call.id != call.id)
        await self._state.update(structs.replace(conversation, pending=rest))
        self._recorder.note(f"{call.name} ({call.id}) will not run: {decision.reason}")
        return None

    # The reply.

    async def _write(self) -> Written | None:
        """The reply, or the guidelines that apply only now; None if the turn ended."""
        guide, state = self._guide, self._state
        self._record_results()
        knowledge = await self._know()
        may_plan = self._iteration < guide.settings.max_iterations
        scope = await self._planner.scope(self._applied())
        request = ReplyRequest(
            messages=state.conversation.messages,
            instructions=guide.instructions,
            guidelines=tuple(one for one in guide.guidelines if one.id in self._active | self._carried),
            candidates=tuple(one for one in scope if one.id not in self._active | self._carried),
            results=state.results,
            insights=self._recorder.insights(candidate_names(guide, self._active)),
            pending=state.conversation.pending,
            variables=knowledge.variables,
            terms=guide.terms,
        )
        return await self._writer.write(
            request, considered=self._considered, pending=state.conversation.pending, may_plan=may_plan
        )

    async def _say(self, text: str) -> None:
        """Save the reply together with the fact that it read pending calls back."""
        state = self._state
        conversation = state.conversation
        at = len(conversation.messages) + 1
        pending = tuple(
            structs.replace(one, read_back_at=one.read_back_at or at) if one.approval.by == "customer" else one
            for one in conversation.pending
        )
        state.conversation = structs.replace(conversation, pending=pending)
        await state.reply_with(text)

    # What is known.

    async def _know(self) -> Knowledge:
        if self._knowledge is None:
            context = self._state.context
            choices: dict[str, Any] = {}
            for name, tool in self._guide.tools.items():
                if tool.options:
                    choices[name] = await _choices(tool, context)
            self._knowledge = Knowledge(
                variables=await self._reader.read(self._guide.variables, context), choices=choices
            )
        return self._knowledge

    def _known_results(self) -> frozenset[str]:
        """The tools whose result was in the conversation before this turn planned anything."""
        if self._known is None:
            self._known = frozenset(
                one.tool_name
                for message in self._state.conversation.messages
                if isinstance(message, ToolMessage)
                for one in message.results
                if one.ok and one.output != DROPPED_OUTPUT
            )
        return self._known

    def _is_customers_word(self, text: str) -> bool:
        if self._customers_words is None:
            messages = self._state.conversation.messages
            self._customers_words = tuple(normalised(one.text) for one in messages if isinstance(one, UserMessage))
        words = normalised(text)
        return any(words in one for one in self._customers_words)

    # What is told.

    def _record_results(self) -> None:
        results = {one.call_id: one for one in self._state.results}
        for call in self._calls:
            self._recorder.result(results.get(call.id), call.id, self._decisions.get(call.id))

    def _trace(self) -> TurnTrace:
        return self._recorder.trace(
            session_id=self._state.context.session_id,
            turn=self._state.conversation.turn,
            reply=self._writer.trace,
            model_calls=self._questions.asked,
        )

    def _result(self, result: TurnResult) -> TurnResult:
        fields = {name: getattr(result, name) for name in TurnResult.__struct_fields__}
        insights = self._recorder.insights(candidate_names(self._guide, self._active))
        return GuidedTurnResult(**fields, insights=insights, trace=self._trace())

    def _emit(self) -> None:
        context, trace = self._state.context, self._trace()
        self._state.executor.emit(
            TurnPlanned(
                at=time.time(),
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                turn=self._state.conversation.turn,
                guideline_ids=tuple(one.id for one in self._guide.guidelines if one.id in self._active | self._carried),
                call_ids=tuple(call.id for call in self._calls),
                model_calls=self._questions.asked,
                iterations=self._iteration,
                trace=trace.summary(),
            )
        )


async def _choices(tool: Any, context: ToolContext[Any]) -> Any:
    try:
        return await resolve_choices(tool, context)
    except ConfigError:  # Logged where it happened; without them the tool cannot run.
        return None


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        found = from_json(call.arguments_json or "{}")
    except ValueError:
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _is_customers_turn(state: TurnState) -> bool:
    """Whether there is something to reply to: the customer's words, or results."""
    messages = state.conversation.messages
    return bool(messages) and not isinstance(messages[-1], AssistantMessage)
