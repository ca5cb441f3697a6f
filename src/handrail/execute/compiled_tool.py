"""What an executor works out once for each tool, so that no call has to."""

import copy
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from handrail.authorize.policy import CompiledPolicy
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.tool import Tool, check_name
from handrail.core.values import ToolCall
from handrail.define.build import build_tool
from handrail.define.flags import ToolFlags
from handrail.errors import ConfigError, ToolDefinitionError, ToolError, shorten
from handrail.execute.scheduler import Concurrency
from handrail.execute.threads import WorkerThreads


class CompiledTool:
    """One tool with its policy, its limits, and whether its calls can take the fast path."""

    __slots__ = (
        "concurrency",
        "decision",
        "is_fast",
        "max_media_bytes",
        "max_output_chars",
        "policy",
        "timeout",
        "tool",
    )

    def __init__(
        self,
        tool: Tool[..., Any],
        policy: CompiledPolicy,
        *,
        timeout: float,
        max_output_chars: int,
        max_media_bytes: int,
    ) -> None:
        self.tool = tool
        self.policy = policy
        self.timeout = tool.timeout or timeout
        self.max_output_chars = int(tool.max_output_chars or max_output_chars)
        self.max_media_bytes = int(tool.max_media_bytes or max_media_bytes)
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
        """The same tool with another handler; made for each call of a host."""
        other = copy.copy(self)
        other.tool = replace(self.tool, handler=handler)
        return other


HostHandler = Callable[[Any, ToolContext[Any]], Any]
"""Takes the authorised arguments and the context, whose `call` has them as text."""

_MAX_KNOWN_TOOLS = 1_000
"""How many tools are remembered: a model can make up any number of names, and a host any number of schemas."""


class HostTools:
    """Makes tools of handlers that are not registered: those of another framework (`guard`), and `fallback`.

    A registered tool of the same name says what the tool is (read-only, its key, its timeout), or what was declared
    about it, or else the flags that its host passes; one of which nothing is known is taken to be consequential.
    """

    def __init__(
        self,
        *,
        compile_tool: Callable[[Tool[..., Any]], CompiledTool],
        threads: WorkerThreads,
        declared: Mapping[str, ToolFlags],
        on_new_tool: Callable[[Tool[..., Any]], None],
    ) -> None:
        self._compile_tool = compile_tool
        self._threads = threads
        self._on_new_tool = on_new_tool
        if not isinstance(declared, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"declared must be a mapping of names to ToolFlags(…), got {type(declared).__name__}.")
        self._declared = {
            name: _build_host_tool(name, {}, _check_flags(f"declared[{name!r}]", one)) for name, one in declared.items()
        }
        self._compiled: dict[tuple[str, str, CompiledTool | None, ToolFlags | None], CompiledTool] = {}
        """By the name, the digest of the schema, the registered tool and the flags; the oldest is forgotten first."""
        self._latest: dict[str, tuple[object, CompiledTool | None, ToolFlags | None, CompiledTool]] = {}
        """The last one of each name with its schema, for hosts that pass the same object with every call."""

    @property
    def declared(self) -> Mapping[str, Tool[..., Any]]:
        """The tools that were declared, without a schema or a handler."""
        return self._declared

    def compile(
        self,
        name: str,
        run: HostHandler,
        *,
        schema: Mapping[str, Any] | None = None,
        registered: CompiledTool | None = None,
        flags: ToolFlags | None = None,
        is_blocking: bool = False,
    ) -> CompiledTool | None:
        """The tool for one call; None if a tool cannot have this name."""

        async def handler(arguments: Any, context: ToolContext[Any]) -> Any:
            result = (
                await self._threads.run(lambda: run(arguments, context)) if is_blocking else run(arguments, context)
            )
            return await result if inspect.isawaitable(result) else result

        compiled = self.find(name, schema=schema, registered=registered, flags=flags)
        return None if compiled is None else compiled.with_handler(handler)

    def find(
        self,
        name: str,
        *,
        schema: Mapping[str, Any] | None = None,
        registered: CompiledTool | None = None,
        flags: ToolFlags | None = None,
    ) -> CompiledTool | None:
        """What is worked out once for a tool and a schema; None if a tool cannot have this name."""
        if flags is not None:
            is_known = registered is not None or name in self._declared
            flags = None if is_known else _check_flags("flags", flags)
        latest = self._latest.get(name)
        if latest is not None and latest[0] is schema and latest[1] is registered and latest[2] == flags:
            return latest[3]
        try:
            check_name(name)
        except ToolDefinitionError:
            return None
        key = name, "" if schema is None else _digest_schema(schema, name=name), registered, flags
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compile(name, schema, registered, flags)
            if len(self._compiled) >= _MAX_KNOWN_TOOLS:
                forgotten = next(iter(self._compiled))
                del self._compiled[forgotten]
                self._latest.pop(forgotten[0], None)
            self._compiled[key] = compiled
            if schema is not None:
                self._on_new_tool(compiled.tool)
        self._latest[name] = schema, registered, flags, compiled
        return compiled

    def _compile(
        self,
        name: str,
        schema: Mapping[str, Any] | None,
        registered: CompiledTool | None,
        flags: ToolFlags | None,
    ) -> CompiledTool:
        known = registered.tool if registered is not None else self._declared.get(name)
        tool = _build_host_tool(name, {} if schema is None else schema, flags)
        if known is not None:
            tool = replace(
                known,
                input_schema=known.input_schema if schema is None else tool.input_schema,
                function=tool.function,
                handler=tool.handler,
                parse=tool.parse,
                parsers=tool.parsers,
                dump=tool.dump,
                is_async=True,
                takes_context=True,
            )
        return self._compile_tool(tool)


def build_host_handler(call: ToolCall, proceed: Callable[..., Any]) -> tuple[HostHandler, bool]:
    """A handler that calls a host's function, and whether that function takes the authorised arguments.

    One that takes none runs with the arguments of `call`, and is refused if others were authorised.
    """
    takes_arguments = True
    try:
        inspect.signature(proceed).bind({})
    except TypeError:
        takes_arguments = False
    except ValueError:  # A function in C that does not say.
        pass

    def run(arguments: Any, context: ToolContext[Any]) -> Any:
        if takes_arguments:
            return proceed(arguments)
        if context.call is None or context.call.arguments_json != call.arguments_json:
            error = failure_results.host_cannot_change(call.name).error
            assert error is not None
            raise ToolError(error.message, code=error.code)
        return proceed()

    return run, takes_arguments


def _build_host_tool(name: str, schema: Mapping[str, Any], flags: ToolFlags | None = None) -> Tool[..., Any]:
    async def placeholder(arguments: Any, context: ToolContext[Any]) -> None: ...

    options = {} if flags is None else flags.to_options()
    return build_tool({"name": name, "input_schema": schema, "execute": placeholder, **options})


def _check_flags(parameter: str, flags: object) -> ToolFlags:
    if not isinstance(flags, ToolFlags):
        raise ConfigError(f"{parameter} must be ToolFlags(…), got {flags!r}.")
    return flags


def _digest_schema(schema: Mapping[str, Any], *, name: str) -> str:
    try:
        return sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolDefinitionError(f"`{name}`: schema must be a JSON Schema: {shorten(str(error))}.") from error
