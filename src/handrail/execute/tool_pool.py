"""The tools that an executor can run, compiled with its policy and limits, and what changes them."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from handrail.authorize.policy import Policy, PolicyProblem
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.tool import MAX_OUTPUT_CHARS, Tool
from handrail.core.values import ToolCall, ToolResult
from handrail.define.build import as_tool
from handrail.define.flags import ToolFlags
from handrail.define.function import build_from_function
from handrail.errors import ConfigError, ToolNotFoundError
from handrail.execute.compiled_tool import CompiledTool, HostTools
from handrail.execute.output_limit import OutputLimiter
from handrail.execute.threads import WorkerThreads
from handrail.registry.registry import ToolRegistry
from handrail.registry.tool_source import ToolSource, build_registry

Fallback = Callable[[ToolCall, ToolContext[Any]], Any]


class ToolPool:
    """Finds the compiled tool that a call names, and keeps up with sources whose tools change."""

    registry: ToolRegistry
    compiled: Mapping[str, CompiledTool]
    """Every tool of the registry, by its name. An attribute, so that a look-up costs no call."""

    def __init__(
        self,
        tools: ToolRegistry | Iterable[object],
        *,
        policy: Policy,
        fallback: Fallback | None,
        declared: Mapping[str, ToolFlags],
        threads: WorkerThreads,
        output_limiter: OutputLimiter,
        timeout: float,
        max_output_chars: int | None,
        max_media_bytes: int,
    ) -> None:
        self._policy = policy
        self._fallback = fallback
        self._output_limiter = output_limiter
        self._timeout = timeout
        self._limits_output = bool(max_output_chars)
        self._max_output_chars = max_output_chars or MAX_OUTPUT_CHARS
        self._max_media_bytes = max_media_bytes
        self.host_tools = HostTools(
            compile_tool=self._compile, threads=threads, declared=declared, on_new_tool=self._on_host_tool
        )
        self._host_schemas: dict[str, Tool[..., Any]] = {}
        self._read_more: Tool[..., Any] | None = None
        self.compiled = {}
        self.diagnostics: tuple[str, ...] = ()
        self._unsubscribe: list[Callable[[], None]] = []
        self._listeners: dict[object, Callable[[], None]] = {}
        self.replace_tools(tools)
        if self._tools and not self.is_open:
            self._refuse_diagnostics()

    def _refuse_diagnostics(self) -> None:
        """A closed pool has no tools but these, so that a rule that cannot apply to them is a mistake."""
        if self.diagnostics:
            listed = "\n".join(f"- {one}" for one in self.diagnostics)
            raise ConfigError(
                f"The policy has rules that can never apply to these tools:\n{listed}\n"
                "Tools that are only passed to guard() are named with declared={name: ToolFlags(…)}."
            )

    def _compile(self, tool: Tool[..., Any]) -> CompiledTool:
        return CompiledTool(
            tool,
            self._policy.compile(tool),
            timeout=self._timeout,
            max_output_chars=self._max_output_chars,
            max_media_bytes=self._max_media_bytes,
        )

    # Tools that are not in the pool.

    def compile_fallback(self, call: ToolCall) -> CompiledTool | None:
        """The tool that hands a call to the fallback; None without one, or if a tool cannot have this name."""
        fallback = self._fallback
        if fallback is None:
            return None

        def run(arguments: Any, inner: ToolContext[Any]) -> Any:
            return fallback(inner.call or call, inner)  # The context's call has the authorised arguments.

        return self.host_tools.compile(call.name, run, is_blocking=not inspect.iscoroutinefunction(fallback))

    def build_not_found(self, name: str) -> ToolResult:
        """The result of a call that names no tool."""
        try:
            self.registry.get(name)
        except ToolNotFoundError as error:
            return failure_results.error_result(error)
        raise AssertionError(f"{name} is registered, but not compiled")

    @property
    def known_tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools of the pool, and those of another framework that were declared or have passed a schema."""
        host_tools = {**self.host_tools.declared, **self._host_schemas}
        return (*self.registry, *(tool for name, tool in host_tools.items() if name not in self.registry))

    def _on_host_tool(self, tool: Tool[..., Any]) -> None:
        """Check the rules that name a tool against the schema that the host has passed for it."""
        if self._policy.names(tool.name):
            self._host_schemas[tool.name] = tool
            self._update_diagnostics()

    def find_policy_problems(self, policy: Policy) -> list[PolicyProblem]:
        """The rules of a policy that can never apply to the known tools."""
        return list(policy.find_problems(self.known_tools))

    def _update_diagnostics(self) -> None:
        problems = tuple(str(one) for one in self.find_policy_problems(self._policy))
        for problem in problems:
            if problem not in self.diagnostics:
                log.warning("policy: %s", problem)
        self.diagnostics = problems

    # Changing the tools.

    def replace_tools(self, tools: ToolRegistry | Iterable[object]) -> None:
        """Replace every tool, and follow the changes of the sources among them."""
        every = [one if isinstance(one, ToolSource) else as_tool(one) for one in tools]
        # Built first: where that raises, the pool stays as it was.
        registry = tools if isinstance(tools, ToolRegistry) else build_registry(every)
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = [one.subscribe(self._on_source_change) for one in every if isinstance(one, ToolSource)]
        self._tools = every
        self._set_registry(registry)

    def _on_source_change(self) -> None:
        """Rebuild the pool from the sources' current tools."""
        try:
            self._set_registry(build_registry(self._tools))
        except ConfigError:
            log.exception("the changed tools of a source cannot be used; the pool stays as it was")

    def _set_registry(self, registry: ToolRegistry) -> None:
        limits = self._limits_output or any(tool.max_output_chars for tool in registry)
        if limits and "read_more" not in registry:
            self._read_more = self._read_more or self._output_limiter.read_more_tool()
            registry = registry.register(self._read_more)
        known = self.compiled
        compiled = {
            tool.name: one if (one := known.get(tool.name)) is not None and one.tool is tool else self._compile(tool)
            for tool in registry
        }
        if clashing := [name for name in self.host_tools.declared if name in registry]:
            raise ConfigError(f"declared names {clashing[0]!r}, which is in the pool: give the tool itself its flags.")
        self.registry, self.compiled = registry, compiled
        self._update_diagnostics()
        for listener in tuple(self._listeners.values()):
            try:
                listener()
            except Exception:
                log.exception("a listener to changed tools failed")

    @property
    def is_open(self) -> bool:
        """Whether it can get tools that it does not know yet: from sources that change, or through the fallback."""
        return self._fallback is not None or bool(self._unsubscribe)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function after every change; the function returned here unsubscribes it."""
        key = object()
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def snapshot(self) -> Self:
        """A pool with the current tools, unaffected by later replacements."""
        return copy.copy(self)

    def register(self, name: str, function: object) -> Self:
        """A new pool that also has this tool, under this name; this one stays as it is."""
        if inspect.isfunction(function) or inspect.ismethod(function):
            added = build_from_function(function, {"name": name})
        else:
            added = as_tool(function)
        added = added if added.name == name else replace(added, name=name)
        self.registry.register(added)  # Refuses a name that is taken.
        other = copy.copy(self)
        other._unsubscribe, other._listeners = [], {}
        other.replace_tools([*self._tools, added])
        return other

    # Closing.

    def unsubscribe_sources(self) -> None:
        """Keep the tools as they are, whatever their sources do."""
        subscriptions, self._unsubscribe = self._unsubscribe, []
        for unsubscribe in subscriptions:
            unsubscribe()

    async def aclose(self) -> None:
        """Close the connections of the tools."""
        for aclose in {tool.aclose for tool in self.registry if tool.aclose is not None}:
            try:
                await aclose()
            except Exception:  # somebody else's code; the others still have to be closed
                log.exception("what a tool holds could not be closed")
