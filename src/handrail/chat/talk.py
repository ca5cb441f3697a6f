"""One turn in the making: what a form of turn, plain or guided, works with."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

from msgspec import Struct, structs

from handrail.authorize.approvals import Approval
from handrail.chat.conversation import Conversation, is_storable
from handrail.core.context import ToolContext
from handrail.core.events import CallFinished, CallIgnored, CallStarted, Event, Progress
from handrail.core.text import encodable
from handrail.core.tool import Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import BadAnswerError
from handrail.execute.executor import Executor
from handrail.execute.loop import Budget, not_run
from handrail.formats.incoming import unfinished
from handrail.providers.messages import AssistantMessage, ToolMessage, shown
from handrail.providers.provider import (
    FinishReason,
    ModelRequest,
    ModelResponse,
    Provider,
    TextDelta,
    ToolChoice,
    Usage,
)

StopReason = Literal[
    "completed",
    "approval_required",
    "interrupted",
    "handed_off",
    "max_steps",
    "max_calls",
    "timeout",
    "token_budget",
]
"""How a turn ended: the model had no more to say; somebody has to agree first; somebody interrupted; a person took
over; or a budget ran out. In each case every call in the history has its answer, but for those that wait for an
approval."""


class TurnResult(Struct, frozen=True, kw_only=True):
    """How a turn ended."""

    text: str = ""
    """The model's last words in this turn."""
    stop_reason: StopReason = "completed"
    finish_reason: FinishReason = "stop"
    """Why the model stopped; `length` and `refusal` are worth telling the person."""
    results: tuple[ToolResult, ...] = ()
    """Of every call of this turn, in the order in which they were answered."""
    approvals: tuple[Approval, ...] = ()
    """The questions that are open: `session.approve(token)` or `session.deny(token)`, then `session.resume()`."""
    usage: Usage = Usage()


ChatEvent: TypeAlias = TextDelta | CallStarted | Progress | CallFinished | CallIgnored | Approval | TurnResult
"""What a streamed turn yields; an `TurnResult` comes last, and once."""


class TurnStrategy(Protocol):
    """A way to play one turn."""

    def run(self, state: "TurnState") -> AsyncGenerator[ChatEvent]:
        """Bring the conversation to where the next word is the person's."""
        ...


_FORGOTTEN: Final = "(This result was only for the words that followed it.)"


class _Over:
    """Nothing more comes through a queue."""


class TurnState:
    """One turn in the making: it asks the model, has its calls answered, keeps the history whole, and counts."""

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
        """Set when nothing more is to be begun."""
        self.reply: ModelResponse | None = None
        """The last one of this turn."""
        self._said = ""
        self._results: list[ToolResult] = []
        self._approvals: list[Approval] = []
        self._brief: set[str] = set()
        self._usage = Usage()
        self._steps = 0
        self._ends = time.monotonic() + budget.timeout
        self._save = save
        self._interrupted = False
        self._asking: asyncio.Task[Any] | None = None
        self._response_id = ""

    async def change(self, conversation: Conversation) -> None:
        """Go on from another state of the conversation, which is saved first."""
        self.conversation = conversation
        self.conversation = await self._save(conversation)

    def goes_on(self) -> bool:
        """Whether something new may be begun."""
        if self.stop_reason is not None:
            return False
        spent = self._usage.input + self._usage.output
        if self._interrupted:
            self.stop_reason = "interrupted"
        elif self._steps >= self.budget.max_steps:
            self.stop_reason = "max_steps"
        elif time.monotonic() >= self._ends:
            self.stop_reason = "timeout"
        elif self.budget.max_tokens is not None and spent >= self.budget.max_tokens:
            self.stop_reason = "token_budget"
        return self.stop_reason is None

    async def ask(
        self,
        *,
        instructions: str | None = None,
        tools: Sequence[Tool[..., Any]] | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> AsyncGenerator[TextDelta]:
        """Ask the model: its words as they come. What it said is in the history, and in `reply`, at the end."""
        self._steps += 1
        self.reply, self._said = None, ""
        request = ModelRequest(
            messages=self.conversation.messages,
            instructions=self.instructions if instructions is None else instructions,
            tools=tuple(self.executor.registry) if tools is None else tools,
            tool_choice=tool_choice or ToolChoice(),
        )
        queue: asyncio.Queue[Any] = asyncio.Queue()
        pump = self._pump(request, queue)
        async with aclosing(self._feed(pump, queue, interruptible=True)) as pieces:
            async for piece in pieces:
                if isinstance(piece, TextDelta):
                    words = TextDelta(text=encodable(piece.text))
                    self._said += words.text
                    yield words
                else:
                    self.reply = self._fresh(cast(ModelResponse, piece))
        if self.reply is not None:
            self._said = self.reply.text
            self._usage += self.reply.usage
            usage = self.conversation.usage + self.reply.usage
            said = self.reply.message()
        elif self._interrupted:
            self.stop_reason = "interrupted"
            usage, said = self.conversation.usage, AssistantMessage(text=self._said)
        else:
            raise BadAnswerError(f"{self.provider.name} ended its stream without a reply.")
        after = structs.replace(self.conversation, usage=usage)
        await self.change(after.with_messages(said) if said.text or said.calls or said.native else after)

    async def _pump(self, request: ModelRequest, queue: asyncio.Queue[Any]) -> None:
        async for piece in self.provider.stream(request):
            queue.put_nowait(piece)

    def _fresh(self, reply: ModelResponse) -> ModelResponse:
        """The reply with ids that no other call of this conversation has, and with an id of its own.

        Some servers count their calls anew in every response: an id that comes back would be taken for the same call,
        and a second payment that is meant would be answered with the first one's result.
        """
        used = self.conversation.call_ids()
        turn, step = self.conversation.turn, self._steps
        response_id = reply.id or f"response-{turn}-{step}"
        calls: list[ToolCall] = []
        for call in reply.calls:
            call_id = encodable(call.id)
            for number in itertools.count(1):
                if call_id and call_id not in used:
                    break
                call_id = f"{encodable(call.id) or 'call'}-{turn}-{step}-{number}"
            used.add(call_id)
            arguments, name = call.arguments_json, encodable(call.name)
            if (whole := encodable(arguments)) != arguments:  # Half a character: nothing that is mended here may run.
                arguments = unfinished(whole)
            given = {"id": call_id, "name": name, "arguments_json": arguments}
            calls.append(structs.replace(call, response_id=call.response_id or response_id, **given))
        same = all(one.id == other.id for one, other in zip(calls, reply.calls, strict=True))
        native = reply.native if same and is_storable(reply.native) else None
        return structs.replace(reply, calls=tuple(calls), id=response_id, native=native, text=encodable(reply.text))

    async def answer(self) -> AsyncGenerator[ChatEvent]:
        """Have the calls answered that have no answer yet; what happens to them, as it happens."""
        calls = self.conversation.unanswered
        late = time.monotonic() >= self._ends or self._interrupted
        room = 0 if late else max(self.budget.max_calls - len(self._results), 0)
        results = [not_run(call) for call in calls[room:]]
        if run := calls[:room]:
            self._response_id = run[0].response_id or ""
            queue: asyncio.Queue[Any] = asyncio.Queue()
            with self.executor.subscribe(self.context.session_id, _into(queue)):
                async with aclosing(self._feed(self.executor.run_all(run, self.context), queue)) as events:
                    async for event in events:
                        if isinstance(event, list):
                            results = [*cast(list[ToolResult], event), *results]
                        elif isinstance(event, CallStarted | Progress | CallFinished | CallIgnored):
                            yield event
            self._response_id = ""
        self._results += results
        self._brief |= {one.call_id for one in results if one.control and one.control.lifespan == "response"}
        waiting = {one.metadata["approval"] for one in results if _waits(one)}
        await self._take(results, waiting)
        if waiting:
            every = await self.executor.approvals.pending(session_id=self.context.session_id)
            self._approvals = [one for one in every if one.token in waiting]
            self.stop_reason = "approval_required"
            for approval in self._approvals:
                yield approval
        elif room < len(calls) and not late:
            self.stop_reason = "max_calls"

    async def _take(self, results: Sequence[ToolResult], waiting: set[str]) -> None:
        """Put what is answered into the history; what waits for somebody stays open."""
        after = self.conversation.with_answers(shown(one) for one in results if not (waiting and _waits(one)))
        if any(one.control is not None and one.control.mode == "manual" for one in results):
            after = structs.replace(after, handed_off=True)
            self.stop_reason = "handed_off"
        await self.change(after)

    async def close_questions(self) -> None:
        """Answer the calls that still wait for somebody as what they are, so that the conversation can go on."""
        open_ones = [one for one in self._results if _waits(one)]
        self.stop_reason, self._approvals = None, []
        await self._take(open_ones, set())

    async def forget_brief(self) -> None:
        """Take the results out of the history that were for this turn's words only; the calls stay answered."""
        if self._brief and not self.conversation.asked:
            messages = (
                ToolMessage(results=tuple(map(self._forgotten, one.results))) if isinstance(one, ToolMessage) else one
                for one in self.conversation.messages
            )
            await self.change(structs.replace(self.conversation, messages=tuple(messages)))

    def _forgotten(self, result: ToolResult) -> ToolResult:
        if result.call_id not in self._brief or result.error is not None:
            return result
        return structs.replace(result, output=_FORGOTTEN)

    def interrupt(self) -> None:
        """Stop talking, and stop the calls that can be stopped, each as its tool wants it."""
        self._interrupted = True
        if self._asking is not None:
            self._asking.cancel()
        if self._response_id:
            self.executor.cancel_tools_for_response(self._response_id, session_id=self.context.session_id)

    async def _feed(
        self, work: Coroutine[Any, Any, Any], queue: asyncio.Queue[Any], *, interruptible: bool = False
    ) -> AsyncGenerator[Any]:
        """What a task puts into its queue, then what it returns. The task ends with whoever reads."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: queue.put_nowait(_Over))
        self._asking = task if interruptible else None
        try:
            while (item := await queue.get()) is not _Over:
                yield item
            while not queue.empty():  # What a thread told at the last moment comes after the end.
                yield queue.get_nowait()
            if not (self._interrupted and task.cancelled()) and (result := await task) is not None:
                yield result
        finally:
            self._asking = None
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # Whoever stopped reading does not want it any more; asyncio would warn.

    def finished(self) -> TurnResult:
        """How the turn ended."""
        return TurnResult(
            text=self._said,
            stop_reason=self.stop_reason or "completed",
            finish_reason=self.reply.finish_reason if self.reply is not None else "stop",
            results=tuple(
                one for one in self._results if not (_waits(one) and self.stop_reason == "approval_required")
            ),
            approvals=tuple(self._approvals),
            usage=self._usage,
        )


def _waits(result: ToolResult) -> bool:
    return result.error is not None and result.error.code == "approval_required" and "approval" in result.metadata


def _into(queue: asyncio.Queue[Any]) -> Callable[[Event], None]:
    """A listener that hands events over to a queue, also from a thread."""
    loop, here = asyncio.get_running_loop(), threading.get_ident()

    def listen(event: Event) -> None:
        if threading.get_ident() == here:
            queue.put_nowait(event)
        else:
            loop.call_soon_threadsafe(queue.put_nowait, event)

    return listen
