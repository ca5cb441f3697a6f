"""What a docstring says about a function and its parameters."""

import inspect
from dataclasses import dataclass

from handrail.core.text import encodable


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A docstring, taken apart."""

    summary: str
    """The text without its sections: what the model reads."""
    parameters: dict[str, str]


def describe(docstring: str | None) -> Described:
    """Take a docstring of any common style apart; one that cannot be parsed is kept as plain text."""
    if not docstring:
        return Described(summary="", parameters={})
    import docstring_parser  # noqa: PLC0415  # dear; loaded with the first tool

    text = encodable(inspect.cleandoc(docstring))
    try:
        parsed = docstring_parser.parse(f"\n{text}")  # A section in the first line is only seen after another one.
    except docstring_parser.ParseError:
        return Described(summary=text, parameters={})
    parameters = {one.arg_name: one.description.strip() for one in parsed.params if one.description}
    return Described(summary=(parsed.description or "").strip(), parameters=parameters)
