"""One turn of a conversation: its state, the steps that a strategy is made of, and how it ends."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct, structs
from typing_extensions import TypeVar

from handrail.chat.conversation import Conversation, PendingCall, normalize_response
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.events import CallFinished, CallIgnored, CallStarted, Event, ModelCalled, Progress
from handrail.core.provenance import DROPPED_OUTPUT, Provenance
from handrail.core.text import encodable
from handrail.core.time_budget import TimeBudget
from handrail.core.tool import Tool
from handrail.core.values import Approval, ToolCall, ToolResult
from handrail.errors import (
    BadResponseError,
    ConfigError,
    ProviderDownError,
    ProviderError,
    StoreError,
    must_propagate,
)
from handrail.execute.budget import Budget, LoopProgress, StopReason, run_again
from handrail.execute.executor import Executor
from handrail.providers.messages import (
    AssistantMessage,
    ToolMessage,
    UserMessage,
    build_user_message,
    to_history_result,
)
from handrail.providers.provider import (
    FinishReason,
    ModelRequest,
    ModelResponse,
    Provider,
    TextDelta,
    ToolChoice,
    Usage,
)
from handrail.registry.search import offered_tools

T = TypeVar("T")
ResultT = TypeVar("ResultT", bound="TurnResult", default="TurnResult")

STORE_TIMEOUT: Final = 30.0
"""Seconds that one step of a store of conversations or approvals may take in a turn."""
_MAX_WAITING_EVENTS: Final = 100
"""Events that wait for a slow reader; the model's stream is not read further while there are as many."""


class TurnResult(Struct, frozen=True, kw_only=True):
    """How a turn ended."""

    text: str = ""
    """The last text that the model wrote in this turn."""
    stop_reason: StopReason = "completed"
    finish_reason: FinishReason = "stop"
    """Why the model stopped writing. Show the person when it is `length` or `refusal`: the text is incomplete."""
    results: tuple[ToolResult, ...] = ()
    """The results of this turn's calls, in the order in which they came in. Calls that await an approval have none.
    Those with the codes `in_progress` and `outcome_unknown` are not final: the next turn looks the calls up again."""
    approvals: tuple[Approval, ...] = ()
    """The open approvals: decide with `session.approve(token)` or `session.deny(token)`, then `session.resume()`."""
    usage: Usage = Usage()
    """Tokens and cost of this turn."""


ChatEvent: TypeAlias = TextDelta | CallStarted | Progress | CallFinished | CallIgnored | Approval | TurnResult
"""What a streamed turn yields. The last one, and only the last, is the `TurnResult`."""


class TurnState:
    """The state of a running turn, with the steps that a strategy is made of."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        provider: Provider,
        executor: Executor,
        context: ToolContext[Any],
        provenance: Provenance | None,
        instructions: str,
        budget: Budget,
        save: Callable[[Conversation], Awaitable[Conversation]] | None,
        events: asyncio.Queue[ChatEvent | None] | None = None,
    ) -> None:
        """`events` passes what happens to the reader of a streamed turn; a turn that nobody reads needs none."""
        self.conversation = conversation
        self.provider = provider
        self.executor = executor
        self.context = context
        self.provenance = provenance
        """Where values come from, if a rule asks for it; what the customer writes is added to it."""
        self.instructions = instructions
        self.progress = LoopProgress(budget, executor)
        """What the turn has used of its budget, and why it stopped."""
        self.response: ModelResponse | None = None
        """The model's last response in this turn."""
        self.result: TurnResult | None = None
        """Set once the turn is over."""
        self.model_calls = 0
        """How often `ask_model` asked."""
        self.is_over = False
        """Whether nothing is left to do in this turn: a person has taken over, or the reply is complete."""
        self._events = events
        self.results: tuple[ToolResult, ...] = ()
        """The results of this turn's calls so far; those that await an approval have none."""
        self._text = ""
        self._approvals: list[Approval] = []
        self._usage = Usage()
        self._save = save
        self._model_tasks: set[asyncio.Future[Any]] = set()
        self._new_ids: set[str] = set()
        """Calls that this turn has made; those of an earlier turn may have been begun."""
        self._running_response_ids: frozenset[str] = frozenset()
        """The responses of the calls that run: one that was confirmed is of an earlier turn."""

    async def update(self, conversation: Conversation) -> None:
        """Set the conversation, and save it."""
        self.conversation = conversation
        if self._save is not None:
            self.conversation = await self._save(conversation)

    async def run_message(
        self, text: str, strategy: "TurnStrategy[ResultT]", *, quoted: Iterable[str] = ()
    ) -> "ResultT":
        """Run the turn of a new message; what earlier turns left open comes first."""
        message = build_user_message(text, quoted)
        await self.drop_transient_results()  # Of a turn that could not reply.
        await self._adopt_pending(strategy)
        await self.settle_provisional()
        if self.conversation.open_calls:
            # Calls that were approved meanwhile run now; the others are answered as not made, or provisionally.
            await self.run_open_calls()
            await self.close_open_calls()
        if self.provenance is not None:
            add_message(self.provenance, message)
        await self.update(self.conversation.with_messages(message))
        return await self._run_strategy(strategy)

    async def run_rest(self, strategy: "TurnStrategy[ResultT]") -> "ResultT":
        """Run what is left of an earlier turn; raises `ConfigError` if there is nothing."""
        await self._adopt_pending(strategy)
        conversation = self.conversation
        is_replied = _is_waiting_for_person(conversation)
        self.is_over = is_replied and not (conversation.open_calls or conversation.pending)
        if self.is_over and not conversation.unsettled:
            raise ConfigError("there is nothing to resume: no call is open and the reply is complete. Use send().")
        await self.settle_provisional()
        if self.is_over:  # The reply is complete: the model reads what was found out with the next message.
            self.progress.stop_if_unsettled(self.progress.results)
        return await self._run_strategy(strategy)

    async def _run_strategy(self, strategy: "TurnStrategy[ResultT]") -> "ResultT":
        if self.conversation.handed_off:
            self.stop_reason, self.is_over = "handed_off", True
        self.result = result = await strategy.run(self)
        if self.conversation.transient and not self.conversation.last_calls:
            await self.drop_transient_results()  # Unless the response that may use them is still to come.
        return result

    async def _adopt_pending(self, strategy: "TurnStrategy[Any]") -> None:
        """Turn calls that a guided turn left pending into open calls, unless the strategy knows about them."""
        pending = self.conversation.pending
        if pending and not getattr(strategy, "keeps_pending", False):
            self._new_ids.update(pending_call.call.id for pending_call in pending)  # They were never begun.
            await self.update(self.conversation.with_pending_as_calls())

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the turn must not begin anything new; None while it may."""
        return self.progress.stop_reason

    @stop_reason.setter
    def stop_reason(self, reason: StopReason | None) -> None:
        self.progress.stop_reason = reason

    def check_budget(self) -> StopReason | None:
        """Set `stop_reason` if the turn was interrupted or has reached a limit; return it, or None to continue."""
        return self.progress.check()

    async def ask_model(
        self,
        *,
        instructions: str | None = None,
        tools: Sequence[Tool[..., Any]] | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> ModelResponse | None:
        """Ask the model, and add its response to the history; return it, or None if it was interrupted."""
        self.response, self._text = None, ""
        if tools is None:
            registry = self.executor.registry
            has_deferred = registry.has_deferred
            tools = offered_tools(registry, self.conversation.results) if has_deferred else tuple(registry)
        request = ModelRequest(
            messages=self.conversation.messages,
            instructions=self.instructions if instructions is None else instructions,
            tools=tools,
            tool_choice=tool_choice or ToolChoice(),
        )
        texts: list[str] = []
        started, error = time.monotonic(), None
        try:
            response = await self.wait(self._read_stream(request, texts))
            if response is not None:
                self.response = normalize_response(response, self.conversation, step=self.progress.steps)
        except ProviderError as provider_error:
            error = provider_error.code
            raise
        finally:
            self._text = "".join(texts)
            self.report_model_call(started, error=error)
        await self._wait_for_reader()
        if self.response is not None:
            self._new_ids.update(call.id for call in self.response.calls)
            self._text, message = self.response.text, self.response.message()
        else:
            message = AssistantMessage(text=self._text)
        is_empty = not (message.text or message.calls or message.native)
        await self.update(self.conversation if is_empty else self.conversation.with_messages(message))
        return self.response

    async def _read_stream(self, request: ModelRequest, texts: list[str]) -> ModelResponse:
        response: ModelResponse | None = None
        try:
            async for event in self.provider.stream(request):
                if isinstance(event, TextDelta):
                    delta = TextDelta(text=encodable(event.text))
                    texts.append(delta.text)
                    if self._events is not None:
                        if self._events.qsize() >= _MAX_WAITING_EVENTS:
                            await self._events.join()
                        self._events.put_nowait(delta)
                else:
                    response = event
        except asyncio.CancelledError as error:
            if must_propagate(error):
                raise
            raise ProviderDownError(f"{self.provider.name} cancelled its own request.") from error
        if response is None:
            raise BadResponseError(f"{self.provider.name} ended its stream without a response.")
        return response

    async def emit(self, event: ChatEvent) -> None:
        """Pass an event to the reader of a streamed turn, and wait until the reader asks for the next one."""
        if self._events is not None:
            self._events.put_nowait(event)
            await self._events.join()

    async def _wait_for_reader(self) -> None:
        """Wait until the reader of a streamed turn has read everything: it may still interrupt what comes next."""
        if self._events is not None:
            await self._events.join()

    async def wait_for_store(self, step: Awaitable[T]) -> T:
        """Wait for a step of the store of approvals; raises `StoreError` if it takes too long."""
        if self.executor.approvals.is_immediate:
            return await step
        before = _count_cancellations()
        try:
            return await TimeBudget(STORE_TIMEOUT).run(step)
        except TimeoutError as error:
            raise StoreError(f"the store of approvals did not answer within {STORE_TIMEOUT:g} seconds.") from error
        except asyncio.CancelledError as error:
            if must_propagate(error, cancelling=before):
                raise
            raise StoreError("the store of approvals cancelled its own step.") from error

    async def wait(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run a coroutine that counts as a step and can be interrupted, such as a question to a model; return None if
        it was."""
        self.progress.steps += 1
        task = asyncio.ensure_future(work)
        self._model_tasks.add(task)
        before = _count_cancellations()  # Not always 0: before Python 3.13, a TaskGroup that failed has left its own.
        try:
            return await task
        except asyncio.CancelledError:
            if self.progress.is_interrupted and task.cancelled() and _count_cancellations() <= before:
                self.stop_reason = "interrupted"
                return None
            task.cancel()
            raise
        finally:
            self._model_tasks.discard(task)

    async def reply_with(self, text: str) -> None:
        """Add a message of the agent to the history, and to the result of the turn."""
        self._text = encodable(text)
        await self.update(self.conversation.with_messages(AssistantMessage(text=self._text)))
        await self.emit(TextDelta(text=self._text))

    async def run_calls(self, calls: Iterable[ToolCall]) -> None:
        """Run calls that the strategy decided on, after they are saved in the history.

        A call that needs an approval leaves the history for `conversation.pending`, and the turn continues.
        """
        if calls := tuple(calls):
            self._new_ids.update(call.id for call in calls)
            await self.update(self.conversation.with_calls(calls))
        await self.run_open_calls(keep_pending=True)

    async def end_with_pending(self) -> None:
        """If calls are pending, end the turn with `approval_required` and their open approvals."""
        tokens = [pending_call.approval.token for pending_call in self.conversation.pending]
        if tokens:
            self._approvals = await self._find_open(tokens)
            self.stop_reason = self.stop_reason or "approval_required"

    async def _find_open(self, tokens: Iterable[str]) -> list[Approval]:
        """The approvals among these that nobody has decided yet."""
        found: list[Approval] = []
        for token in tokens:
            approval = await self.wait_for_store(self.executor.approvals.get(token))
            if approval is not None and approval.is_open(time.time()):
                found.append(approval)
        return found

    def report_model_call(
        self, started: float, *, provider: str | None = None, usage: Usage | None = None, error: str | None = None
    ) -> None:
        """Count a call of a model that began at `started`, by `time.monotonic()`, and emit its event."""
        response = None if provider is not None else self.response
        usage = response.usage if response is not None else usage
        self.model_calls += 1
        if usage is not None:
            self._usage += usage
            self.progress.tokens = self._usage.input + self._usage.output
            self.conversation = structs.replace(self.conversation, usage=self.conversation.usage + usage)
        used, context = usage or Usage(), self.context
        self.executor.emit(
            ModelCalled(
                at=time.time(),
                session_id=context.session_id,
                tenant_id=context.tenant_id,
                customer_id=context.customer_id,
                provider=provider or self.provider.name,
                model=response.model if response is not None else "",
                turn=context.turn,
                duration_ms=(time.monotonic() - started) * 1000,
                input_tokens=used.input,
                output_tokens=used.output,
                cached_tokens=used.cached,
                cost=used.cost,
                finish_reason=response.finish_reason if response is not None else "",
                error=error,
            )
        )

    async def run_open_calls(self, *, keep_pending: bool = False) -> None:
        """Run the calls that have no result yet, within the budget.

        A call that needs an approval stays open, and the turn ends with `approval_required`; with `keep_pending` it
        leaves the history for `conversation.pending`. A call that still runs elsewhere, or whose outcome nobody knows,
        stays open, and the turn ends with `in_progress` or `outcome_unknown`.
        """
        progress, calls = self.progress, self.conversation.open_calls
        if not calls:
            return
        results: list[ToolResult] = []
        refused: list[ToolResult] = []
        if any(call.id not in self._new_ids for call in calls):
            # An earlier turn's budget had room for them. After an interruption they stay open: they may have run.
            running = None if progress.is_interrupted else run_again(self.executor, calls, self.context)
        else:
            runnable, refused = progress.admit(calls)
            running = self.executor.run_all(runnable, self.context) if runnable else None
        if running is not None:
            self._running_response_ids = frozenset(call.response_id for call in calls if call.response_id)
            results = await self._report_events(running)
            self._running_response_ids = frozenset()
        results += refused
        unsettled = self._add_results(results)
        tokens = {result.approval.token: result.call_id for result in results if result.approval is not None}
        approvals = await self._find_open(tokens) if tokens else []
        if keep_pending:
            by_id = {call.id: call for call in calls}
            awaiting = [PendingCall(call=by_id[tokens[approval.token]], approval=approval) for approval in approvals]
            # An approval that was decided in this very moment is no longer open: its call has the result that it got.
            waiting = {pending_call.call.id for pending_call in awaiting}
        else:
            # Equal calls share one question: each of them waits for it.
            awaiting, waiting = [], {result.call_id for result in results if result.approval is not None}
        final = [result for result in results if result.call_id not in waiting and result.call_id not in unsettled]
        await self._record_results(final, awaiting)
        if unsettled:
            progress.stop_if_unsettled(results)
        if tokens and not keep_pending:
            self._approvals = approvals
            self.stop_reason = "approval_required"
        for approval in approvals:
            await self.emit(approval)

    async def _report_events(self, running: Coroutine[Any, Any, list[ToolResult]]) -> list[ToolResult]:
        """Wait for calls, and pass their events to the reader of a streamed turn."""
        if self._events is None:
            return await running
        with self.executor.subscribe(self.context.session_id, _build_listener(self._events)):
            results = await running
        await self._wait_for_reader()
        return results

    def _add_results(self, results: Sequence[ToolResult]) -> frozenset[str]:
        """Add results to the turn; returns the ids of the calls that have no final one yet."""
        self.results = (*self.results, *(result for result in results if result.approval is None))
        return self.progress.add(results)

    async def _record_results(self, results: Sequence[ToolResult], pending: Sequence[PendingCall] = ()) -> None:
        conversation = self.conversation.with_pending(list(map(to_history_result, results)), pending)
        await self.update(self._apply_controls(conversation, results))

    def _apply_controls(self, conversation: Conversation, results: Iterable[ToolResult]) -> Conversation:
        """Do what results want: hand the conversation to a person, and remember those that are for one response."""
        controls = {result.call_id: result.control for result in results if result.control is not None}
        transient = tuple(call_id for call_id, control in controls.items() if control.lifespan == "response")
        if transient:
            conversation = structs.replace(conversation, transient=(*conversation.transient, *transient))
        if any(control.mode == "manual" for control in controls.values()):
            self.stop_reason = "handed_off"
            conversation = structs.replace(conversation, handed_off=True)
        return conversation

    async def close_open_calls(self) -> None:
        """Give every open call a result, so that a new message can follow."""
        calls = self.conversation.open_calls
        results, provisional = await build_results(calls, self.executor, self.context, self.progress)
        if not self.conversation.handed_off:
            self.stop_reason = None
        self._approvals = []
        self.conversation = self.conversation.with_unsettled(provisional)
        await self._record_results(results)

    async def settle_provisional(self) -> None:
        """Look up the calls that have a provisional result, and put what is known now in its place."""
        if not self.conversation.unsettled:
            return
        looking_up = look_up_again(self.conversation.unsettled, self.executor, self.context)
        results = await self._report_events(looking_up)
        unsettled = self._add_results(results)
        final = [result for result in results if result.call_id not in unsettled]
        if final:
            conversation = self.conversation.with_settled(map(to_history_result, final))
            await self.update(self._apply_controls(conversation, final))

    async def drop_transient_results(self) -> None:
        """Replace the outputs of results with `lifespan="response"`: they were meant for one response only."""
        conversation = self.conversation
        if not conversation.transient:
            return
        known = [result for result in conversation.results if result.call_id in conversation.transient]
        dropped = [structs.replace(result, output=DROPPED_OUTPUT) for result in known if result.error is None]
        ids = {result.call_id for result in known}
        if self.provenance is not None:
            for call_id in ids:
                self.provenance.drop_result(call_id)
        transient = tuple(call_id for call_id in conversation.transient if call_id not in ids)
        await self.update(structs.replace(conversation.with_settled(dropped), transient=transient))

    def interrupt(self) -> None:
        """Stop the model's response, and cancel running calls as their tools' `on_interrupt` says."""
        self.progress.is_interrupted = True
        for task in self._model_tasks:
            task.cancel()
        for response_id in self._running_response_ids:
            self.executor.cancel_tools_for_response(response_id, session_id=self.context.session_id)

    def build_result(self) -> TurnResult:
        """Build the result of the turn."""
        is_waiting = self.stop_reason == "approval_required"
        return TurnResult(
            text=self._text,
            stop_reason=self.stop_reason or "completed",
            finish_reason=self.response.finish_reason if self.response is not None else "stop",
            results=tuple(
                result for result in self.progress.results if not (is_waiting and result.approval is not None)
            ),
            approvals=tuple(self._approvals),
            usage=self._usage,
        )


ResultT_co = TypeVar("ResultT_co", bound=TurnResult, covariant=True, default=TurnResult)


class TurnStrategy(Protocol[ResultT_co]):
    """Decides what happens in a turn: when the model is asked, and which calls run."""

    async def run(self, state: TurnState) -> ResultT_co:
        """Run one turn with the steps of `state`, until it is the person's turn again; return its result.

        If `state.is_over`, there is nothing to run. A strategy with `keeps_pending = True` decides itself what becomes
        of `conversation.pending`; for any other strategy they are turned into open calls before it runs.
        """
        ...


class PlainStrategy:
    """Offers the model every tool, and runs the calls it makes until it makes no more."""

    async def run(self, state: TurnState) -> TurnResult:
        """Run the open calls and ask the model, in turns, until it replies without a call or the turn is stopped."""
        while not state.is_over:
            await state.run_open_calls()
            if state.check_budget() is not None:
                break
            response = await state.ask_model()
            if response is None or not response.calls:
                break
        return state.build_result()


def _build_listener(queue: asyncio.Queue[ChatEvent | None]) -> Callable[[Event], None]:
    """Build a listener that puts the events of calls into a queue, from any thread."""
    loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()

    def listen(event: Event) -> None:
        if not isinstance(event, CallStarted | Progress | CallFinished | CallIgnored):
            return
        if threading.get_ident() == loop_thread:
            queue.put_nowait(event)
        else:
            loop.call_soon_threadsafe(queue.put_nowait, event)

    return listen


def _count_cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _is_waiting_for_person(conversation: Conversation) -> bool:
    return not conversation.messages or isinstance(conversation.messages[-1], AssistantMessage)


async def build_results(
    calls: Sequence[ToolCall], executor: Executor, context: ToolContext[Any], progress: LoopProgress
) -> tuple[list[ToolResult], list[ToolCall]]:
    """Give every open call a result, so that a new message can follow; also the calls whose result is provisional.

    One that awaits an approval has not been made: `approval_required`. One that has no final result gets a provisional
    one, and is looked up again in the next turn.
    """
    known = {
        result.call_id: result
        for result in progress.results
        if result.approval is not None or progress.is_unsettled(result)
    }
    results = [known.get(call.id) or await _look_up(call, executor, context) for call in calls]
    return results, [call for call, result in zip(calls, results, strict=True) if progress.is_unsettled(result)]


async def look_up_again(calls: Sequence[ToolCall], executor: Executor, context: ToolContext[Any]) -> list[ToolResult]:
    """What is known now about calls that have a provisional result."""
    return list(await asyncio.gather(*(_look_up(call, executor, context) for call in calls)))


async def _look_up(call: ToolCall, executor: Executor, context: ToolContext[Any]) -> ToolResult:
    """What is known about a call; one that the ledger knows nothing about may have been made, too."""
    return await executor.look_up(call, context) or structs.replace(
        failure_results.outcome_unknown(call.name), call_id=call.id, provider_id=call.provider_id, tool_name=call.name
    )


def add_message(provenance: Provenance, message: UserMessage) -> None:
    """Add what the customer typed as their words, and what they pasted as nobody's."""
    provenance.add_customer(message.own_words)
    for text in message.quoted:
        provenance.add_quoted(text)


def rebuild_provenance(provenance: Provenance, conversation: Conversation, executor: Executor) -> None:
    """Add everything that a conversation has to its provenance, as it was when the conversation was live.

    What the application knows is not part of a conversation, and stays. A result that was meant for one response
    counts no more.
    """
    provenance.rebuild()
    calls: dict[str, ToolCall] = {}
    transient = frozenset(conversation.transient)

    def add(result: ToolResult) -> None:
        tool = executor.find_source_tool(result.tool_name)
        call = calls.get(result.call_id) or ToolCall(id=result.call_id, name=result.tool_name)
        provenance.add_history_result(call, result, tool)
        if result.call_id in transient:
            provenance.drop_result(result.call_id)

    for message in conversation.messages:
        match message:
            case UserMessage():
                add_message(provenance, message)
            case AssistantMessage():
                calls.update((call.id, call) for call in message.calls)
            case ToolMessage():
                for result in message.results:
                    add(result)
    for result in conversation.partial_results:
        add(result)
