"""The one tool value, and the protocol of everything that can become one."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    cast,
    get_args,
    overload,
    runtime_checkable,
)

from msgspec import Struct, structs
from pydantic_core import PydanticUndefined, to_jsonable_python
from typing_extensions import TypeVar

from handrail.core.context import ToolContext
from handrail.core.handler_result_checks import clean_result, collect_iterators, collect_output, is_plain
from handrail.core.lazy_loading import LazyModule
from handrail.core.media import MediaPart
from handrail.core.text import encodable, faithful_json
from handrail.core.values import Failure, ToolResult, find_media_result
from handrail.errors import (
    PermissionDeniedError,
    ToolArgsParseError,
    ToolDefinitionError,
    ToolError,
    UnusableOutputError,
    shorten,
)

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = LazyModule("hashlib")

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Instance = TypeVar("Instance")
Rest = ParamSpec("Rest")

MAX_OUTPUT_CHARS: Final = 100_000
"""How many characters an output may have, unless the tool or the executor says otherwise."""
OnInterrupt = Literal["cancel", "finish", "finish_silently", "uninterruptible"]
KeyOf = Callable[[Mapping[str, Any]], object]
"""Takes the arguments, as JSON values with their defaults, and returns the key."""


@runtime_checkable
class ToolLike(Protocol):
    """The members that an object needs to be used as a tool."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def input_schema(self) -> Mapping[str, Any]: ...
    async def execute(self, payload: dict[str, Any], context: ToolContext[Any]) -> Any: ...
    async def check_permissions(self, payload: dict[str, Any], context: ToolContext[Any]) -> Any: ...
    def is_read_only(self) -> bool: ...
    def is_concurrency_safe(self) -> bool: ...


class ArgumentParsers(Struct, frozen=True, kw_only=True):
    """The parsers of one tool, of which its flags select one."""

    lenient: Callable[[str], Any]
    """For read-only tools: `"5"` is accepted for an integer, and the last one of two equal keys counts."""
    unambiguous: Callable[[str], Any]
    """For consequential tools with `coerce=True`: values are converted, ambiguous JSON is refused."""
    strict: Callable[[str], Any]
    """For consequential tools: ambiguous JSON and values of another type are refused."""

    def select(self, *, read_only: bool, coerce: bool) -> Callable[[str], Any]:
        """Return the parser for these flags."""
        return self.lenient if read_only else self.unambiguous if coerce else self.strict

    def wrap(self, change: Callable[[Callable[[str], Any]], Callable[[str], Any]]) -> "ArgumentParsers":
        """Return the same parsers, each wrapped by a function."""
        return ArgumentParsers(
            lenient=change(self.lenient), unambiguous=change(self.unambiguous), strict=change(self.strict)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Tool(Generic[P, R]):
    """A tool that a model can call.

    Build one with `@tool`, `LLMFunctionTool`, `build_tool` or `as_tool` rather than by hand. A tool without flags is
    consequential, runs alone in its session, and needs an approval.
    """

    name: str
    description: str = ""
    input_schema: Mapping[str, Any]
    """JSON Schema of the arguments, an object."""
    output_schema: Mapping[str, Any] | None = None
    function: Callable[P, R]
    """The function that the tool was built from; calling the tool calls it."""
    handler: Callable[[Any, ToolContext[Any]], Any]
    """Runs the tool: takes what `parse` returned and the context; a coroutine function if `is_async`."""
    parse: Callable[[str], Any]
    """Parses JSON text to validated arguments; raises `ToolArgsParseError` or `InvalidArgumentsError`."""
    parsers: ArgumentParsers | None = field(default=None, repr=False)
    """The parsers that `parse` is selected from, by `read_only` and `coerce`; None for a custom `parse`."""
    dump: Callable[[Any], dict[str, Any]]
    """Converts validated arguments to JSON values, with defaults: what keys, locks and policies see."""
    write_forms: Callable[[Any, str, Any], tuple[str, str]] | None = field(default=None, repr=False)
    """Writes validated arguments, parsed from a text, as two canonical texts: all values, and those that differ from
    their defaults. None for arguments that are JSON values, with nothing filled in."""
    is_async: bool = True
    takes_context: bool = True
    """Whether the handler uses the context; if it does not, none is built for it."""
    inline: bool = False
    """A sync handler that never blocks, and so needs no worker thread."""
    permission_check: Callable[[dict[str, Any], ToolContext[Any]], Any] | None = None
    """Raises to deny the call. If it passes, the policy still decides."""
    read_only: bool = False
    concurrency_safe: bool = False
    idempotent: bool = False
    durable: bool = False
    """Whether a call is stored with its arguments, so that another worker can finish it."""
    repeatable: bool = False
    """Whether equal calls with other ids are calls of their own, each of which runs: write A, write B, write A."""
    key: tuple[str, ...] | KeyOf | None = None
    """Which arguments make two calls the same call; all of them if unset."""
    lock_key: tuple[str, ...] | KeyOf | None = None
    """Narrows "runs alone" to calls with the same key."""
    verify: Callable[..., Any] | None = None
    """Called to find out whether a call took effect when its outcome is unknown."""
    timeout: float | None = None
    max_output_chars: int | None = None
    max_media_bytes: int | None = None
    """How many bytes the media of a result may have together; the executor's limit if unset."""
    cache_for: float | None = None
    """Seconds for which the result of a read-only call is returned to equal calls of the same customer."""
    cache_public: bool = False
    """Whether a cached result is the same for all customers of a tenant."""
    on_interrupt: OnInterrupt | None = None
    requires_approval: Literal["customer", "operator"] | None = None
    """Who must approve every call, even if the policy allows it."""
    hidden_arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The schemas of arguments that the program fills in: not in `input_schema`, but visible to a policy."""
    defer_loading: bool = False
    """Offered to a model only after `search_tools` has found it."""
    coerce: bool = False
    """Convert arguments of another type (`"5"` for an integer) also for a consequential tool."""
    strict: bool = False
    """Ask the provider to enforce the schema, if it can."""
    examples: tuple[Mapping[str, Any], ...] = ()
    tags: frozenset[str] = frozenset()
    source: str = "local"
    """Where the tool comes from: `local`, `mcp:<server>`, `openapi:<name>`."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    aclose: Callable[[], Awaitable[object]] | None = None
    """Awaited when an executor that has the tool is closed; once for all tools that share it."""
    parameter_metadata: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]], repr=False)
    """The other metadata in the `Annotated[…]` of each parameter, by its name in the schema."""
    unwritable_argument: str | None = field(default=None, repr=False)
    """Which argument JSON does not show; a consequential tool must have none."""
    unbound: bool = False
    """True for a method that is not bound to an instance."""
    wire: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False)
    """A cache for the wire formats."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.description, str) or encodable(self.description) != self.description:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolDefinitionError(f"`{self.name}`: description must be text that can be sent as UTF-8.")
        for flag in (
            "read_only",
            "concurrency_safe",
            "idempotent",
            "durable",
            "repeatable",
            "strict",
            "coerce",
            "inline",
            "cache_public",
        ):
            if type(getattr(self, flag)) is not bool:
                raise ToolDefinitionError(f"`{self.name}`: {flag} must be True or False, not {getattr(self, flag)!r}.")
        for limit in ("timeout", "max_output_chars", "max_media_bytes", "cache_for"):
            value = getattr(self, limit)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise ToolDefinitionError(f"`{self.name}`: {limit} must be a positive number, not {value!r}.")
        if (parsers := self.parsers) is not None:
            # Selected here and nowhere else, so that `dataclasses.replace(tool, read_only=False)` changes the parser.
            if self.parse in (parsers.lenient, parsers.unambiguous, parsers.strict):
                selected = parsers.select(read_only=self.read_only, coerce=self.coerce)
                object.__setattr__(self, "parse", selected)
            else:
                object.__setattr__(self, "parsers", None)
        if self.on_interrupt is not None and self.on_interrupt not in get_args(OnInterrupt):
            allowed = ", ".join(get_args(OnInterrupt))
            raise ToolDefinitionError(
                f"`{self.name}`: on_interrupt must be one of {allowed}, not {self.on_interrupt!r}."
            )
        if self.cache_for is not None and not self.read_only:
            raise ToolDefinitionError(f"`{self.name}`: cache_for needs read_only=True; an effect cannot be cached.")
        if self.durable and self.read_only:
            raise ToolDefinitionError(
                f"`{self.name}`: durable is for consequential tools, and it has read_only=True: leave out one."
            )
        for option in ("key", "lock_key"):
            names = getattr(self, option)
            if isinstance(names, tuple):
                self._check_argument_names(option, cast(tuple[str, ...], names))
        refuse_unwritable(self.name, self.unwritable_argument, read_only=self.read_only)
        if self.repeatable and self.key is not None:
            raise ToolDefinitionError(f"`{self.name}`: repeatable calls have no key; leave one of the two out.")
        for option in ("permission_check", "verify"):
            function = getattr(self, option)
            if function is not None and not callable(function):
                raise ToolDefinitionError(f"`{self.name}`: {option} must be a function, not {function!r}.")
        if self.verify is not None and not _takes_two(self.verify):
            raise ToolDefinitionError(
                f"`{self.name}`: verify must take the arguments and the context, verify(arguments, context), but its "
                f"parameters are {inspect.signature(self.verify)}."
            )

    def _check_argument_names(self, option: str, names: tuple[str, ...]) -> None:
        known = self.input_schema.get("properties")
        if known is None:  # Without declared properties any argument can be there.
            return
        for name in names:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise ToolDefinitionError(f"`{self.name}`: {option} names `{name}`, but its arguments are: {listed}.")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(
        self: "Tool[Concatenate[Instance, Rest], R]", instance: Instance, owner: type[Any]
    ) -> "Tool[Rest, R]": ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> Self: ...
    def __get__(self, instance: object, owner: type[Any]) -> "Tool[..., Any]":
        """Bind the tool of a method to its instance."""
        if instance is None or not self.unbound:
            return self
        handler = self.handler

        def call_method(arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
            return handler({**arguments, "self": instance}, context)

        function = cast(Any, self.function).__get__(instance, owner)
        return replace(cast("Tool[..., Any]", self), function=function, handler=call_method, unbound=False)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @property
    def id(self) -> str:
        """The same as `name`."""
        return self.name

    @property
    def definition_digest(self) -> str:
        """The digest of the tool's definition: an approval of one definition does not hold for another."""
        known = self.wire.get("definition_digest")
        if known is None:
            described = [self.name, self.description, self.input_schema, self.output_schema, self.source]
            flags = [self.read_only, self.idempotent]
            text = json.dumps([described, flags], sort_keys=True, default=str)
            known = self.wire["definition_digest"] = hashlib.sha256(text.encode()).hexdigest()
        return known

    @property
    def consequential(self) -> bool:
        """Whether a call may have an effect; the opposite of `read_only`."""
        return not self.read_only

    def is_read_only(self) -> bool:
        """The harness protocol's form of `read_only`."""
        return self.read_only

    def is_concurrency_safe(self) -> bool:
        """The harness protocol's form of `concurrency_safe`."""
        return self.concurrency_safe

    async def execute(self, payload: Mapping[str, Any] | str, context: ToolContext[Any]) -> ToolResult:
        """Validate the arguments and run the handler, without an executor. Call `check_permissions` first.

        A `ToolError` is returned as a failure; any other exception of the handler is raised.
        """
        started = perf_counter()
        try:
            output = await self.invoke(self.parse(self._as_text(payload)), context)
            if not is_plain(output):
                output = await collect_output(output, max_items=self._max_items)
        except ToolError as error:
            output = ToolResult(error=Failure(code=error.code, message=error.message, retryable=error.retryable))
        except UnusableOutputError as error:
            output = ToolResult(error=Failure(message=f"`{self.name}` ran, but {error}."))
        return finish(output, tool=self, context=context, duration_ms=(perf_counter() - started) * 1000)

    async def check_permissions(self, payload: Mapping[str, Any] | str, context: ToolContext[Any]) -> None:
        """Raise `PermissionError` unless the call is permitted; `InvalidArgumentsError` if its arguments are not valid.

        A tool without a `permission_check` is denied unless it is read-only, so that your own loop fails closed, too.
        """
        if self.permission_check is None:
            if not self.read_only:
                raise PermissionDeniedError(
                    f"`{self.name}` may change something and declares no permission check. "
                    f"Give it permission_check=…, or read_only=True if it changes nothing."
                )
            return
        arguments = self.dump(self.parse(self._as_text(payload)))
        permitted = self.permission_check(arguments, context)
        if inspect.isawaitable(permitted):
            permitted = await permitted
        if permitted is not None and permitted is not True:
            raise PermissionDeniedError(f"The permission check of `{self.name}` refused the call.")

    async def invoke(self, arguments: Any, context: ToolContext[Any]) -> Any:
        """Run the handler with arguments that `parse` returned."""
        if self.is_async:
            return await self.handler(arguments, context)
        if self.inline:
            output = self.handler(arguments, context)
        else:
            output = await asyncio.to_thread(self._run_in_thread, arguments, context)
        # A decorator may wrap a coroutine function in a plain one.
        return await output if inspect.isawaitable(output) else output

    def _run_in_thread(self, arguments: Any, context: ToolContext[Any]) -> Any:
        return collect_iterators(self.handler(arguments, context), max_items=self._max_items)[0]

    @property
    def _max_items(self) -> int:
        return int(self.max_output_chars or MAX_OUTPUT_CHARS)

    def _as_text(self, payload: Mapping[str, Any] | str) -> str:
        if isinstance(payload, str):
            return payload
        given = cast(object, payload)
        try:  # The parser refuses what is not a mapping, like all arguments that are not an object.
            return faithful_json(dict(payload) if isinstance(given, Mapping) else given)
        except ValueError as error:
            raise ToolArgsParseError(f"The arguments cannot be written as JSON: {shorten(str(error))}") from error


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with two positional arguments; one whose parameters are not known can."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def finish(output: Any, *, tool: Tool[..., Any], context: ToolContext[Any], duration_ms: float) -> ToolResult:
    """Build the result of a call from what its handler returned."""
    call = context.call
    call_id, provider_id = (call.id, call.provider_id) if call else ("", None)
    if isinstance(output, MediaPart | list | tuple):
        output = find_media_result(cast(object, output)) or cast(Any, output)
    output = clean_result(output, tool=tool.name) if isinstance(output, ToolResult) else ToolResult(output=output)
    return structs.replace(
        output, call_id=call_id, provider_id=provider_id, tool_name=tool.name, duration_ms=duration_ms
    )


def check_name(name: object) -> None:
    """Refuse a name that no tool can have. Names that only one provider refuses are mapped by its format."""
    if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable() or len(name) > 256:
        raise ToolDefinitionError(
            f"A tool's name is 1 to 256 printable characters, without spaces around them, not {shorten(repr(name))}."
        )
    if ":" in name:
        raise ToolDefinitionError(f"A tool's name cannot contain a colon, which selects by source or tag: {name!r}.")


def refuse_unwritable(name: str, problem: str | None, *, read_only: bool) -> None:
    """Raise for a consequential tool with an argument that JSON does not show; `problem` says which, None if none."""
    if problem is not None and not read_only:
        raise ToolDefinitionError(f"`{name}` cannot be a tool: {problem}, or read_only=True if it changes nothing.")


def find_unwritable_default(defaults: Mapping[str, Any]) -> str | None:
    """A default that JSON cannot represent, with its parameter: approvals, keys and the ledger hold JSON."""
    for parameter, default in defaults.items():
        if default is PydanticUndefined:
            continue
        try:
            json.dumps(to_jsonable_python(default), allow_nan=False)
        except (ValueError, TypeError, RecursionError):
            return f"the default of `{parameter}` cannot be written as JSON, got {shorten(repr(default))}; use None"
    return None


def find_hidden_field(core_schema: Any) -> str | None:
    """Describe a field with `exclude=True`, anywhere in a type: its value is not in the JSON of the arguments."""
    name = next(_find_excluded(core_schema, ""), None)
    return None if name is None else f"the field `{name}` has exclude=True; leave that out"


def _find_excluded(node: Any, name: str) -> Iterator[str]:
    if isinstance(node, dict):
        members = cast(dict[str, Any], node)
        if members.get("serialization_exclude"):
            yield str(members.get("name", name))
        for key, child in members.items():
            if key not in ("default", "metadata"):
                yield from _find_excluded(child, key)
    elif isinstance(node, list):
        for child in cast(list[Any], node):
            yield from _find_excluded(child, name)
