"""Says what could be better about a tool: what a model cannot know, and what nobody can recognise again."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from msgspec import Struct

from handrail.core.tool import Tool

_MIN_DESCRIPTION: Final = 20
"""Characters below which a description says little more than the name."""


class LintProblem(Struct, frozen=True, kw_only=True):
    """Something about one tool."""

    tool: str
    text: str


def lint_tool(tool: Tool[..., Any]) -> Iterator[LintProblem]:
    """What could be better about a tool, whatever provider it is for."""
    description = tool.description.strip()
    if not description:
        yield LintProblem(tool=tool.name, text="has no description: a model knows its name only; write a docstring")
    elif len(description) < _MIN_DESCRIPTION or description.lower().replace("_", " ") == tool.name.replace("_", " "):
        yield LintProblem(tool=tool.name, text=f"its description is thin: {description!r}; say when to call it")
    properties = tool.input_schema.get("properties", {})
    if isinstance(properties, Mapping):
        for name, schema in cast(Mapping[str, Any], properties).items():
            if isinstance(schema, Mapping) and not _says_something(cast(Mapping[str, Any], schema)):
                yield LintProblem(tool=tool.name, text=f"the argument {name!r} has neither a description nor a type")
    if tool.read_only:
        return
    if tool.key is None and not tool.repeatable:
        yield LintProblem(
            tool=tool.name,
            text="is consequential and has no key: two calls are the same effect only if all arguments are equal",
        )
    if tool.timeout is None:
        yield LintProblem(tool=tool.name, text="is consequential and has no timeout: it has the executor's")
    if tool.verify is None and not tool.idempotent:
        yield LintProblem(
            tool=tool.name,
            text="is consequential and neither idempotent nor has verify: after a crash an operator has to find out",
        )


def _says_something(schema: Mapping[str, Any]) -> bool:
    return bool(schema.keys() & {"description", "type", "$ref", "enum", "const", "anyOf", "oneOf", "allOf", "title"})
