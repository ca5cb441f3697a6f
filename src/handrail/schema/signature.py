"""Reading function signatures and docstrings: the arguments, the context parameter, and what cannot be a tool."""

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pydantic
from msgspec import Struct
from pydantic_core import SchemaError
from typing_extensions import Doc, TypeAliasType

from handrail.core.context import ToolContext
from handrail.core.text import encodable
from handrail.schema.arguments import Arguments, build_from_annotations
from handrail.schema.pydantic_schema import SCHEMA_ERRORS, build_definition_error, build_output_schema

_UNUSABLE_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "*{} takes any number of values; name the parameters instead",
    inspect.Parameter.VAR_KEYWORD: "**{} takes any name; name the parameters instead",
    inspect.Parameter.POSITIONAL_ONLY: "the parameter `{}` is positional-only, and arguments are passed by name",
}


class Signature(Struct, frozen=True, kw_only=True):
    """The parts of a function that make it a tool."""

    summary: str
    arguments: Arguments
    context_parameter: str | None
    """The parameter that receives the `ToolContext`; it is not in the schema."""
    self_parameter: str | None
    """The first parameter of a method."""
    output_schema: dict[str, Any] | None
    defaults: dict[str, Any]
    """The defaults of the parameters, by their names in the function."""
    metadata: dict[str, tuple[Any, ...]]
    """What stands in the `Annotated[…]` of each parameter, by its name in the schema."""


def unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, without the `functools.partial`s around it."""
    while isinstance(function, partial):
        function = function.func
    return function


def read_signature(function: Callable[..., Any], *, name: str) -> Signature:
    """Read a function; raises `ToolDefinitionError` that names the parameter at fault."""
    plain = unwrap_partial(function)
    unwrapped = inspect.unwrap(plain)
    parameters, returned = _read_parameters(function, name=name)
    self_parameter = _find_self_parameter(unwrapped, parameters)
    if self_parameter:
        del parameters[self_parameter]
    names = _collect_visible_names(unwrapped)
    documented = parse_docstring(plain.__doc__)
    context_parameter: str | None = None
    fields: dict[str, Any] = {}
    metadata: list[tuple[Any, ...]] = []
    defaults: dict[str, Any] = {}
    for parameter in parameters.values():
        _refuse_unusable(parameter, unwrapped, name=name)
        hint = _resolve_annotation(parameter, names, name=name)
        if _is_context(hint):
            if context_parameter:
                raise build_definition_error(
                    name, f"both `{context_parameter}` and `{parameter.name}` take the context."
                )
            context_parameter = parameter.name
            continue
        fields[parameter.name] = _build_field(hint, parameter.default)
        if parameter.default is not inspect.Parameter.empty:
            given: Any = parameter.default
            defaults[parameter.name] = given.get_default(call_default_factory=True) if _is_field(given) else given
        metadata.append(get_args(hint)[1:] if get_origin(hint) is Annotated else ())
    arguments = _build_arguments(fields, name=name)
    _describe_arguments(arguments.input_schema, fields, documented.parameters)
    return Signature(
        summary=documented.summary,
        arguments=arguments,
        context_parameter=context_parameter,
        self_parameter=self_parameter,
        output_schema=_build_output_schema(returned, names),
        defaults=defaults,
        # An argument may have an alias; the order is the same.
        metadata=dict(zip(arguments.input_schema["properties"], metadata, strict=True)),
    )


def _read_parameters(function: Callable[..., Any], *, name: str) -> tuple[dict[str, inspect.Parameter], Any]:
    """The parameters without those that a `partial` sets, and the return annotation."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise build_definition_error(name, "its signature cannot be read.") from error
    held = function.keywords if isinstance(function, partial) else {}
    parameters = {value: parameter for value, parameter in signature.parameters.items() if value not in held}
    return parameters, signature.return_annotation


def _find_self_parameter(function: Callable[..., Any], parameters: dict[str, inspect.Parameter]) -> str | None:
    """The `self` of a function that is defined in a class and not bound to an instance."""
    return "self" if _is_in_class(function) and next(iter(parameters), None) == "self" else None


def _is_in_class(function: Callable[..., Any]) -> bool:
    scope = function.__qualname__.rpartition(".")[0]
    return bool(scope) and not scope.endswith("<locals>") and not inspect.ismethod(function)


def _refuse_unusable(parameter: inspect.Parameter, function: Callable[..., Any], *, name: str) -> None:
    if parameter.kind in _UNUSABLE_KINDS:
        raise build_definition_error(name, _UNUSABLE_KINDS[parameter.kind].format(parameter.name) + ".")
    if parameter.annotation is not inspect.Parameter.empty:
        return
    if parameter.name == "cls" and _is_in_class(function):
        raise build_definition_error(
            name,
            "it is a class method. Leave out @tool, and build the tool from `Class.method` once it is defined.",
        )
    hint = "ToolContext" if parameter.name in ("context", "ctx") else "str"
    raise build_definition_error(
        name, f"the parameter `{parameter.name}` has no type; write `{parameter.name}: {hint}`, or what it is."
    )


def _collect_visible_names(function: Callable[..., Any]) -> dict[str, Any]:
    """The names that string annotations can refer to: globals, and locals of the scope that defines the function."""
    names = dict(getattr(function, "__globals__", {}))
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    code = getattr(function, "__code__", None)
    while frame is not None and (code is None or code not in frame.f_code.co_consts):
        frame = frame.f_back
    scopes: list[Mapping[str, Any]] = []
    while frame is not None and frame.f_locals is not frame.f_globals:
        scopes.append(frame.f_locals)
        # The body of a class is run by the scope that contains it, whose names its methods can use.
        frame = frame.f_back if {"__module__", "__qualname__"} <= set(frame.f_locals) else None
    for scope in reversed(scopes):
        names.update(scope)
    return names


def _resolve_annotation(parameter: inspect.Parameter, names: dict[str, Any], *, name: str) -> Any:
    """The annotation of a parameter, as a type."""
    try:
        return _evaluate_annotation(parameter.annotation, names)
    except NameError as error:
        problem = f"refers to `{error.name}`, which is not defined here"
        raise build_definition_error(name, f"the parameter `{parameter.name}` {problem}.") from error
    except (AttributeError, TypeError, SyntaxError) as error:
        problem = f"has an annotation that cannot be read: {error}"
        raise build_definition_error(name, f"the parameter `{parameter.name}` {problem}") from error


def _evaluate_annotation(annotation: Any, names: dict[str, Any]) -> Any:
    one = SimpleNamespace(__annotations__={"one": annotation})
    return get_type_hints(one, globalns=names, localns=names, include_extras=True)["one"]


def _build_output_schema(annotation: Any, names: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of the return annotation; None if it has none, since no call depends on it."""
    if annotation is inspect.Signature.empty:
        return None
    try:
        return build_output_schema(_evaluate_annotation(annotation, names))
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None


def _is_context(hint: Any) -> bool:
    """Whether a parameter takes the context: `ToolContext[Bank]`, also optional, annotated, or aliased."""
    if isinstance(hint, TypeAliasType):
        return _is_context(hint.__value__)
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_context(get_args(hint)[0])
    if origin in (Union, UnionType):
        return all(item is NoneType or _is_context(item) for item in get_args(hint))
    candidate = origin or hint
    return isinstance(candidate, type) and issubclass(candidate, ToolContext)


def _build_field(hint: Any, default: Any) -> Any:
    """The annotation with its default in it, as Pydantic reads it in a TypedDict."""
    metadata: tuple[Any, ...] = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    text = next((text for member in metadata if (text := _read_description(member))), None)
    extra: list[Any] = [pydantic.Field(description=text)] if text else []
    if _is_field(default):  # `x: int = Field(3, ge=1)`
        extra.append(default)
    elif default is not inspect.Parameter.empty:
        extra.append(pydantic.Field(default=default))
    fields: list[Any] = [member for member in (*metadata, default) if _is_field(member)]
    for field in fields:
        if isinstance(field.validation_alias, str) and field.serialization_alias is None:
            # Keys and policies see the argument under the name by which the model sent it.
            extra.append(pydantic.Field(serialization_alias=field.validation_alias))
    for item in extra:
        hint = Annotated[hint, item]
    return hint


def _is_field(value: Any) -> bool:
    return type(value).__module__ == "pydantic.fields" and type(value).__name__ == "FieldInfo"


def _read_description(metadata: object) -> str | None:
    """`Annotated[str, "a text"]` and `Annotated[str, Doc("a text")]` describe an argument too."""
    if isinstance(metadata, Doc):
        return metadata.documentation
    return metadata if isinstance(metadata, str) else None


def _build_arguments(fields: dict[str, Any], *, name: str) -> Arguments:
    try:
        return build_from_annotations(fields)
    except SCHEMA_ERRORS as error:
        for parameter, annotation in fields.items():
            try:
                build_from_annotations({parameter: annotation})
            except SCHEMA_ERRORS as culprit:
                problem = f"the parameter `{parameter}` has no JSON form: {_shorten_reason(culprit)}."
                raise build_definition_error(name, problem) from culprit
        raise build_definition_error(name, f"{_shorten_reason(error)}.") from error


def _shorten_reason(error: Exception) -> str:
    """The relevant part of Pydantic's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if getattr(error, "code", None) == "class-not-fully-defined":
        return "it refers to a type that is not defined yet"
    text = lines[-1] if isinstance(error, SchemaError) else lines[0]
    return text.partition(". Set `arbitrary_types_allowed")[0].rstrip(".")


def _describe_arguments(schema: dict[str, Any], fields: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Add the docstring's descriptions to the arguments that have none."""
    # An argument may have an alias; the order is the same.
    known: list[dict[str, Any]] = list(schema["properties"].values())
    for parameter, field in zip(fields, known, strict=True):
        if parameter in texts:
            field.setdefault("description", texts[parameter])


class ParsedDocstring(Struct, frozen=True, kw_only=True):
    """A parsed docstring."""

    summary: str
    """The text without its sections, for the model."""
    parameters: dict[str, str]


def parse_docstring(docstring: str | None) -> ParsedDocstring:
    """Parse a docstring of any common style; one that cannot be parsed is kept as plain text."""
    if not docstring:
        return ParsedDocstring(summary="", parameters={})
    import docstring_parser  # noqa: PLC0415  # slow to import; loaded with the first tool

    text = encodable(inspect.cleandoc(docstring))
    try:
        parsed = docstring_parser.parse(f"\n{text}")  # A section on the first line is only found after a newline.
    except docstring_parser.ParseError:
        return ParsedDocstring(summary=text, parameters={})
    parameters = {
        parameter.arg_name: parameter.description.strip() for parameter in parsed.params if parameter.description
    }
    return ParsedDocstring(summary=(parsed.description or "").strip(), parameters=parameters)
