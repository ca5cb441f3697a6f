"""`@tool`: a function with types and a docstring is a tool."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypedDict, overload

from typing_extensions import TypeVar, Unpack

from handrail.core.context import ToolContext
from handrail.core.tool import KeyOf, OnInterrupt, Tool
from handrail.errors import ToolDefinitionError
from handrail.schema.arguments import definition_error
from handrail.schema.signature import Signature, caller_namespace, read

P = ParamSpec("P")
R = TypeVar("R")


class ToolOptions(TypedDict, total=False):
    """What can be said about a tool beside its function; the fields of `Tool` say what each one means."""

    name: str
    description: str
    permission_check: Callable[[dict[str, Any], ToolContext[Any]], Any] | None
    read_only: bool
    concurrency_safe: bool
    idempotent: bool
    inline: bool
    key: str | Iterable[str] | KeyOf | None
    lock_key: str | Iterable[str] | KeyOf | None
    verify: Callable[..., Any] | None
    timeout: float | None
    max_output_chars: int | None
    cache_for: float | None
    on_interrupt: OnInterrupt | None
    strict: bool
    examples: Iterable[Mapping[str, Any]]
    tags: Iterable[str]
    source: str
    metadata: Mapping[str, Any]


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function: bare, or with options (`@tool(read_only=True, timeout=5)`).

    The name, the description and the arguments come from the function. A parameter annotated `ToolContext` receives the
    context of the call. What cannot be a tool is refused here, with the name of the parameter in the way.
    """
    namespace = caller_namespace(1)
    if function is not None:
        return from_function(function, options, namespace=namespace)

    def decorate(function: Callable[..., Any]) -> Tool[..., Any]:
        return from_function(function, options, namespace=namespace)

    return decorate


def from_function(
    function: Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    *,
    namespace: Mapping[str, Any] | None = None,
) -> Tool[..., Any]:
    """Make a tool of a function; the options are those of `@tool`."""
    if isinstance(function, staticmethod):
        function = function.__func__
    if isinstance(function, classmethod | type) or not callable(function):
        raise ToolDefinitionError(f"@tool takes a function, not {function!r}. Put @tool closest to the `def`.")
    options = normalised(options or {})
    name = options.pop("name", None) or getattr(function, "__name__", type(function).__name__)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise definition_error(name, "it is a generator; return one value, and use context.progress() on the way.")
    signature = read(function, name=name, namespace=namespace or {})
    arguments = signature.arguments
    return Tool(
        name=name,
        description=options.pop("description", None) or signature.summary,
        input_schema=arguments.input_schema,
        output_schema=signature.output_schema,
        function=function,
        handler=_handler(function, signature),
        parse=arguments.parse if options.get("read_only") is True else arguments.careful(),
        dump=arguments.dump,
        is_async=inspect.iscoroutinefunction(function),
        unbound=signature.self_parameter is not None,
        **options,
    )


def _handler(function: Callable[..., Any], signature: Signature) -> Callable[[dict[str, Any], ToolContext[Any]], Any]:
    wants_context = signature.context_parameter
    if wants_context is None:
        return lambda arguments, context: function(**arguments)
    return lambda arguments, context: function(**arguments, **{wants_context: context})


def normalised(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in the shapes that `Tool` holds: tuples of names, frozen sets of tags."""
    copy = dict(options)
    for name in ("key", "lock_key"):
        given = copy.get(name)
        if isinstance(given, str):
            copy[name] = (given,)
        elif given is not None and not callable(given):
            copy[name] = tuple(given)
    for name, shape in (("tags", frozenset), ("examples", tuple)):
        given = copy.get(name)
        if isinstance(given, str | Mapping):
            raise ToolDefinitionError(f"{name} must be a list, not {given!r}.")
        if given is not None:
            copy[name] = shape(given)
    return copy
