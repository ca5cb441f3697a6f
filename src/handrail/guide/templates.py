"""Approved wording: templates of replies, whose fields are filled from the results of a turn."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

from msgspec import Struct, structs
from pydantic_core import from_json

from handrail.core.lazy_loading import LazyPattern
from handrail.core.text import suggest
from handrail.core.values import ToolResult
from handrail.errors import ConfigError, shorten

RepliesMode = Literal["strict", "fluid"]

_FIELD: Final = LazyPattern(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_NAME: Final = LazyPattern(r"[^\W\d][\w-]*(?:\.[\w-]+)*")
_MAX_CHARS: Final = 10_000
_MAX_NUMBER: Final = 10**100


class Template(Struct, frozen=True):
    """An approved text of a reply, such as `Template("Your balance is {get_balance.amount} EUR.")`.

    A field is the output of a tool, a value in it, or a variable. A template with a field that has no value in a turn
    is never sent. Write `{{` for a brace.
    """

    text: str
    id: str = ""
    """If left out, the agent assigns `t1`, `t2`, …"""


class FilledTemplate(Struct, frozen=True, kw_only=True):
    """A template whose fields all have values in this turn."""

    id: str
    text: str


def check_templates(templates: Iterable[Template | str]) -> tuple[Template, ...]:
    """Give every template an id; raises `ConfigError` if one cannot be read."""
    found: dict[str, Template] = {}
    for number, given in enumerate(templates, start=1):
        template = Template(given) if isinstance(given, str) else given
        if not isinstance(template, Template):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"replies must be Template values or texts, got {shorten(repr(given))}.")
        if not isinstance(cast(object, template.text), str) or not template.text.strip():
            raise ConfigError(f"the template {template.id or number!r} must have a text.")
        if len(template.text) > _MAX_CHARS:
            raise ConfigError(f"a template must be at most {_MAX_CHARS} characters, got {len(template.text)}.")
        template = structs.replace(template, id=template.id or f"t{number}")
        if template.id in found or template.id == "none":
            raise ConfigError(f"the id of a template must be unique and not 'none', got {template.id!r}.")
        for field in list_fields(template):
            if not _NAME.compiled.fullmatch(field):
                raise ConfigError(
                    f"the template {template.id!r}: a field must be a tool, a value of its output, such as "
                    f"{{get_balance.amount}}, or a variable, got {shorten(repr(field))}."
                )
        found[template.id] = template
    return tuple(found.values())


def check_fields(template: Template, known: Iterable[str]) -> None:
    """Raise `ConfigError` for a field that is neither a tool nor a variable."""
    names = list(known)
    for field in list_fields(template):
        if (root := field.partition(".")[0]) not in names:
            hint = suggest(root, names, otherwise=".")
            raise ConfigError(f"the template {template.id!r} has an unknown field {field!r}{hint}")


def list_fields(template: Template) -> list[str]:
    """List the fields of a template; a brace alone is a field without a name."""
    return [found[1] or "" for found in _FIELD.compiled.finditer(template.text) if found[0] not in ("{{", "}}")]


def fill_templates(
    templates: Iterable[Template], *, results: Sequence[ToolResult], variables: Mapping[str, Any]
) -> tuple[FilledTemplate, ...]:
    """Fill the templates whose fields all have one value in this turn."""
    found: list[FilledTemplate] = []
    for template in templates:
        values = {field: _find_value(field, results, variables) for field in list_fields(template)}
        if all(value is not None for value in values.values()):
            text = _FIELD.compiled.sub(lambda match, values=values: _replace_field(match, values), template.text)
            found.append(FilledTemplate(id=template.id, text=text))
    return tuple(found)


def _replace_field(match: re.Match[str], values: Mapping[str, str | None]) -> str:
    return match[0][0] if match[0] in ("{{", "}}") else values[match[1]] or ""


def _find_value(field: str, results: Sequence[ToolResult], variables: Mapping[str, Any]) -> str | None:
    """Find the value of a field; None if there is none, or if two results of the turn have different ones."""
    root, _, path = field.partition(".")
    outputs = [result for result in results if result.tool_name == root]
    if not outputs:
        return _format(_follow(variables.get(root), path))
    if not all(result.ok for result in outputs):
        return None
    values = {_format(_read_output(result, path)) for result in outputs}
    return values.pop() if len(values) == 1 else None


def _read_output(result: ToolResult, path: str) -> Any:
    text = result.for_model()
    try:
        value = _follow(from_json(text), path)
    except ValueError:  # It is no JSON, but a text.
        return None if path else text
    return cast(Any, value) if path or isinstance(value, dict | list) else text


def _follow(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        if isinstance(value, Mapping):
            value = cast(Mapping[str, Any], value).get(name)
        elif isinstance(value, list) and name.isdigit() and int(name) < len(cast(list[Any], value)):
            value = cast(list[Any], value)[int(name)]
        else:
            return None
    return value


def _format(value: Any) -> str | None:
    """Format a value for a customer: a text, a number, or a list of them; None for what has no plain form."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, int | float):
        # No customer reads "nan", or a number of thousands of digits, which Python refuses to write.
        return str(value) if -_MAX_NUMBER < value < _MAX_NUMBER else None
    if isinstance(value, list):
        parts = [_format(item) for item in cast(list[Any], value)]
        return ", ".join(part for part in parts if part) if parts and all(parts) else None
    return None
