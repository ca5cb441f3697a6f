"""The same tool call in other libraries: the call of each that dispatches one tool call, without its loop.

Every row starts from the JSON text of the arguments and ends with the same message. Where a library leaves a step to
its caller, the row takes that step in the cheapest way there is.
"""

import logging
from importlib.metadata import version
from typing import Any

import agents
import fastmcp
import toolcall.openai.aio as toolcall_aio
import toolcall.openai.core as toolcall_core
from agents.tool_context import ToolContext
from langchain_core.tools import tool as langchain_tool
from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.usage import RunUsage
from pydantic_core import from_json

from benchmarks.dispatch import ARGUMENTS, CALL_ID, NAME, SDK_CALL
from benchmarks.harness import Row

PACKAGES = ("toolcall", "openai-agents", "pydantic-ai-slim", "fastmcp", "langchain-core")


def versions() -> dict[str, str]:
    """What was compared with."""
    return {package: version(package) for package in PACKAGES}


async def rows() -> list[Row]:
    """The peers, the lightest first."""
    logging.getLogger("fastmcp").setLevel(logging.WARNING)
    return [*_toolcall(), _openai_agents(), await _pydantic_ai(), _fastmcp(), _langchain()]


async def get_forecast(city: str, days: int) -> str:
    """Say what the weather will be."""
    return f"{city}: sun for {days} days"


def _message(content: object) -> object:
    return {"role": "tool", "tool_call_id": CALL_ID, "content": content}


def _toolcall() -> list[Row]:
    class Sync(toolcall_core.LLMFunctionTool[None, None]):
        """Say what the weather will be."""

        model_tool_custom_name = NAME
        city: str
        days: int

        def model_tool_handler(self, context: None) -> tuple[str, None]:
            return f"{self.city}: sun for {self.days} days", None

    class Async(toolcall_aio.LLMFunctionTool[None, None]):
        """Say what the weather will be."""

        model_tool_custom_name = NAME
        city: str
        days: int

        async def model_tool_handler(self, context: None) -> tuple[str, None]:
            return f"{self.city}: sun for {self.days} days", None

    sync_group: Any = toolcall_core.LLMFunctionToolGroup[None, None].from_list([Sync])
    async_group: Any = toolcall_aio.LLMFunctionToolGroup[None, None].from_list([Async])

    async def run_async() -> object:
        return (await async_group.run_tool_call(SDK_CALL, None)).tool_message

    does = "finds the tool, validates, runs; answers bad arguments and errors for the model"
    leaves_out = "authorisation, events, timeout"
    return [
        Row(
            name="toolcall, sync",
            floor="floor, sync",
            run=lambda: sync_group.run_tool_call(SDK_CALL, None).tool_message,
            is_async=False,
            does=f"`LLMFunctionToolGroup.run_tool_call(call).tool_message`: {does}",
            leaves_out=leaves_out,
        ),
        Row(
            name="toolcall, async",
            floor="floor, async",
            run=run_async,
            does="the same, of `toolcall.openai.aio`",
            leaves_out="the same",
        ),
    ]


def _openai_agents() -> Row:
    tool = agents.function_tool(get_forecast)
    context = ToolContext(context=None, tool_name=NAME, tool_call_id=CALL_ID, tool_arguments=ARGUMENTS)

    async def run() -> object:
        return _message(await tool.on_invoke_tool(context, ARGUMENTS))

    return Row(
        name="openai-agents",
        floor="floor, async",
        run=run,
        does="`FunctionTool.on_invoke_tool(context, text)`: parses, validates, runs; answers errors for the model",
        leaves_out="finding the tool, authorisation, events, timeout and the context of the call: its runner has them",
    )


async def _pydantic_ai() -> Row:
    context = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    manager = await ToolManager(FunctionToolset([get_forecast])).for_run_step(context)
    call = ToolCallPart(tool_name=NAME, args=ARGUMENTS, tool_call_id=CALL_ID)

    async def run() -> object:
        return _message(await manager.handle_call(call))

    return Row(
        name="pydantic-ai",
        floor="floor, async",
        run=run,
        does="`ToolManager.handle_call(call)`: finds the tool, validates, asks whether it needs approval, runs, counts "
        "retries; the tool could have a timeout",
        leaves_out="events and usage limits (its graph has them), traces and hooks (a capability would add them)",
    )


def _fastmcp() -> Row:
    server = fastmcp.FastMCP("benchmark")
    server.tool(get_forecast)

    async def run() -> object:
        result: Any = await server.call_tool(NAME, from_json(ARGUMENTS))
        return _message(result.content[0].text)

    return Row(
        name="fastmcp",
        floor="floor, async",
        run=run,
        does="`server.call_tool(name, arguments)`: context, middleware (none here), a span (no tracer here), finds the "
        "tool, asks whether the caller may use it, validates, runs, text and structured content; could have a timeout",
        leaves_out="the protocol and its transport; errors are exceptions",
    )


def _langchain() -> Row:
    tool = langchain_tool(get_forecast)

    async def run() -> object:
        call = {"type": "tool_call", "id": CALL_ID, "name": NAME, "args": from_json(ARGUMENTS)}
        return _message((await tool.ainvoke(call)).content)

    return Row(
        name="langchain-core",
        floor="floor, async",
        run=run,
        does="`tool.ainvoke(call)`: configuration, callbacks (none here), validates, runs, a `ToolMessage`",
        leaves_out="finding the tool, authorisation, timeout; errors are exceptions",
    )
