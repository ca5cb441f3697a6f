"""What an executor works out once for each tool, so that no call has to."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from handrail.authorize.policy import CompiledPolicy
from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.define.build import build_tool
from handrail.errors import ToolDefinitionError
from handrail.execute.scheduler import Concurrency
from handrail.execute.threads import WorkerThreads


class CompiledTool:
    """One tool with its policy, its limits, and whether its calls can take the fast path."""

    __slots__ = ("concurrency", "decision", "is_fast", "max_output_chars", "policy", "timeout", "tool")

    def __init__(self, tool: Tool[..., Any], policy: CompiledPolicy, *, timeout: float, max_output_chars: int) -> None:
        self.tool = tool
        self.policy = policy
        self.timeout = tool.timeout or timeout
        self.max_output_chars = int(tool.max_output_chars or max_output_chars)
        self.concurrency: Concurrency = "shared" if tool.concurrency_safe or tool.lock_key is not None else "exclusive"
        self.decision = policy.always_allowed
        """The decision about every call, where it is always to allow it."""
        self.is_fast = (
            self.decision is not None
            and tool.read_only
            and tool.is_async
            and tool.lock_key is None
            and tool.cache_for is None
        )
        """Nothing to decide, nothing to claim, nothing to look up: the handler can run at once."""

    def with_handler(self, handler: Callable[[Any, ToolContext[Any]], Any]) -> "CompiledTool":
        """The same tool with another handler; made for each call of a host, so nothing is worked out again."""
        other = CompiledTool.__new__(CompiledTool)
        for name in CompiledTool.__slots__:
            setattr(other, name, getattr(self, name))
        other.tool = replace(self.tool, handler=handler)
        return other


HostHandler = Callable[[Any, ToolContext[Any]], Any]
"""Takes the authorised arguments and the context, whose `call` has them as text."""

_MAX_KNOWN_NAMES = 1_000
"""How many names are remembered: a model can make up any number of them."""


class HostTools:
    """Makes tools of handlers that are not registered: those of another framework (`guard`), and `fallback`.

    A registered tool of the same name says what the tool is (read-only, its key, its timeout); an unknown one is taken
    to be consequential.
    """

    def __init__(self, *, compile_tool: Callable[[Tool[..., Any]], CompiledTool], threads: WorkerThreads) -> None:
        self._compile_tool = compile_tool
        self._threads = threads
        self._compiled: dict[str, CompiledTool] = {}

    def compile(
        self, name: str, run: HostHandler, *, registered: CompiledTool | None = None, is_blocking: bool = False
    ) -> CompiledTool | None:
        """The tool for one call; None if a tool cannot have this name."""

        async def handler(arguments: Any, context: ToolContext[Any]) -> Any:
            result = (
                await self._threads.run(lambda: run(arguments, context)) if is_blocking else run(arguments, context)
            )
            return await result if inspect.isawaitable(result) else result

        compiled = self._compiled.get(name) or self._compile(name, registered)
        return None if compiled is None else compiled.with_handler(handler)

    def _compile(self, name: str, registered: CompiledTool | None) -> CompiledTool | None:
        async def placeholder(arguments: Any, context: ToolContext[Any]) -> None: ...

        try:
            tool = build_tool({"name": name, "input_schema": {}, "execute": placeholder})
        except ToolDefinitionError:
            return None
        if registered is not None:
            tool = replace(
                registered.tool,
                function=placeholder,
                parse=tool.parse,
                dump=tool.dump,
                is_async=True,
                takes_context=True,
            )
        compiled = self._compile_tool(tool)
        if len(self._compiled) < _MAX_KNOWN_NAMES:
            self._compiled[name] = compiled
        return compiled
