"""`build_tool` and `as_tool`: build tools from mappings and from objects with the members of a tool."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import Unpack

from handrail.core.context import ToolContext
from handrail.core.lazy_loading import LazyModule
from handrail.core.tool import Tool, ToolLike
from handrail.define.function import build_from_function, build_unbound_error
from handrail.define.options import NamedToolOptions, normalize_options
from handrail.errors import ToolDefinitionError
from handrail.schema.arguments import Arguments

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")

_HARNESS_NAMES: Final = {
    "is_read_only": "read_only",
    "is_concurrency_safe": "concurrency_safe",
    "check_permissions": "permission_check",
    "execute": "handler",
}
"""The keys of the harness protocol, and the fields of `Tool` that they set."""

_KNOWN_KEYS: Final = frozenset({*NamedToolOptions.__annotations__, "input_schema", "output_schema", "handler"})
_MEMBERS: Final = ("name", "description", "input_schema", "execute")


def build_tool(definition: Mapping[str, Any]) -> Tool[..., Any]:
    """Build a tool from a mapping: the harness protocol's names or the fields of `Tool`, with a JSON Schema for the
    arguments.

    A missing flag is False. An unknown key is an error, so that a misspelt flag is not silently ignored.
    """
    if not isinstance(definition, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ToolDefinitionError(f"build_tool takes a mapping, not {type(definition).__name__}.")
    given = _normalize_keys(definition)
    name = given.get("name") or "(no name)"
    missing = [key for key in ("name", "handler", "input_schema") if given.get(key) is None]
    if missing:
        names = ", ".join("execute" if key == "handler" else key for key in missing)
        raise ToolDefinitionError(f"`{name}` cannot be built: it has no {names}.")
    for flag in ("read_only", "concurrency_safe"):
        if callable(given.get(flag)):
            given[flag] = _evaluate_flag(given[flag], f"`{name}`: {flag}")
    execute = given.pop("handler")
    if not callable(execute):
        raise ToolDefinitionError(f"`{name}`: execute must be a function, not {execute!r}.")
    # The library for JSON Schema is slow to import, and only tools with a schema of their own need it.
    raw: Any = import_module("handrail.schema.json_schema_arguments")
    arguments: Arguments = raw.build_from_json_schema(given.pop("input_schema"), name=name)
    output_schema = given.pop("output_schema", None)
    return Tool(
        input_schema=arguments.input_schema,
        output_schema=None if output_schema is None else copy.deepcopy(output_schema),
        function=execute,
        handler=_build_handler(execute, name=name),
        parse=arguments.parse,
        parsers=arguments.build_parsers(),
        dump=arguments.dump,
        is_async=inspect.iscoroutinefunction(execute) or inspect.iscoroutinefunction(type(execute).__call__),
        **normalize_options(given),
    )


def _normalize_keys(definition: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in definition.items():
        name = _HARNESS_NAMES.get(key, key)
        if name not in _KNOWN_KEYS:
            near = difflib.get_close_matches(str(key), [*_KNOWN_KEYS, *_HARNESS_NAMES], n=1)
            hint = (
                f" Did you mean `{near[0]}`?"
                if near
                else f" It takes: {', '.join(sorted(_KNOWN_KEYS | set(_HARNESS_NAMES)))}."
            )
            raise ToolDefinitionError(f"build_tool does not know the key {key!r}.{hint}")
        if name in given:
            raise ToolDefinitionError(f"build_tool got `{name}` twice, the second time as {key!r}.")
        given[name] = value
    return given


def _evaluate_flag(flag: Callable[[], Any], which: str) -> bool:
    """Evaluate a flag that is a function."""
    try:
        value = flag()
    except TypeError as error:
        raise ToolDefinitionError(f"{which} is called once, without arguments: {error}") from error
    if inspect.iscoroutine(value):
        value.close()
    if type(value) is not bool:
        raise ToolDefinitionError(f"{which} must return True or False, not {value!r}.")
    return value


def _build_handler(execute: Callable[..., Any], *, name: str) -> Callable[[dict[str, Any], ToolContext[Any]], Any]:
    """Build a handler from `execute(payload, context)` or `execute(payload)`."""
    try:
        signature = inspect.signature(execute)
    except ValueError:  # The signature cannot be read.
        return lambda arguments, context: execute(arguments, context)
    _check_parameters(signature, name=name)
    if _can_bind(signature, {}, None):
        return lambda arguments, context: execute(arguments, context)
    if _can_bind(signature, {}):
        return lambda arguments, context: execute(arguments)
    raise ToolDefinitionError(f"`{name}`: execute must take (payload, context), or (payload), not {signature}.")


def _check_parameters(signature: inspect.Signature, *, name: str) -> None:
    """Refuse parameters that would silently get the context, or nothing: `(args, invocation, deps=None)`."""
    kinds = inspect.Parameter
    named = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    extra = named[2:] + [item for item in named[:2] if item.kind is kinds.KEYWORD_ONLY]
    if len(named) > 1 and named[1].default is not kinds.empty and not _is_context_parameter(named[1]):
        extra.append(named[1])
    if extra:
        listed = ", ".join(f"`{item.name}`" for item in extra)
        raise ToolDefinitionError(
            f"`{name}`: execute must take (payload, context), or (payload), not {signature}: nothing fills {listed}."
        )


def _is_context_parameter(parameter: inspect.Parameter) -> bool:
    return parameter.name.lstrip("_") in ("context", "ctx", "") or "ToolContext" in str(parameter.annotation)


def _can_bind(signature: inspect.Signature, *values: object) -> bool:
    try:
        signature.bind(*values)
    except TypeError:
        return False
    return True


def as_tool(source: object, /, **options: Unpack[NamedToolOptions]) -> Tool[..., Any]:
    """Build a `Tool` from a tool, a function, an `LLMFunctionTool` class, a mapping, or an object with the members
    of `ToolLike`.

    The options are those of `@tool`. They come before what the source itself says.
    """
    given = cast(Mapping[str, Any], options)
    if isinstance(source, Tool):
        tool = _require_bound(cast(Tool[..., Any], source))
        return replace(tool, **normalize_options(given)) if given else tool
    if isinstance(source, Mapping):
        return build_tool(_override(cast(Mapping[str, Any], source), given))
    if isinstance(source, type):
        return _build_from_class(source, given)
    if inspect.isroutine(source) or isinstance(source, partial):
        return _require_bound(build_from_function(cast(Callable[..., Any], source), given))
    if all(hasattr(source, member) for member in _MEMBERS):
        return _build_from_object(cast(ToolLike, source), given)
    if callable(source):
        return build_from_function(source, given)
    lacking = ", ".join(member for member in _MEMBERS if not hasattr(source, member))
    raise ToolDefinitionError(f"{type(source).__name__} is not tool-shaped: it has no {lacking}.")


def _require_bound(tool: Tool[..., Any]) -> Tool[..., Any]:
    if tool.unbound:
        raise build_unbound_error(tool.name)
    return tool


def _override(definition: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The definition with options in place of what it says itself, under either name."""
    rest = {key: value for key, value in definition.items() if options.get(_HARNESS_NAMES.get(key, key)) is None}
    return rest | normalize_options(options)


def _build_from_class(source: type[Any], options: Mapping[str, Any]) -> Tool[..., Any]:
    # Found by name, so that the module of `LLMFunctionTool` is only loaded if it is used.
    make = getattr(source, "model_tool_as_tool", None)
    if make is not None:
        return make(**options)
    if all(hasattr(source, member) for member in _MEMBERS):
        raise ToolDefinitionError(f"Give an instance: {source.__name__}(), not the class.")
    raise ToolDefinitionError(f"The class {source.__name__} is not a tool; it is not an LLMFunctionTool.")


def _build_from_object(source: ToolLike, options: Mapping[str, Any]) -> Tool[..., Any]:
    """Build a tool from an object with the protocol's members; a missing flag is False."""
    optional = (*_HARNESS_NAMES, *NamedToolOptions.__annotations__)
    given = {name: getattr(source, name) for name in optional if name not in _MEMBERS and hasattr(source, name)}
    for theirs, ours in _HARNESS_NAMES.items():
        also = given.pop(ours, None) if theirs in given else None
        if theirs.startswith("is_") and also not in (None, True):
            given[theirs] = False  # If the flag and its method disagree, the restrictive one counts.
    definition = {
        "name": source.name,
        "description": source.description,
        "input_schema": source.input_schema,
        "execute": source.execute,
        **given,
    }
    return build_tool(_override(definition, options))
