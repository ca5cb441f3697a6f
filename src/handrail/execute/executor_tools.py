"""The tools that an executor can run: what it works out once for each of them, and what changes them."""

import copy
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from handrail.authorize.from_condition import to_source_tool
from handrail.authorize.policy import CompiledPolicy, Policy, PolicyProblem
from handrail.core import failure_results
from handrail.core.context import ToolContext
from handrail.core.lazy_loading import LazyModule
from handrail.core.log import log
from handrail.core.provenance_records import SourceTool
from handrail.core.tool import MAX_OUTPUT_CHARS, Tool, check_name
from handrail.core.values import ToolCall, ToolResult
from handrail.define.build import as_tool, build_tool
from handrail.define.function import build_from_function
from handrail.define.options import ToolFlags
from handrail.errors import ConfigError, ToolDefinitionError, ToolError, ToolNotFoundError, shorten
from handrail.execute.limits import RetryPolicy
from handrail.execute.output_limit import OutputLimiter
from handrail.execute.scheduler import Concurrency
from handrail.registry.pool import ToolSource
from handrail.registry.registry import ToolRegistry

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = LazyModule("hashlib")


class CompiledTool:
    """One tool with its policy, its limits, and whether its calls can take the fast path."""

    __slots__ = (
        "can_read_more",
        "concurrency",
        "decision",
        "is_fast",
        "max_attempts",
        "max_duration",
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
        retry: RetryPolicy,
        max_output_chars: int,
        max_media_bytes: int,
        can_read_more: bool,
    ) -> None:
        self.tool = tool
        self.policy = policy
        self.timeout = tool.timeout or timeout
        self.max_attempts = retry.max_attempts if tool.read_only or tool.idempotent else 1
        delays = sum(retry.delay_after(attempt) for attempt in range(1, self.max_attempts))
        self.max_duration = self.timeout * self.max_attempts + delays
        """How many seconds a handler can take, with every attempt and every delay."""
        self.max_output_chars = int(tool.max_output_chars or max_output_chars)
        self.max_media_bytes = int(tool.max_media_bytes or max_media_bytes)
        self.can_read_more = can_read_more
        """Whether the model can read the rest of an output that is cut: `read_more` is in the pool."""
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

    def with_handler(self, handler: Callable[[Any, ToolContext[Any]], Any], *, is_async: bool = True) -> "CompiledTool":
        """The same tool with another handler; made for each call of a host."""
        other = copy.copy(self)
        other.tool = replace(self.tool, handler=handler, is_async=is_async)
        other.is_fast = self.is_fast and is_async
        return other


# Tools that are not in the pool.

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
        declared: Mapping[str, ToolFlags],
        on_new_tool: Callable[[Tool[..., Any]], None],
    ) -> None:
        self._compile_tool = compile_tool
        self._on_new_tool = on_new_tool
        if not isinstance(declared, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"declared must be a mapping of names to ToolFlags(…), got {type(declared).__name__}.")
        self._declared = {
            name: _build_host_tool(name, {}, _check_flags(f"declared[{name!r}]", flags))
            for name, flags in declared.items()
        }
        self._compiled: dict[tuple[str, str, CompiledTool | None, ToolFlags | None], CompiledTool] = {}
        """By the name, the digest of the schema, the registered tool and the flags; the oldest is forgotten first."""
        self._latest: dict[str, tuple[object, CompiledTool | None, ToolFlags | None, CompiledTool]] = {}
        """The last one of each name with its schema, for hosts that pass the same object with every call."""

    @property
    def declared(self) -> Mapping[str, Tool[..., Any]]:
        """The tools that were declared, without a schema or a handler."""
        return self._declared

    def copy_for(
        self,
        *,
        compile_tool: Callable[[Tool[..., Any]], CompiledTool],
        on_new_tool: Callable[[Tool[..., Any]], None],
    ) -> "HostTools":
        """The same declared tools, under the policy of another pool."""
        other = copy.copy(self)
        other._compile_tool, other._on_new_tool = compile_tool, on_new_tool
        other._compiled, other._latest = {}, {}
        return other

    def forget(self) -> None:
        """Work everything out anew: the policy has changed."""
        self._compiled.clear()
        self._latest.clear()

    def find_known(self, name: str) -> CompiledTool | None:
        """What was worked out last for a tool of this name; None if a host has not passed one."""
        latest = self._latest.get(name)
        return None if latest is None else latest[3]

    def compile(
        self,
        name: str,
        run: HostHandler,
        *,
        schema: Mapping[str, Any] | None = None,
        registered: CompiledTool | None = None,
        flags: ToolFlags | None = None,
        is_blocking: bool,
    ) -> CompiledTool | None:
        """The tool for one call; None if a tool cannot have this name. One that `is_blocking` runs in a thread."""

        async def handler(arguments: Any, context: ToolContext[Any]) -> Any:
            result = run(arguments, context)
            return await result if inspect.isawaitable(result) else result

        compiled = self.find(name, schema=schema, registered=registered, flags=flags)
        if compiled is None:
            return None
        return compiled.with_handler(run, is_async=False) if is_blocking else compiled.with_handler(handler)

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
                write_forms=None,
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
        return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolDefinitionError(f"`{name}`: schema must be a JSON Schema: {shorten(str(error))}.") from error


# The pool.

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
        output_limiter: OutputLimiter,
        timeout: float,
        retry: RetryPolicy,
        max_output_chars: int | None,
        max_media_bytes: int,
        can_store: bool,
    ) -> None:
        _check_policy(policy)
        self._can_store = can_store
        self._policy = policy
        self.sources = policy.sources
        """What rules name in `from`; an attribute, so that a call without such rules pays for one look only."""
        self._fallback = fallback
        self._output_limiter = output_limiter
        self._timeout = timeout
        self._retry = retry
        self._limits_output = bool(max_output_chars)
        self._max_output_chars = max_output_chars or MAX_OUTPUT_CHARS
        self._max_media_bytes = max_media_bytes
        self.host_tools = HostTools(compile_tool=self._compile, declared=declared, on_new_tool=self._on_host_tool)
        self._host_schemas: dict[str, Tool[..., Any]] = {}
        self._read_more: Tool[..., Any] | None = None
        self._can_read_more = False
        self.compiled = {}
        self.diagnostics: tuple[str, ...] = ()
        self._unsubscribe: list[Callable[[], None]] = []
        self._listeners: dict[object, Callable[[], None]] = {}
        self._snapshots: WeakSet[ToolPool] = WeakSet()
        """Pools that keep the tools that this one had, and follow its policy."""
        self._origin: ToolPool | None = None
        """The pool whose policy this one follows: it exists for as long as this one does."""
        self.replace_tools(tools)
        if self._tools and not self.is_open:
            self._refuse_diagnostics()

    def _refuse_diagnostics(self) -> None:
        """A closed pool has no tools but these, so that a rule that cannot apply to them is a mistake."""
        if self.diagnostics:
            raise _build_policy_error(self.diagnostics)

    def _compile(self, tool: Tool[..., Any], *, can_read_more: bool | None = None) -> CompiledTool:
        if tool.durable and not self._can_store:
            raise ConfigError(
                f"`{tool.name}` is durable, and this executor has no store for its calls: pass Executor(store=…)."
            )
        return CompiledTool(
            tool,
            self._policy.compile(tool),
            timeout=self._timeout,
            retry=self._retry,
            max_output_chars=self._max_output_chars,
            max_media_bytes=self._max_media_bytes,
            can_read_more=self._can_read_more if can_read_more is None else can_read_more,
        )

    @property
    def policy(self) -> Policy:
        """The policy that decides about its tools now."""
        return self._policy

    @property
    def tools(self) -> tuple[object, ...]:
        """The tools and sources that it was made of, for another pool."""
        return tuple(self._tools)

    @property
    def durable_definitions(self) -> frozenset[str]:
        """The digests of the definitions of durable tools that can run here: in the pool, or through the fallback."""
        tools = [compiled.tool for compiled in self.compiled.values() if compiled.tool.durable]
        if self._fallback is not None:
            tools += [tool for tool in self.host_tools.declared.values() if tool.durable]
        return frozenset(tool.definition_digest for tool in tools)

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
        # Without a tool of its own, it gets them one by one, through guard().
        return list(policy.find_problems(self.known_tools, are_all=bool(self._tools or self.host_tools.declared)))

    def _update_diagnostics(self, problems: Sequence[PolicyProblem] | None = None) -> None:
        found = self.find_policy_problems(self._policy) if problems is None else problems
        diagnostics = tuple(map(str, found))
        for problem in diagnostics:
            if problem not in self.diagnostics:
                log.warning("policy: %s", problem)
        self.diagnostics = diagnostics

    # Where values come from.

    def add_to_provenance(
        self, tool: Tool[..., Any], sent_call: ToolCall, result: ToolResult, context: ToolContext[Any]
    ) -> None:
        """Add a result to what the conversation knows about the origins of values. `sent_call` is the model's."""
        provenance = context.provenance
        if provenance is None or provenance.session_id not in (None, context.session_id):
            return
        provenance.bind(context.session_id)
        provenance.add_result(sent_call, result, self._to_source_tool(tool), turn=context.turn)
        provenance.update_indexes(self.sources)

    def find_source_tool(self, name: str) -> SourceTool:
        """The tool of a result, as a source; one that is not known any more has a name only."""
        compiled = self.compiled.get(name) or self.host_tools.find_known(name)
        return SourceTool(name) if compiled is None else self._to_source_tool(compiled.tool)

    def _to_source_tool(self, tool: Tool[..., Any]) -> SourceTool:
        return to_source_tool(tool, reads_more=tool is self._read_more)

    # Changing the tools.

    def replace_tools(self, tools: ToolRegistry | Iterable[object]) -> None:
        """Replace every tool, and follow the changes of the sources among them."""
        if isinstance(tools, str) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller's
            raise ConfigError(f"tools must be a list of tools, such as [pay], got {type(tools).__name__}.")
        every = [item if isinstance(item, ToolSource) else as_tool(item) for item in tools]
        # Built first: where that raises, the pool stays as it was.
        built = self._compile_registry(tools if isinstance(tools, ToolRegistry) else _build_registry(every))
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = [item.subscribe(self._on_source_change) for item in every if isinstance(item, ToolSource)]
        self._tools = every
        self._use_registry(*built)

    def replace_policy(self, policy: Policy) -> None:
        """Decide about every later call by other rules; a closed pool refuses rules that can never apply to it."""
        self.prepare_policy(policy)()

    def prepare_policy(self, policy: Policy) -> Callable[[], None]:
        """Work out other rules, in any thread; the function that this returns replaces the policy, at once.

        A thousand rules for a thousand tools take seconds.
        """
        _check_policy(policy)
        problems, registry = self.find_policy_problems(policy), self.registry
        if self._tools and not self.is_open and problems:
            raise _build_policy_error(str(problem) for problem in problems)
        other = copy.copy(self)
        other._policy = policy
        compiled = {tool.name: other._compile(tool) for tool in registry}

        def replace_policy() -> None:
            self._policy = policy
            self.sources = policy.sources
            self.compiled = compiled  # Of tools that were replaced meanwhile, no other one has it.
            self.host_tools.forget()
            built = self._compile_registry(self.registry)
            self._use_registry(*built, problems if self.registry is registry else None)
            self._update_snapshots()

        return replace_policy

    def _update_snapshots(self) -> None:
        """Decide by the policy of this pool in its snapshots, too: turns and phone calls that are under way."""
        known = self.compiled
        for other in tuple(self._snapshots):
            other._policy, other.sources = self._policy, self.sources
            other.compiled = {
                name: same
                if (same := known.get(name)) is not None and same.tool is compiled.tool
                else other._compile(compiled.tool)
                for name, compiled in other.compiled.items()
            }
            other._update_snapshots()

    def _on_source_change(self) -> None:
        """Rebuild the pool from the sources' current tools."""
        try:
            self._use_registry(*self._compile_registry(_build_registry(self._tools)))
        except ConfigError:
            log.exception("the changed tools of a source cannot be used; the pool stays as it was")

    def _compile_registry(self, registry: ToolRegistry) -> tuple[ToolRegistry, dict[str, CompiledTool]]:
        """A registry with `read_more`, if that is needed, and its compiled tools; raises if they cannot run here."""
        limits = self._limits_output or any(tool.max_output_chars for tool in registry)
        if limits and "read_more" not in registry:
            self._read_more = self._read_more or self._output_limiter.read_more_tool()
            registry = registry.register(self._read_more)
        can_read_more = self._has_read_more(registry)
        known = self.compiled
        compiled = {
            tool.name: same
            if (same := known.get(tool.name)) is not None
            and (same.tool is tool and same.can_read_more == can_read_more)
            else self._compile(tool, can_read_more=can_read_more)
            for tool in registry
        }
        if clashing := [name for name in self.host_tools.declared if name in registry]:
            raise ConfigError(f"declared names {clashing[0]!r}, which is in the pool: give the tool itself its flags.")
        return registry, compiled

    def _has_read_more(self, registry: ToolRegistry) -> bool:
        """Whether the rest of an output can be read there; a tool of the developer's own with that name is another."""
        return any(tool is self._read_more for tool in registry)

    def _use_registry(
        self,
        registry: ToolRegistry,
        compiled: dict[str, CompiledTool],
        problems: Sequence[PolicyProblem] | None = None,
    ) -> None:
        self.registry, self.compiled = registry, compiled
        if (can_read_more := self._has_read_more(registry)) != self._can_read_more:
            self._can_read_more = can_read_more
            self.host_tools.forget()
        self._update_diagnostics(problems)
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

    def snapshot(self, *, exclude: Collection[str] = ()) -> Self:
        """A pool with the current tools but those to exclude, unaffected by later replacements of tools; the policy is
        always that of this pool."""
        other = copy.copy(self)
        if exclude:
            other.registry = ToolRegistry(tool for tool in self.registry if tool.name not in exclude)
            other.compiled = {name: compiled for name, compiled in self.compiled.items() if name not in exclude}
        other._snapshots, other._origin = WeakSet(), self
        self._snapshots.add(other)
        return other

    def register(self, name: str, function: object) -> Self:
        """A new pool that also has this tool, under this name; this one stays as it is."""
        if inspect.isfunction(function) or inspect.ismethod(function):
            added = build_from_function(function, {"name": name})
        else:
            added = as_tool(function)
        added = added if added.name == name else replace(added, name=name)
        self.registry.register(added)  # Refuses a name that is taken.
        other = copy.copy(self)
        other._host_schemas = self._host_schemas.copy()
        other._own_parts(self)
        other.replace_tools([*self._tools, added])
        return other

    def _own_parts(self, origin: "ToolPool") -> None:
        """Share nothing with the pool that this one was made from that changes with its tools or its policy."""
        self._unsubscribe, self._listeners, self._snapshots, self._origin = [], {}, WeakSet(), None
        self.host_tools = origin.host_tools.copy_for(compile_tool=self._compile, on_new_tool=self._on_host_tool)

    def with_tools(self, tools: ToolRegistry | Iterable[object], *, policy: Policy) -> Self:
        """A new pool with other tools and another policy, under the same limits; this one stays as it is."""
        _check_policy(policy)
        other = copy.copy(self)
        other._policy = policy
        other.sources = policy.sources
        other._host_schemas, other.compiled = {}, {}
        other._own_parts(self)
        other.replace_tools(tools)
        if other._tools and not other.is_open and not self.is_open:  # The sources of this one may have others later.
            other._refuse_diagnostics()
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


def _check_policy(policy: object) -> None:
    if not isinstance(policy, Policy):
        kind = type(policy).__name__
        raise ConfigError(f"policy must be a Policy, such as Policy([rule]) or load_policy(path), got {kind}.")


def _build_policy_error(problems: Iterable[str]) -> ConfigError:
    listed = "\n".join(f"- {problem}" for problem in problems)
    return ConfigError(
        f"The policy has rules that can never apply to these tools:\n{listed}\n"
        "Tools that are only passed to guard() are named with declared={name: ToolFlags(…)}."
    )


def _build_registry(tools: Sequence[Tool[..., Any] | ToolSource]) -> ToolRegistry:
    """A registry of the given tools and of the current tools of the given sources, in their order.

    A tool of a source never takes the name of another tool: it is left out, and logged.
    """
    taken = {member.name for member in tools if isinstance(member, Tool)}
    pool: list[Tool[..., Any]] = []
    for item in tools:
        if isinstance(item, Tool):
            pool.append(item)
            continue
        for tool in item.tools:
            if tool.name in taken:
                log.warning("the tool %s from %s is left out: there is one of that name", tool.name, tool.source)
            else:
                taken.add(tool.name)
                pool.append(tool)
    return ToolRegistry(pool)
