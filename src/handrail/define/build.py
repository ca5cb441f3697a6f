"""`build_tool` and `as_tool`: a mapping, or anything tool-shaped, is a tool."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, cast, get_type_hints

from handrail.core.context import ToolContext
from handrail.core.tool import Tool, ToolLike
from handrail.define.function import ToolOptions, from_function, normalised
from handrail.errors import ToolDefinitionError
from handrail.schema.raw import from_json_schema
from handrail.schema.signature import caller_namespace

_CHAPTER: Final = {
    "is_read_only": "read_only",
    "is_concurrency_safe": "concurrency_safe",
    "check_permissions": "permission_check",
    "execute": "handler",
}
"""The names of the harness protocol, and ours."""

_KNOWN: Final = frozenset({*get_type_hints(ToolOptions), "input_schema", "output_schema", "handler"})
_MEMBERS: Final = ("name", "description", "input_schema", "execute")


def build_tool(definition: Mapping[str, Any]) -> Tool[..., Any]:
    """Make a tool of a mapping: the harness protocol's names or the fields of `Tool`, with a JSON Schema for the
    arguments.

    A flag that is left out is False, and a key that is not known is an error, so that a misspelt flag opens no hole.
    """
    if not isinstance(definition, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ToolDefinitionError(f"build_tool takes a mapping, not {type(definition).__name__}.")
    given = _renamed(definition)
    missing = [key for key in ("name", "handler", "input_schema") if given.get(key) is None]
    if missing:
        names = ", ".join("execute" if key == "handler" else key for key in missing)
        raise ToolDefinitionError(f"{given.get('name', 'A tool')!r} cannot be built: it has no {names}.")
    for flag in ("read_only", "concurrency_safe"):
        if callable(given.get(flag)):
            given[flag] = given[flag]()
    execute = given.pop("handler")
    if not callable(execute):
        raise ToolDefinitionError(f"`{given['name']}`: execute must be a function, not {execute!r}.")
    arguments = from_json_schema(given.pop("input_schema"))
    return Tool(
        input_schema=arguments.input_schema,
        function=execute,
        handler=_payload_and_context(execute),
        parse=arguments.parse if given.get("read_only") is True else arguments.careful(),
        dump=arguments.dump,
        is_async=inspect.iscoroutinefunction(execute) or inspect.iscoroutinefunction(type(execute).__call__),
        **normalised(given),
    )


def _renamed(definition: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in definition.items():
        name = _CHAPTER.get(key, key)
        if name not in _KNOWN:
            near = difflib.get_close_matches(str(key), [*_KNOWN, *_CHAPTER], n=1)
            hint = f" Did you mean `{near[0]}`?" if near else f" It takes: {', '.join(sorted(_KNOWN | set(_CHAPTER)))}."
            raise ToolDefinitionError(f"build_tool does not know the key {key!r}.{hint}")
        if name in given:
            raise ToolDefinitionError(f"build_tool got `{name}` twice, the second time as {key!r}.")
        given[name] = value
    return given


def _payload_and_context(execute: Callable[..., Any]) -> Callable[[dict[str, Any], ToolContext[Any]], Any]:
    """`execute(payload, context)`, or `execute(payload)` for one that needs no context."""
    try:
        inspect.signature(execute).bind({}, None)
    except TypeError:
        return lambda arguments, context: execute(arguments)
    except ValueError:  # No signature to look at.
        pass
    return lambda arguments, context: execute(arguments, context)


def as_tool(source: object) -> Tool[..., Any]:
    """Make a `Tool` of anything tool-shaped: a tool, a function, an `LLMFunctionTool` class, a mapping, or an object
    with the members of `ToolLike`.
    """
    if isinstance(source, Tool):
        return cast(Tool[..., Any], source)
    if isinstance(source, Mapping):
        return build_tool(cast(Mapping[str, Any], source))
    if isinstance(source, type):
        return _from_class(source)
    if inspect.isroutine(source):
        return from_function(source, namespace=caller_namespace(1))
    if all(hasattr(source, member) for member in _MEMBERS):
        return _from_object(cast(ToolLike, source))
    if callable(source):
        raise ToolDefinitionError(f"{source!r} is callable, but not a function. Wrap it in a function with types.")
    lacking = ", ".join(member for member in _MEMBERS if not hasattr(source, member))
    raise ToolDefinitionError(f"{type(source).__name__} is not tool-shaped: it has no {lacking}.")


def _from_class(source: type[Any]) -> Tool[..., Any]:
    # Asked by name, because the module of `LLMFunctionTool` is only loaded by those who use it.
    make = getattr(source, "model_tool_as_tool", None)
    if make is not None:
        return make()
    if all(hasattr(source, member) for member in _MEMBERS):
        raise ToolDefinitionError(f"Give an instance: {source.__name__}(), not the class.")
    raise ToolDefinitionError(f"The class {source.__name__} is not a tool; it is not an LLMFunctionTool.")


def _from_object(source: ToolLike) -> Tool[..., Any]:
    """An object with the protocol's members; what it leaves out is taken for the worst."""
    optional = (
        "check_permissions",
        "is_read_only",
        "is_concurrency_safe",
        *(set(get_type_hints(ToolOptions)) - {"name"}),
    )
    given = {name: getattr(source, name) for name in optional if hasattr(source, name) and name not in _MEMBERS}
    # Attributes of ours win over the protocol's methods only where the protocol is silent.
    for theirs, ours in _CHAPTER.items():
        if theirs in given:
            given.pop(ours, None)
    return build_tool(
        {
            "name": source.name,
            "description": source.description,
            "input_schema": source.input_schema,
            "execute": source.execute,
            **given,
        }
    )
