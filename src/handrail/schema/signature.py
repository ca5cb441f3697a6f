"""Function signatures: what the model fills in, what the caller supplies, and what cannot be a tool."""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pydantic
from pydantic_core import SchemaError
from typing_extensions import Doc, TypeAliasType

from handrail.core.context import ToolContext
from handrail.schema.arguments import UNUSABLE, Arguments, definition_error, from_annotations, output_schema
from handrail.schema.docstrings import describe

_NO_SPREAD = {
    inspect.Parameter.VAR_POSITIONAL: "*{} takes any number of values; name the parameters instead",
    inspect.Parameter.VAR_KEYWORD: "**{} takes any name; name the parameters instead",
    inspect.Parameter.POSITIONAL_ONLY: "the parameter `{}` is positional-only, and arguments are passed by name",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A function, read as a tool."""

    summary: str
    arguments: Arguments
    context_parameter: str | None
    """The parameter that receives the `ToolContext`; it is not in the schema."""
    self_parameter: str | None
    """The first parameter of a method."""
    output_schema: dict[str, Any] | None
    metadata: dict[str, tuple[Any, ...]]
    """What stands in the `Annotated[…]` of each parameter, by its name in the schema."""


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, without the `functools.partial`s around it."""
    while isinstance(function, partial):
        function = function.func
    return function


def read(function: Callable[..., Any], *, name: str) -> Signature:
    """Read a function, or raise `ToolDefinitionError` that names the parameter in the way."""
    plain = plain_function(function)
    written = inspect.unwrap(plain)
    parameters, returned = _parameters(function, name=name)
    self_parameter = _self_parameter(written, parameters)
    if self_parameter:
        del parameters[self_parameter]
    names = _visible_names(written)
    documented = describe(plain.__doc__)
    context_parameter: str | None = None
    fields: dict[str, Any] = {}
    metadata: list[tuple[Any, ...]] = []
    for parameter in parameters.values():
        _refuse_unusable(parameter, written, name=name)
        hint = _resolved(parameter, names, name=name)
        if _is_context(hint):
            if context_parameter:
                raise definition_error(name, f"both `{context_parameter}` and `{parameter.name}` want the context.")
            context_parameter = parameter.name
            continue
        fields[parameter.name] = _field(hint, parameter.default)
        metadata.append(get_args(hint)[1:] if get_origin(hint) is Annotated else ())
    arguments = _arguments(fields, name=name)
    _describe_arguments(arguments.input_schema, fields, documented.parameters)
    return Signature(
        summary=documented.summary,
        arguments=arguments,
        context_parameter=context_parameter,
        self_parameter=self_parameter,
        output_schema=_output_schema(returned, names),
        # An argument may have an alias; the order is the same.
        metadata=dict(zip(arguments.input_schema["properties"], metadata, strict=True)),
    )


def _parameters(function: Callable[..., Any], *, name: str) -> tuple[dict[str, inspect.Parameter], Any]:
    """The parameters that a call has to fill, and what comes back. What a `partial` holds is not the model's to set."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise definition_error(name, "it has no signature that could be read.") from error
    held = function.keywords if isinstance(function, partial) else {}
    parameters = {one: parameter for one, parameter in signature.parameters.items() if one not in held}
    return parameters, signature.return_annotation


def _self_parameter(written: Callable[..., Any], parameters: dict[str, inspect.Parameter]) -> str | None:
    """The `self` of a function that was written inside a class, and not taken from an instance."""
    return "self" if _in_a_class(written) and next(iter(parameters), None) == "self" else None


def _in_a_class(written: Callable[..., Any]) -> bool:
    scope = written.__qualname__.rpartition(".")[0]
    return bool(scope) and not scope.endswith("<locals>") and not inspect.ismethod(written)


def _refuse_unusable(parameter: inspect.Parameter, written: Callable[..., Any], *, name: str) -> None:
    if parameter.kind in _NO_SPREAD:
        raise definition_error(name, _NO_SPREAD[parameter.kind].format(parameter.name) + ".")
    if parameter.annotation is not inspect.Parameter.empty:
        return
    if parameter.name == "cls" and _in_a_class(written):
        raise definition_error(
            name, "it is a class method. Leave out @tool, and make the tool of `Class.method` when the class is there."
        )
    hint = "ToolContext" if parameter.name in ("context", "ctx") else "str"
    raise definition_error(
        name, f"the parameter `{parameter.name}` has no type; write `{parameter.name}: {hint}`, or what it is."
    )


def _visible_names(written: Callable[..., Any]) -> dict[str, Any]:
    """What annotations that are still text can name: globals, and what is local where the function is being written."""
    names = dict(getattr(written, "__globals__", {}))
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    code = getattr(written, "__code__", None)
    while frame is not None and (code is None or code not in frame.f_code.co_consts):
        frame = frame.f_back
    scopes: list[Mapping[str, Any]] = []
    while frame is not None and frame.f_locals is not frame.f_globals:
        scopes.append(frame.f_locals)
        # The body of a class is run by the scope that it is written in, whose names its methods can use.
        frame = frame.f_back if {"__module__", "__qualname__"} <= set(frame.f_locals) else None
    for scope in reversed(scopes):
        names.update(scope)
    return names


def _resolved(parameter: inspect.Parameter, names: dict[str, Any], *, name: str) -> Any:
    """The annotation of a parameter, as a type."""
    try:
        return _evaluated(parameter.annotation, names)
    except NameError as error:
        problem = f"refers to `{error.name}`, which is not defined here"
        raise definition_error(name, f"the parameter `{parameter.name}` {problem}.") from error
    except (AttributeError, TypeError, SyntaxError) as error:
        problem = f"has an annotation that cannot be read: {error}"
        raise definition_error(name, f"the parameter `{parameter.name}` {problem}") from error


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    one = SimpleNamespace(__annotations__={"one": annotation})
    return get_type_hints(one, globalns=names, localns=names, include_extras=True)["one"]


def _output_schema(annotation: Any, names: dict[str, Any]) -> dict[str, Any] | None:
    """What a tool returns is only told where it can be; unlike a parameter, it is nothing that a call depends on."""
    if annotation is inspect.Signature.empty:
        return None
    try:
        return output_schema(_evaluated(annotation, names))
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None


def _is_context(hint: Any) -> bool:
    """Whether a parameter wants the context: `ToolContext[Bank]`, also optional, annotated, or under another name."""
    if isinstance(hint, TypeAliasType):
        return _is_context(hint.__value__)
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_context(get_args(hint)[0])
    if origin in (Union, UnionType):
        return all(one is NoneType or _is_context(one) for one in get_args(hint))
    candidate = origin or hint
    return isinstance(candidate, type) and issubclass(candidate, ToolContext)


def _field(hint: Any, default: Any) -> Any:
    """The annotation with its default in it, as Pydantic reads it in a TypedDict."""
    metadata: tuple[Any, ...] = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    text = next((text for one in metadata if (text := _text_of(one))), None)
    extra: list[Any] = [pydantic.Field(description=text)] if text else []
    if _is_field(default):  # `x: int = Field(3, ge=1)`
        extra.append(default)
    elif default is not inspect.Parameter.empty:
        extra.append(pydantic.Field(default=default))
    said: list[Any] = [one for one in (*metadata, default) if _is_field(one)]
    for one in said:
        if isinstance(one.validation_alias, str) and one.serialization_alias is None:
            # Keys and policies see the argument under the name by which the model sent it.
            extra.append(pydantic.Field(serialization_alias=one.validation_alias))
    for one in extra:
        hint = Annotated[hint, one]
    return hint


def _is_field(value: Any) -> bool:
    return type(value).__module__ == "pydantic.fields" and type(value).__name__ == "FieldInfo"


def _text_of(metadata: object) -> str | None:
    """`Annotated[str, "a text"]` and `Annotated[str, Doc("a text")]` describe an argument too."""
    if isinstance(metadata, Doc):
        return metadata.documentation
    return metadata if isinstance(metadata, str) else None


def _arguments(fields: dict[str, Any], *, name: str) -> Arguments:
    try:
        return from_annotations(fields)
    except UNUSABLE as error:
        for parameter, annotation in fields.items():
            try:
                from_annotations({parameter: annotation})
            except UNUSABLE as culprit:
                problem = f"the parameter `{parameter}` has no JSON form: {_reason(culprit)}."
                raise definition_error(name, problem) from culprit
        raise definition_error(name, f"{_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """The part of Pydantic's message that helps here."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if getattr(error, "code", None) == "class-not-fully-defined":
        return "it refers to a type that is not defined yet"
    text = lines[-1] if isinstance(error, SchemaError) else lines[0]
    return text.partition(". Set `arbitrary_types_allowed")[0].rstrip(".")


def _describe_arguments(schema: dict[str, Any], fields: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Put the docstring's words beside the arguments that have none of their own."""
    # An argument may have an alias; the order is the same.
    known: list[dict[str, Any]] = list(schema["properties"].values())
    for parameter, one in zip(fields, known, strict=True):
        if parameter in texts:
            one.setdefault("description", texts[parameter])
