"""The options of a tool, the same for every way to write one; and `ToolFlags`, the value that holds some of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypedDict, cast

from typing_extensions import Unpack

from handrail.core.context import ToolContext
from handrail.core.lazy_loading import LazyModule
from handrail.core.tool import KeyOf, OnInterrupt
from handrail.errors import ToolDefinitionError

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")


class ToolOptions(TypedDict, total=False):
    """What can be said about a tool: as keywords of `@tool`, `as_tool` and `ToolFlags`, and as keys of `build_tool`.

    The table in docs/tools.md is made from these texts.
    """

    read_only: bool
    """The tool changes nothing. Without it, the tool is *consequential*: it may change something, needs an approval,
    and runs at most once."""
    concurrency_safe: bool
    """It can run at the same time as other calls of its session. Without it, it runs alone, in order."""
    idempotent: bool
    """Running it twice has the same effect as once. Without it, it is never retried automatically."""
    durable: bool
    """A call is stored with its arguments before it runs: it outlives its caller and its process, and another worker
    finishes it. The executor needs a store."""
    key: str | Iterable[str] | KeyOf | None
    """Which arguments identify the effect of a call, by name or as a function: two calls of a customer with the same
    key count as one effect, such as the same payment. By default all arguments do."""
    repeatable: bool
    """Calls with equal arguments but different ids all run (write A, write B, write A). Without it, a call with equal
    arguments is a duplicate."""
    lock_key: str | Iterable[str] | KeyOf | None
    """Which arguments identify what the call works on, by name or as a function: it waits only for calls with the same
    lock key, but for those of all sessions. By default it runs alone in its session."""
    permission_check: Callable[[dict[str, Any], ToolContext[Any]], Any] | None
    """A function `(arguments, context)` that denies the call by raising an exception, or by returning anything but
    `None` or `True`. If it passes, the policy still decides."""
    verify: Callable[..., Any] | None
    """A function `(arguments, context)` that finds out whether a call took effect. Without it, an unknown outcome stays
    unknown."""
    timeout: float | None
    """How many seconds the handler may take. By default those of the executor: 30."""
    on_interrupt: OnInterrupt | None
    """What happens to a running call when the conversation is interrupted: `cancel` stops it; `finish` lets it finish;
    `finish_silently` does, too, and marks its result as `silent`; `uninterruptible` also lets a call finish that has
    not started yet, and ignores `cancel(call_id)`. By default `cancel` for read-only tools and `finish` for others."""
    max_output_chars: int | None
    """The length of an output that a model gets at once; the rest can be read with `read_more`."""
    max_media_bytes: int | None
    """The size of the images and files of one result. By default that of the executor: 5,000,000."""
    cache_for: float | None
    """Seconds for which the result of a read-only call is returned to equal calls of the same customer."""
    cache_public: bool
    """A cached result is the same for all customers of a tenant."""
    coerce: bool
    """Arguments of another type are converted, as for read-only tools. Without it, consequential tools convert
    nothing."""
    inline: bool
    """Run a sync handler on the event loop instead of in a thread; it must not block."""
    strict: bool
    """Ask the provider to enforce the schema, if it can."""
    examples: Iterable[Mapping[str, Any]]
    """Example arguments for the model."""
    tags: Iterable[str]
    """Labels to select tools by, as in `tag:shop`."""
    source: str
    """Where the tool comes from, to select by, such as `mcp:github`. By default `local`."""
    metadata: Mapping[str, Any]
    """Values of your own. They never reach a model."""


class NamedToolOptions(ToolOptions, total=False):
    """The options of a tool, and what it is called."""

    name: str
    description: str


class ToolFlags:
    """Options of a tool as a value, for a tool whose function is elsewhere: `declared` and `guard()` of an `Executor`
    take them for tools of another framework, and a tool class has them in `model_tool_flags`.

    The options are those of `@tool`. A tool of which nothing is said is consequential.
    """

    __slots__ = ("_options",)

    def __init__(self, **options: Unpack[ToolOptions]) -> None:
        if named := options.keys() & {"name", "description"}:
            raise ToolDefinitionError(f"ToolFlags have no {sorted(named)[0]}: the tool has one already.")
        self._options = normalize_options(options)

    @classmethod
    def from_annotations(cls, annotations: Mapping[str, Any]) -> Self:
        """What the annotations of an MCP tool say (`readOnlyHint`, `idempotentHint`): only where they are trusted."""
        read_only = annotations.get("readOnlyHint") is True
        is_idempotent = annotations.get("idempotentHint") is True
        return cls(read_only=read_only, concurrency_safe=read_only, idempotent=is_idempotent)

    def to_options(self) -> dict[str, Any]:
        """The options that were given, in the form that `Tool` has."""
        return dict(self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolFlags) and self._options == other._options

    def __hash__(self) -> int:
        return hash(frozenset(self._options))  # Some values cannot be hashed.

    def __repr__(self) -> str:
        return f"ToolFlags({', '.join(f'{name}={value!r}' for name, value in self._options.items())})"


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options to the types that `Tool` has: tuples of names, frozen sets of tags. None is left out."""
    copy = {name: value for name, value in options.items() if value is not None}
    for name in copy:
        if name not in NamedToolOptions.__annotations__:
            known = list(NamedToolOptions.__annotations__)
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(known)}."
            raise ToolDefinitionError(f"A tool has no option {name!r}. {hint}")
    for name in ("key", "lock_key"):
        given = copy.get(name)
        if given is not None and not callable(given):
            copy[name] = _check_items(str, (given,) if isinstance(given, str) else given, name)
    if "tags" in copy:
        copy["tags"] = frozenset(_check_items(str, copy["tags"], "tags"))
    if "examples" in copy:
        copy["examples"] = _check_items(Mapping, copy["examples"], "examples")
    return copy


def _check_items(kind: type[Any], given: Any, name: str) -> tuple[Any, ...]:
    is_list = isinstance(given, Iterable) and not isinstance(given, str | Mapping)
    listed = tuple(cast(Iterable[Any], given)) if is_list else ()
    if (given and not listed) or not all(isinstance(item, kind) for item in listed):
        raise ToolDefinitionError(f"{name} must be a list of {kind.__name__}, not {given!r}.")
    return listed
