"""One tool call, from the JSON text of its arguments to the message for the model: the floors, and Handrail."""

import asyncio
from importlib.util import find_spec
from itertools import cycle
from typing import Any

from openai.types.chat import ChatCompletionMessageFunctionToolCall
from pydantic import BaseModel

from benchmarks.harness import Row
from handrail import ToolCall, ToolContext, tool
from handrail.openai import aio, core

NAME = "get_forecast"
CALL_ID = "call_1"
ARGUMENTS = '{"city": "Oslo", "days": 5}'
ANSWER = "Oslo: sun for 5 days"
READS, EFFECTS = 10_000, 50_000
"""How many calls of a row are different: more than it remembers of reads, and more than are made in one run."""
MESSAGE = {"role": "tool", "tool_call_id": CALL_ID, "content": ANSWER}
"""What every row has to come to."""

SDK_CALL = ChatCompletionMessageFunctionToolCall.model_validate(
    {"id": CALL_ID, "type": "function", "function": {"name": NAME, "arguments": ARGUMENTS}}
)
"""The call as the official SDK hands it over."""


def rows() -> list[Row]:
    """The floors and Handrail's own rows."""
    return [*_floors(), *_facade(), *_executor()]


def check_row(row: Row) -> None:
    """A row that does not come to the right message would be measured in vain."""

    async def awaited() -> object:
        return await row.run()

    made = asyncio.run(awaited()) if row.is_async else row.run()
    if made != MESSAGE:
        raise SystemExit(f"{row.name} made {made!r}")


class Forecast(BaseModel):
    """The arguments of the floors."""

    city: str
    days: int


def forecast(args: Forecast) -> str:
    """The work of every row: as good as none."""
    return f"{args.city}: sun for {args.days} days"


async def forecast_async(args: Forecast) -> str:
    """The same in a coroutine that never waits."""
    return f"{args.city}: sun for {args.days} days"


async def forecast_waiting(args: Forecast) -> str:
    """The same in a coroutine that waits for one turn of the event loop."""
    await asyncio.sleep(0)
    return f"{args.city}: sun for {args.days} days"


def _floors() -> list[Row]:
    def sync() -> object:
        args = Forecast.model_validate_json(ARGUMENTS)
        return {"role": "tool", "tool_call_id": CALL_ID, "content": forecast(args)}

    async def asynchronous() -> object:
        args = Forecast.model_validate_json(ARGUMENTS)
        return {"role": "tool", "tool_call_id": CALL_ID, "content": await forecast_async(args)}

    return [
        Row(
            name="floor, sync",
            floor="floor, sync",
            run=sync,
            is_async=False,
            does="`Model.model_validate_json(text)`, the handler, a message dict",
            leaves_out="everything else: the tool is known, errors are exceptions",
        ),
        Row(
            name="floor, async",
            floor="floor, async",
            run=asynchronous,
            does="the same with `await handler`",
            leaves_out="the same",
        ),
    ]


def _facade() -> list[Row]:
    # The bare name of the classes is the name of the tool.
    class get_forecast(core.LLMFunctionTool[None, None]):
        """Say what the weather will be."""

        city: str
        days: int

        def model_tool_handler(self, context: None) -> tuple[str, None]:
            return f"{self.city}: sun for {self.days} days", None

    sync_group = core.LLMFunctionToolGroup[None, None].from_list([get_forecast])

    class get_forecast_async(aio.LLMFunctionTool[None, None]):
        """Say what the weather will be."""

        model_tool_custom_name = NAME
        city: str
        days: int

        async def model_tool_handler(self, context: None) -> tuple[str, None]:
            return f"{self.city}: sun for {self.days} days", None

    async_group = aio.LLMFunctionToolGroup[None, None].from_list([get_forecast_async])

    async def run_async() -> object:
        return (await async_group.run_tool_call(SDK_CALL, None)).tool_message

    does = "finds the tool, validates, runs; answers bad arguments and errors for the model"
    leaves_out = "authorisation, events, timeout, ledger: the caller is the authority"
    return [
        Row(
            name="Handrail facade, sync",
            floor="floor, sync",
            run=lambda: sync_group.run_tool_call(SDK_CALL, None).tool_message,
            is_async=False,
            does=f"`LLMFunctionToolGroup.run_tool_call(call).tool_message`: {does}",
            leaves_out=leaves_out,
        ),
        Row(
            name="Handrail facade, async",
            floor="floor, async",
            run=run_async,
            does="the same, of `handrail.openai.aio`",
            leaves_out="the same",
        ),
    ]


def _executor() -> list[Row]:
    if find_spec("handrail.execute") is None:  # it comes with the next change
        return []
    from handrail import Executor, Policy, Rule

    @tool(name=NAME, read_only=True, concurrency_safe=True)
    async def plain(city: str, days: int) -> str:
        """Say what the weather will be."""
        return f"{city}: sun for {days} days"

    @tool(name=NAME, read_only=True, concurrency_safe=True)
    async def with_context(city: str, days: int, context: ToolContext[Any]) -> str:
        """Say what the weather will be."""
        return f"{city}: sun for {days} days"

    @tool(name=NAME, read_only=True, concurrency_safe=True)
    async def waiting(city: str, days: int) -> str:
        """Say what the weather will be."""
        await asyncio.sleep(0)
        return f"{city}: sun for {days} days"

    @tool(name=NAME)
    async def consequential(city: str, days: int) -> str:
        """Say what the weather will be."""
        return f"{city}: sun for {days} days"

    allowed = Policy([Rule.allow(NAME)])
    context = ToolContext[Any](session_id="s-1")

    def through(executor: Any, *, same_arguments: bool = True) -> Any:
        # An executor answers a call that it knows from memory, so every call has an id of its own. Ids and arguments
        # come from a model: the floors do not make them, either. The first call is that of `MESSAGE`.
        numbers = range(1, 1 + (READS if same_arguments else EFFECTS))
        texts = [ARGUMENTS if same_arguments else f'{{"city": "Oslo", "days": {4 + number}}}' for number in numbers]
        calls = cycle(zip(map("call_{}".format, numbers), texts, strict=True))

        async def run() -> object:
            call_id, text = next(calls)
            result = await executor.run(ToolCall(id=call_id, name=NAME, arguments_json=text), context)
            return {"role": "tool", "tool_call_id": result.call_id, "content": result.for_model()}

        return run

    async def floor() -> object:
        args = Forecast.model_validate_json(ARGUMENTS)
        return {"role": "tool", "tool_call_id": CALL_ID, "content": await forecast_waiting(args)}

    def listener(event: object) -> None: ...

    does = "finds, validates, looks whether the call is known, authorises, runs under a timer and with a way to cancel"
    return [
        Row(
            name="Handrail executor",
            floor="floor, async",
            run=through(Executor([plain])),
            does=f"`Executor.run(call, context)`, a read-only tool: {does}; a new `ToolCall` each time",
            leaves_out="events: nobody listens",
        ),
        Row(
            name="Handrail executor, a listener",
            floor="floor, async",
            run=through(Executor([plain], listeners=[listener])),
            does="the same, and tells one listener of start and finish",
            leaves_out="–",
        ),
        Row(
            name="Handrail executor, a listener, context",
            floor="floor, async",
            run=through(Executor([with_context], listeners=[listener])),
            does="the same, and the handler takes a `ToolContext`",
            leaves_out="–",
        ),
        Row(
            name="Handrail executor, consequential",
            floor="floor, async",
            run=through(Executor([consequential], policy=allowed, listeners=[listener]), same_arguments=False),
            does="with a listener, a tool that may change something: in a task of its own, at most once, with digests "
            "and a ledger in memory",
            leaves_out="–",
        ),
        Row(
            name="floor, waiting",
            floor="floor, waiting",
            run=floor,
            does="the async floor with a handler that waits for one turn of the event loop",
            leaves_out="the same",
        ),
        Row(
            name="Handrail executor, waiting",
            floor="floor, waiting",
            run=through(Executor([waiting], listeners=[listener])),
            does="with a listener, the same handler; the timer is set when it really waits",
            leaves_out="–",
        ),
    ]
