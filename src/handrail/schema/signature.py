"""Function signatures: what the model fills in, what the caller supplies, and what cannot be a tool."""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pydantic
from typing_extensions import Doc

from handrail.core.context import ToolContext
from handrail.schema.arguments import Arguments, definition_error, from_annotations, output_schema
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


def read(function: Callable[..., Any], *, name: str, namespace: Mapping[str, Any]) -> Signature:
    """Read a function, or raise `ToolDefinitionError` that names the parameter in the way.

    `namespace` holds the names that were visible where the function was defined, for annotations that are still text.
    """
    parameters = dict(inspect.signature(function).parameters)
    self_parameter = _self_parameter(function, parameters)
    if self_parameter:
        del parameters[self_parameter]
    hints = _hints(function, name=name, namespace=namespace)
    documented = describe(function.__doc__)
    context_parameter: str | None = None
    fields: dict[str, Any] = {}
    for parameter in parameters.values():
        if parameter.kind in _NO_SPREAD:
            raise definition_error(name, _NO_SPREAD[parameter.kind].format(parameter.name) + ".")
        if parameter.name not in hints:
            hint = "ToolContext" if parameter.name in ("context", "ctx") else "str"
            raise definition_error(
                name, f"the parameter `{parameter.name}` has no type; write `{parameter.name}: {hint}`, or what it is."
            )
        if _is_context(hints[parameter.name]):
            if context_parameter:
                raise definition_error(name, f"both `{context_parameter}` and `{parameter.name}` want the context.")
            context_parameter = parameter.name
            continue
        fields[parameter.name] = _field(hints[parameter.name], parameter.default)
    arguments = _arguments(fields, name=name)
    _describe_arguments(arguments.input_schema, documented.parameters)
    return Signature(
        summary=documented.summary,
        arguments=arguments,
        context_parameter=context_parameter,
        self_parameter=self_parameter,
        output_schema=output_schema(hints.get("return")),
    )


def _self_parameter(function: Callable[..., Any], parameters: dict[str, inspect.Parameter]) -> str | None:
    """The `self` of a function that was written inside a class."""
    scope = function.__qualname__.rpartition(".")[0]
    first = next(iter(parameters.values()), None)
    if not scope or scope.endswith("<locals>") or inspect.ismethod(function) or first is None:
        return None
    return first.name if first.name == "self" and first.annotation is inspect.Parameter.empty else None


def _hints(function: Callable[..., Any], *, name: str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    target = inspect.unwrap(function)
    try:
        return get_type_hints(target, localns={**namespace, **_own_globals(target)}, include_extras=True)
    except NameError as error:
        culprit = next(
            (f"the parameter `{one}`" for one, text in target.__annotations__.items() if str(error.name) in str(text)),
            "an annotation",
        )
        raise definition_error(name, f"{culprit} refers to `{error.name}`, which is not defined here.") from error
    except (TypeError, SyntaxError) as error:
        raise definition_error(name, f"its annotations cannot be read: {error}") from error


def _own_globals(function: Callable[..., Any]) -> dict[str, Any]:
    return getattr(function, "__globals__", {})


def _is_context(hint: Any) -> bool:
    candidates = [hint, *get_args(hint)]
    return any(one is ToolContext or get_origin(one) is ToolContext for one in candidates)


def _field(hint: Any, default: Any) -> Any:
    """The annotation with its default in it, as Pydantic reads it in a TypedDict."""
    text = next((_text_of(one) for one in get_args(hint)[1:] if _text_of(one)), None) if _is_annotated(hint) else None
    extra: list[Any] = [pydantic.Field(description=text)] if text else []
    if type(default).__module__ == "pydantic.fields":  # `x: int = Field(3, ge=1)`
        extra.append(default)
    elif default is not inspect.Parameter.empty:
        extra.append(pydantic.Field(default=default))
    for one in extra:
        hint = Annotated[hint, one]
    return hint


def _is_annotated(hint: Any) -> bool:
    return get_origin(hint) is Annotated


def _text_of(metadata: object) -> str | None:
    """`Annotated[str, "a text"]` and `Annotated[str, Doc("a text")]` describe an argument too."""
    if isinstance(metadata, Doc):
        return metadata.documentation
    return metadata if isinstance(metadata, str) else None


def _arguments(fields: dict[str, Any], *, name: str) -> Arguments:
    try:
        return from_annotations(fields)
    except pydantic.PydanticUserError as error:
        for parameter, annotation in fields.items():
            try:
                from_annotations({parameter: annotation})
            except pydantic.PydanticUserError as culprit:
                reason = str(culprit).splitlines()[0]
                raise definition_error(name, f"the parameter `{parameter}` has no JSON form: {reason}") from culprit
        raise definition_error(name, str(error).splitlines()[0]) from error


def _describe_arguments(schema: dict[str, Any], texts: Mapping[str, str]) -> None:
    """Put the docstring's words beside the arguments that have none of their own."""
    for parameter, text in texts.items():
        known: dict[str, Any] | None = schema["properties"].get(parameter)
        if known is not None:
            known.setdefault("description", text)


def caller_namespace(depth: int) -> dict[str, Any]:
    """The local names where a decorator was applied, `depth` frames up from the function that calls this one."""
    frame = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
