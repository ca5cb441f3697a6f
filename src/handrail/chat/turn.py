"""One turn of a conversation: its state, its result, and the plain strategy, where the model decides what to call."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast

from msgspec import Struct, structs

from handrail.chat.conversation import Conversation, PendingCall, is_storable
from handrail.core.context import ToolContext
from handrail.core.events import CallFinished, CallIgnored, CallStarted, Event, ModelCalled, Progress
from handrail.core.text import encodable
from handrail.core.tool import Tool
from handrail.core.values import Approval, ToolCall, ToolResult
from handrail.errors import BadResponseError, ProviderError
from handrail.execute.executor import Executor
from handrail.execute.loop import Budget, not_run
from handrail.formats.parse import make_unparsable
from handrail.providers.messages import AssistantMessage, ToolMessage, to_history_result
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

StopReason = Literal[
    "completed",
    "approval_required",
    "in_progress",
    "outcome_unknown",
    "interrupted",
    "handed_off",
    "max_steps",
    "max_calls",
    "timeout",
    "token_budget",
]
"""Why a turn ended: the model's reply is complete; a call needs an approval, still runs in another process, or has an
outcome that nobody knows; the turn was interrupted; a person took over; or a limit of the budget was reached."""


class TurnResult(Struct, frozen=True, kw_only=True):
    """How a turn ended."""

    text: str = ""
    """The last text that the model wrote in this turn."""
    stop_reason: StopReason = "completed"
    finish_reason: FinishReason = "stop"
    """Why the model stopped writing. Show the person when it is `length` or `refusal`: the text is incomplete."""
    results: tuple[ToolResult, ...] = ()
    """The results of this turn's calls, in the order in which they came in. Calls that await an approval have none."""
    approvals: tuple[Approval, ...] = ()
    """The open approvals: decide with `session.approve(token)` or `session.deny(token)`, then `session.resume()`."""
    usage: Usage = Usage()
    """Tokens and cost of this turn."""


ChatEvent: TypeAlias = TextDelta | CallStarted | Progress | CallFinished | CallIgnored | Approval | TurnResult
"""What a streamed turn yields. The last one, and only the last, is the `TurnResult`."""


class TurnStrategy(Protocol):
    """Decides what happens in a turn: when the model is asked, and which calls run."""

    def run(self, state: "TurnState") -> AsyncGenerator[ChatEvent]:
        """Run one turn on `state`, until it is the person's turn again, and yield what happens.

        A strategy with `keeps_pending = True` decides itself what becomes of `conversation.pending`; for any other
        strategy they are turned into open calls before it runs.
        """
        ...


class PlainStrategy:
    """Offers the model every tool, and runs the calls it makes until it makes no more."""

    async def run(self, state: "TurnState") -> AsyncGenerator[ChatEvent]:
        """Run the open calls and ask the model, in turns, until it replies without a call or the turn is stopped."""
        while True:
            if state.conversation.open_calls:
                async with aclosing(state.run_open_calls()) as events:
                    async for event in events:
                        yield event
            if state.check_budget() is not None:
                return
            async with aclosing(state.ask_model()) as deltas:
                async for delta in deltas:
                    yield delta
            if state.response is None or not state.response.calls:
                return


DROPPED_OUTPUT: Final = "(This result was removed after the reply that used it.)"


class _EndOfQueue:
    """Marks the end of a queue."""


class TurnState:
    """The state of a running turn, with the steps that a strategy is made of."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        provider: Provider,
        executor: Executor,
        context: ToolContext[Any],
        instructions: str,
        budget: Budget,
        save: Callable[[Conversation], Awaitable[Conversation]],
    ) -> None:
        self.conversation = conversation
        self.provider = provider
        self.executor = executor
        self.context = context
        self.instructions = instructions
        self.budget = budget
        self.stop_reason: StopReason | None = None
        """Set once the turn must not begin anything new."""
        self.response: ModelResponse | None = None
        """The model's last response in this turn."""
        self.result: TurnResult | None = None
        """Set once the turn is over."""
        self.model_calls = 0
        """How often `ask_model` asked."""
        self.make_result: Callable[[TurnResult], TurnResult] = lambda result: result
        """Turns the result into one of the strategy's own class."""
        self._text = ""
        self._results: list[ToolResult] = []
        self._approvals: list[Approval] = []
        self._transient_ids: set[str] = set()
        self._usage = Usage()
        self._steps = 0
        self._deadline = time.monotonic() + budget.timeout
        self._save = save
        self._interrupted = False
        self._model_tasks: set[asyncio.Future[Any]] = set()
        self._running_response_id = ""

    async def update(self, conversation: Conversation) -> None:
        """Set the conversation, and save it."""
        self.conversation = conversation
        self.conversation = await self._save(conversation)

    def check_budget(self) -> StopReason | None:
        """Set `stop_reason` if the turn was interrupted or has reached a limit; return it, or None to continue."""
        if self.stop_reason is not None:
            return self.stop_reason
        tokens = self._usage.input + self._usage.output
        if self._interrupted:
            self.stop_reason = "interrupted"
        elif self._steps >= self.budget.max_steps:
            self.stop_reason = "max_steps"
        elif time.monotonic() >= self._deadline:
            self.stop_reason = "timeout"
        elif self.budget.max_tokens is not None and tokens >= self.budget.max_tokens:
            self.stop_reason = "token_budget"
        return self.stop_reason

    async def ask_model(
        self,
        *,
        instructions: str | None = None,
        tools: Sequence[Tool[..., Any]] | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> AsyncGenerator[TextDelta]:
        """Ask the model and yield its text as it comes; then the response is in the history and in `response`."""
        self._steps += 1
        self.response, self._text = None, ""
        request = ModelRequest(
            messages=self.conversation.messages,
            instructions=self.instructions if instructions is None else instructions,
            tools=offered_tools(self.executor.registry, self.conversation.results) if tools is None else tools,
            tool_choice=tool_choice or ToolChoice(),
        )
        queue: asyncio.Queue[Any] = asyncio.Queue()
        reading = self._read_stream(request, queue)
        start, error = time.monotonic(), None
        try:
            async with aclosing(self._run_task(reading, queue, interruptible=True)) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        delta = TextDelta(text=encodable(event.text))
                        self._text += delta.text
                        yield delta
                    else:
                        self.response = self._normalize_response(cast(ModelResponse, event))
        except ProviderError as provider_error:
            error = provider_error.code
            raise
        finally:
            self._emit_model_called(start, error)
        if self.response is not None:
            self._text = self.response.text
            self._usage += self.response.usage
            usage = self.conversation.usage + self.response.usage
            message = self.response.message()
        elif self._interrupted:
            self.stop_reason = "interrupted"
            usage, message = self.conversation.usage, AssistantMessage(text=self._text)
        else:
            raise BadResponseError(f"{self.provider.name} ended its stream without a response.")
        after = structs.replace(self.conversation, usage=usage)
        is_empty = not (message.text or message.calls or message.native)
        await self.update(after if is_empty else after.with_messages(message))

    async def wait(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run a coroutine that counts as a step and can be interrupted, such as a question to a model; return None if
        it was."""
        self._steps += 1
        task = asyncio.ensure_future(work)
        self._model_tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self._interrupted and task.cancelled() and not _is_cancelling():
                self.stop_reason = "interrupted"
                return None
            task.cancel()
            raise
        finally:
            self._model_tasks.discard(task)

    def add_usage(self, usage: Usage) -> None:
        """Count the tokens of a question that was asked through `wait`."""
        self._usage += usage
        self.conversation = structs.replace(self.conversation, usage=self.conversation.usage + usage)

    async def reply_with(self, text: str) -> None:
        """Add a message of the agent to the history, and to the result of the turn."""
        self._text = encodable(text)
        await self.update(self.conversation.with_messages(AssistantMessage(text=self._text)))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The results of this turn's calls so far; those that await an approval have none."""
        return tuple(one for one in self._results if not _is_awaiting_approval(one))

    async def run_calls(self, calls: Iterable[ToolCall]) -> AsyncGenerator[ChatEvent]:
        """Run calls that the strategy decided on, after they are saved in the history; yield their events.

        A call that needs an approval leaves the history for `conversation.pending`, and the turn continues.
        """
        if calls := tuple(calls):
            await self.update(self.conversation.with_calls(calls))
        async with aclosing(self.run_open_calls(keep_pending=True)) as events:
            async for event in events:
                yield event

    async def end_with_pending(self) -> None:
        """If calls are pending, end the turn with `approval_required` and their open approvals."""
        tokens = {one.approval.token for one in self.conversation.pending}
        if tokens:
            every = await self.executor.approvals.pending(session_id=self.context.session_id)
            self._approvals = [one for one in every if one.token in tokens]
            self.stop_reason = self.stop_reason or "approval_required"

    def _emit_model_called(self, start: float, error: str | None) -> None:
        response = self.response
        usage = response.usage if response is not None else Usage()
        self.model_calls += 1
        self.executor.emit(
            ModelCalled(
                at=time.time(),
                session_id=self.context.session_id,
                tenant_id=self.context.tenant_id,
                customer_id=self.context.customer_id,
                provider=self.provider.name,
                model=response.model if response is not None else "",
                turn=self.context.turn,
                duration_ms=(time.monotonic() - start) * 1000,
                input_tokens=usage.input,
                output_tokens=usage.output,
                cached_tokens=usage.cached,
                cost=usage.cost,
                finish_reason=response.finish_reason if response is not None else "",
                error=error,
            )
        )

    async def _read_stream(self, request: ModelRequest, queue: asyncio.Queue[Any]) -> None:
        async for event in self.provider.stream(request):
            queue.put_nowait(event)

    def _normalize_response(self, response: ModelResponse) -> ModelResponse:
        """Give the response an id, and each call one that no other call of this conversation has.

        Some servers number their calls from 0 in every response. An id that is used twice would be taken for the same
        call, and a second payment that the customer wants would be answered with the result of the first.
        """
        used = self.conversation.call_ids
        turn, step = self.conversation.turn, self._steps
        response_id = response.id or f"response-{turn}-{step}"
        calls: list[ToolCall] = []
        for call in response.calls:
            call_id = encodable(call.id)
            for number in itertools.count(1):
                if call_id and call_id not in used:
                    break
                call_id = f"{encodable(call.id) or 'call'}-{turn}-{step}-{number}"
            used.add(call_id)
            arguments, name = call.arguments_json, encodable(call.name)
            if (mended := encodable(arguments)) != arguments:  # Half a surrogate pair: repaired arguments must not run.
                arguments = make_unparsable(mended)
            changes = {"id": call_id, "name": name, "arguments_json": arguments}
            calls.append(structs.replace(call, response_id=call.response_id or response_id, **changes))
        ids_kept = all(one.id == other.id for one, other in zip(calls, response.calls, strict=True))
        native = response.native if ids_kept and is_storable(response.native) else None
        text = encodable(response.text)
        return structs.replace(response, calls=tuple(calls), id=response_id, native=native, text=text)

    async def run_open_calls(self, *, keep_pending: bool = False) -> AsyncGenerator[ChatEvent]:
        """Run the calls that have no result yet, within the budget, and yield their events.

        A call that needs an approval stays open, and the turn ends with `approval_required`; with `keep_pending` it
        leaves the history for `conversation.pending`.
        """
        calls = self.conversation.open_calls
        is_late = time.monotonic() >= self._deadline or self._interrupted
        limit = 0 if is_late else max(self.budget.max_calls - len(self._results), 0)
        results = [not_run(call) for call in calls[limit:]]
        if runnable := calls[:limit]:
            self._running_response_id = runnable[0].response_id or ""
            queue: asyncio.Queue[Any] = asyncio.Queue()
            with self.executor.subscribe(self.context.session_id, _build_listener(queue)):
                running = self.executor.run_all(runnable, self.context)
                async with aclosing(self._run_task(running, queue)) as events:
                    async for event in events:
                        if isinstance(event, list):
                            results = [*cast(list[ToolResult], event), *results]
                        elif isinstance(event, CallStarted | Progress | CallFinished | CallIgnored):
                            yield event
            self._running_response_id = ""
        self._results += results
        self._transient_ids |= {one.call_id for one in results if one.control and one.control.lifespan == "response"}
        tokens = {one.approval.token: one.call_id for one in results if one.approval is not None}
        final = [one for one in results if not _is_awaiting_approval(one)]
        every = await self.executor.approvals.pending(session_id=self.context.session_id) if tokens else []
        approvals = [one for one in every if one.token in tokens]
        if keep_pending:
            by_id = {call.id: call for call in calls}
            awaiting = [PendingCall(call=by_id[tokens[one.token]], approval=one) for one in approvals]
            left = {one.call.id for one in awaiting}
            # An approval that was decided in this very moment is no longer open: its call has the result that it got.
            final = [one for one in results if one.call_id not in left]
            await self._record_results(final, awaiting)
        else:
            await self._record_results(final)
        if tokens:
            if not keep_pending:
                self._approvals = approvals
                self.stop_reason = "approval_required"
            for approval in approvals:
                yield approval
        elif limit < len(calls) and not is_late:
            self.stop_reason = "max_calls"

    async def _record_results(self, results: Sequence[ToolResult], pending: Sequence[PendingCall] = ()) -> None:
        after = self.conversation.with_pending((to_history_result(one) for one in results), pending)
        if any(one.control is not None and one.control.mode == "manual" for one in results):
            after = structs.replace(after, handed_off=True)
            self.stop_reason = "handed_off"
        await self.update(after)

    async def close_open_calls(self) -> None:
        """Answer the calls that await an approval with `approval_required`, so that a new message can follow."""
        awaiting = [one for one in self._results if _is_awaiting_approval(one)]
        self.stop_reason, self._approvals = None, []
        await self._record_results(awaiting)

    async def drop_transient_results(self) -> None:
        """Replace the outputs of results with `lifespan="response"`: they were meant for one response only."""
        if self._transient_ids and not self.conversation.last_calls:
            messages = (
                ToolMessage(results=tuple(map(self._drop_output, one.results))) if isinstance(one, ToolMessage) else one
                for one in self.conversation.messages
            )
            await self.update(structs.replace(self.conversation, messages=tuple(messages)))

    def _drop_output(self, result: ToolResult) -> ToolResult:
        if result.call_id not in self._transient_ids or result.error is not None:
            return result
        return structs.replace(result, output=DROPPED_OUTPUT)

    def interrupt(self) -> None:
        """Stop the model's response, and cancel running calls as their tools' `on_interrupt` says."""
        self._interrupted = True
        for task in self._model_tasks:
            task.cancel()
        if self._running_response_id:
            self.executor.cancel_tools_for_response(self._running_response_id, session_id=self.context.session_id)

    async def _run_task(
        self, work: Coroutine[Any, Any, Any], queue: asyncio.Queue[Any], *, interruptible: bool = False
    ) -> AsyncGenerator[Any]:
        """Run a coroutine as a task; yield what it puts into the queue, then its result. Closing this cancels it."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: queue.put_nowait(_EndOfQueue))
        if interruptible:
            self._model_tasks.add(task)
        try:
            while (item := await queue.get()) is not _EndOfQueue:
                yield item
            while not queue.empty():  # Events from a worker thread can arrive after the end.
                yield queue.get_nowait()
            if not (self._interrupted and task.cancelled()) and (result := await task) is not None:
                yield result
        finally:
            self._model_tasks.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # Retrieved, or asyncio would warn: the reader has gone.

    def build_result(self) -> TurnResult:
        """Build the result of the turn."""
        is_waiting = self.stop_reason == "approval_required"
        result = TurnResult(
            text=self._text,
            stop_reason=self.stop_reason or "completed",
            finish_reason=self.response.finish_reason if self.response is not None else "stop",
            results=tuple(one for one in self._results if not (is_waiting and _is_awaiting_approval(one))),
            approvals=tuple(self._approvals),
            usage=self._usage,
        )
        return self.make_result(result)


def _is_cancelling() -> bool:
    """Whether the task that runs this turn was cancelled, rather than what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_awaiting_approval(result: ToolResult) -> bool:
    return result.approval is not None


def _build_listener(queue: asyncio.Queue[Any]) -> Callable[[Event], None]:
    """Build a listener that puts events into a queue, from any thread."""
    loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()

    def listen(event: Event) -> None:
        if threading.get_ident() == loop_thread:
            queue.put_nowait(event)
        else:
            loop.call_soon_threadsafe(queue.put_nowait, event)

    return listen
