"""Code checks every verdict: required values, types, choices, unknown arguments, evidence. Nothing runs unchecked."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, cast

from msgspec import Struct
from pydantic_core import from_json

from handrail.core.log import log
from handrail.core.text import canonical_json, faithful_json
from handrail.errors import InvalidArgumentsError, ToolError, shorten
from handrail.guide.parameters import GuidedTool
from handrail.guide.values import GuidelineMatch, InvalidData, MissingData, Plan, ToolVerdict

MAX_MATCHES: Final = 1_000
MAX_VERDICTS: Final = 100
"""How many verdicts one plan may have; one with more is malformed."""
MAX_REASON: Final = 500

_STATES: Final = ("needs_to_run", "data_already_in_context", "not_applicable", "cannot_run")
_PLACE: Final = re.compile(r"^- ([^:\n]*): (.*)$", re.MULTILINE)


class _Description(TypedDict):
    parameter: str
    display_name: str
    significance: str


class MalformedAnswer(Exception):
    """A judge's answer cannot be used; the text says what is wrong with it, for the judge."""


class CheckedArguments(Struct, frozen=True, kw_only=True):
    """The arguments of one verdict, and what is wrong with them."""

    arguments: Mapping[str, Any] = {}
    arguments_json: str = "{}"
    key: str = ""
    """Equal for equal calls; empty unless the arguments are valid."""
    missing: tuple[MissingData, ...] = ()
    invalid: tuple[InvalidData, ...] = ()
    error: str = ""
    """What else is in the way."""

    @property
    def ok(self) -> bool:
        """Whether a call may be made with them."""
        return bool(self.key)


def check_plan(answer: object) -> Plan:
    """What a judge answered, if it is a plan in shape; `MalformedAnswer` names the place that is not."""
    if not isinstance(answer, Plan):
        raise MalformedAnswer(f"The answer must be a Plan, got {type(answer).__name__}.")
    matches = _tuple(answer.matches, "matches", MAX_MATCHES)
    verdicts = _tuple(answer.verdicts, "verdicts", MAX_VERDICTS)
    for place, match in enumerate(matches):
        if not isinstance(match, GuidelineMatch):
            raise MalformedAnswer(f"matches[{place}] must be a GuidelineMatch, got {type(match).__name__}.")
        _check_type(match.guideline_id, str, f"matches[{place}].guideline_id")
        _check_type(match.applies, bool, f"matches[{place}].applies")
        _check_type(match.reason, str, f"matches[{place}].reason")
    for place, verdict in enumerate(verdicts):
        if not isinstance(verdict, ToolVerdict):
            raise MalformedAnswer(f"verdicts[{place}] must be a ToolVerdict, got {type(verdict).__name__}.")
        _check_type(verdict.tool, str, f"verdicts[{place}].tool")
        _check_type(verdict.reason, str, f"verdicts[{place}].reason")
        _check_type(verdict.arguments, Mapping, f"verdicts[{place}].arguments")
        _check_type(verdict.evidence, Mapping, f"verdicts[{place}].evidence")
        if verdict.state not in _STATES:
            raise MalformedAnswer(f"verdicts[{place}].state must be one of {', '.join(_STATES)}.")
        if verdict.confirmation not in (None, "yes", "no"):
            raise MalformedAnswer(f"verdicts[{place}].confirmation must be 'yes', 'no' or None.")
    return answer


def _tuple(value: object, name: str, limit: int) -> tuple[object, ...]:
    if not isinstance(value, tuple | list):
        raise MalformedAnswer(f"{name} must be a tuple, got {type(value).__name__}.")
    found = tuple(cast("tuple[object, ...]", value))
    if len(found) > limit:
        raise MalformedAnswer(f"{name} must have at most {limit} entries, got {len(found)}.")
    return found


def _check_type(value: object, kind: type[Any], place: str) -> None:
    if not isinstance(value, kind):
        raise MalformedAnswer(f"{place} must be a {kind.__name__}, got {type(value).__name__}.")


def check_arguments(
    tool: GuidedTool,
    verdict: ToolVerdict,
    *,
    guideline_ids: tuple[str, ...],
    choices: Mapping[str, Sequence[Any]],
    is_customers_word: Callable[[str], bool],
) -> CheckedArguments:
    """Check what a judge inferred, by the tool's own validation and by the options of its parameters."""
    given = _without_nulls(tool, verdict.arguments)
    try:
        text = arguments_text(tool, given)
    except ValueError as error:
        return CheckedArguments(error=f"the arguments are not JSON: {shorten(str(error))}")
    missing = {name: "it was not given" for name in tool.required if name not in given}
    invalid: dict[str, str] = {}
    error, key = "", ""
    try:
        key = arguments_key(tool, text)
    except InvalidArgumentsError as problem:
        invalid, error = _by_parameter(problem, [*tool.properties, *map(str, given)])
        invalid = {name: reason for name, reason in invalid.items() if name not in missing}
    except ToolError as problem:
        error = problem.message
    for name, allowed in choices.items():
        if name in given and name not in invalid and not _is_among(given[name], allowed):
            invalid[name] = "it is not one of the choices"
    if tool.tool.consequential:
        for name in given:
            if name not in invalid and (reason := _lacks_evidence(tool, name, verdict, is_customers_word)):
                missing[name] = reason
    if not (missing or invalid or error):
        return CheckedArguments(arguments=given, arguments_json=text, key=key)
    reported = _reported(tool, [*missing, *invalid])
    return CheckedArguments(
        arguments=given,
        arguments_json=text,
        missing=tuple(
            MissingData(tool=tool.name, guideline_ids=guideline_ids, reason=reason, **_described(tool, name))
            for name, reason in missing.items()
            if name in reported
        ),
        invalid=tuple(
            InvalidData(
                tool=tool.name,
                guideline_ids=guideline_ids,
                reason=reason,
                **_described(tool, name),
                value=given.get(name),
                choices=tuple(choices.get(name) or _enumerated(tool, name)),
            )
            for name, reason in invalid.items()
            if name in reported
        ),
        error=error or ("" if reported else "a value that the customer cannot give is missing or invalid"),
    )


def arguments_text(tool: GuidedTool, arguments: Mapping[str, Any]) -> str:
    """Inferred arguments as JSON text; `ValueError` if they are not JSON."""
    return faithful_json(_without_nulls(tool, arguments))


def arguments_key(tool: GuidedTool, arguments_json: str) -> str:
    """What is equal for equal calls of a tool: the validated arguments, with their defaults. Raises `ToolError`."""
    value = tool.tool.parse(arguments_json)
    try:
        canonical = canonical_json(tool.tool.dump(value))
    except Exception as error:  # the developer's own types
        log.error("the arguments of %s could not be written down", tool.name, exc_info=error)
        raise ToolError("the arguments could not be compared") from error
    # Where a value hides itself when it is written down, two different ones look the same: tell them apart by the text.
    sent = canonical_json(from_json(arguments_json or "{}")) if "**********" in canonical else ""
    return f"{tool.name}\0{canonical}\0{sent}"


def _without_nulls(tool: GuidedTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without those that are null where the schema takes no null: models write so what they lack."""
    return {
        str(name): value
        for name, value in arguments.items()
        if value is not None or name not in tool.properties or _takes_null(tool.properties[name])
    }


def _takes_null(node: Any) -> bool:
    if not isinstance(node, Mapping):
        return True
    schema = cast(Mapping[str, Any], node)
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind == "null"
    if isinstance(kind, list):
        return "null" in kind
    if "enum" in schema or "const" in schema:
        return None in schema.get("enum", [schema.get("const")])
    branches = cast("list[Any] | None", schema.get("anyOf", schema.get("oneOf")))
    return any(map(_takes_null, branches)) if branches else "$ref" not in schema


def _by_parameter(problem: InvalidArgumentsError, names: Iterable[str]) -> tuple[dict[str, str], str]:
    """What is wrong, by parameter; and what is wrong with the arguments as a whole."""
    by_length = sorted(set(names), key=len, reverse=True)
    found: dict[str, str] = {}
    for place, reason in _PLACE.findall(problem.message):
        name = next((one for one in by_length if place == one or place.startswith((f"{one}.", f"{one}["))), None)
        if name is not None:
            found.setdefault(name, shorten(reason, MAX_REASON))
    whole = "" if found and all(problem.places) else shorten(problem.message, MAX_REASON)
    return found, whole


def _is_among(value: Any, allowed: Sequence[Any]) -> bool:
    if isinstance(value, list):
        return all(one in allowed for one in cast(list[Any], value))
    return value in allowed


def _lacks_evidence(
    tool: GuidedTool, name: str, verdict: ToolVerdict, is_customers_word: Callable[[str], bool]
) -> str | None:
    evidence = verdict.evidence.get(name)
    if not isinstance(evidence, str) or not evidence.strip():
        return "nothing in the conversation supports a value for it"
    if tool.option(name).source == "customer" and not is_customers_word(evidence):
        return "the customer has not said it"
    return None


def _reported(tool: GuidedTool, names: Iterable[str]) -> set[str]:
    """The parameters that may be named: not hidden, not the context's, and of the first open group of precedence."""
    asked = [name for name in names if not (tool.option(name).hidden or tool.option(name).source == "context")]
    groups = [tool.option(name).precedence for name in asked]
    first = min((one for one in groups if one is not None), default=None)
    return {name for name, group in zip(asked, groups, strict=True) if group == first}


def _described(tool: GuidedTool, name: str) -> _Description:
    option = tool.option(name)
    return {
        "parameter": name,
        "display_name": option.display_name or name.replace("_", " "),
        "significance": option.significance,
    }


def _enumerated(tool: GuidedTool, name: str) -> Sequence[Any]:
    """The values that the schema lists for a parameter."""
    return _values(tool.properties.get(name), tool.tool.input_schema)


def _values(node: Any, root: Mapping[str, Any]) -> Sequence[Any]:
    if not isinstance(node, Mapping):
        return ()
    schema = cast(Mapping[str, Any], node)
    if "enum" in schema:
        return cast(Sequence[Any], schema["enum"])
    if "const" in schema:
        return (schema["const"],)
    if isinstance(target := schema.get("$ref"), str):
        return _values(cast(Mapping[str, Any], root.get("$defs", {})).get(target.rpartition("/")[2]), {})
    branches = cast(Sequence[Any], schema.get("anyOf", schema.get("oneOf", ())))
    return [value for branch in branches for value in _values(branch, root)] or _values(schema.get("items"), root)


def hides(tool: GuidedTool, text: str) -> bool:
    """Whether a text about a tool names one of its hidden parameters."""
    words = normalised(text)
    names = (
        name for parameter, one in tool.options.items() if one.hidden for name in (parameter, one.display_name) if name
    )
    return any(normalised(name) in words for name in names)


def normalised(text: str) -> str:
    """A text for comparing: without case, punctuation, and more than one space."""
    return f" {_plain(text)} "


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold().replace("_", " ")))
