"""Checks the plans of a judge: their structure, and the arguments, choices and evidence of every verdict."""

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
"""The most verdicts that a plan may have."""
MAX_REASON: Final = 500

_STATES: Final = ("needs_to_run", "data_already_in_context", "not_applicable", "cannot_run")
_PLACE: Final = re.compile(r"^- ([^:\n]*): (.*)$", re.MULTILINE)


class _Description(TypedDict):
    parameter: str
    display_name: str
    significance: str


class MalformedResponse(Exception):
    """A judge's response cannot be used; the message tells the judge why."""


class CheckedArguments(Struct, frozen=True, kw_only=True):
    """The arguments of one verdict, and the problems that were found."""

    arguments: Mapping[str, Any] = {}
    arguments_json: str = "{}"
    key: str = ""
    """The same for equal calls; empty unless the arguments are valid."""
    missing: tuple[MissingData, ...] = ()
    invalid: tuple[InvalidData, ...] = ()
    error: str = ""
    """A problem of the arguments as a whole."""

    @property
    def ok(self) -> bool:
        """Whether a call can be made with these arguments."""
        return bool(self.key)


def check_plan(response: object) -> Plan:
    """Check that a judge's response is a `Plan` with values of the right types; raises `MalformedResponse`."""
    if not isinstance(response, Plan):
        raise MalformedResponse(f"The response must be a Plan, got {type(response).__name__}.")
    matches = _check_tuple(response.matches, "matches", MAX_MATCHES)
    verdicts = _check_tuple(response.verdicts, "verdicts", MAX_VERDICTS)
    for place, match in enumerate(matches):
        if not isinstance(match, GuidelineMatch):
            raise MalformedResponse(f"matches[{place}] must be a GuidelineMatch, got {type(match).__name__}.")
        _check_type(match.guideline_id, str, f"matches[{place}].guideline_id")
        _check_type(match.applies, bool, f"matches[{place}].applies")
        _check_type(match.reason, str, f"matches[{place}].reason")
    for place, verdict in enumerate(verdicts):
        if not isinstance(verdict, ToolVerdict):
            raise MalformedResponse(f"verdicts[{place}] must be a ToolVerdict, got {type(verdict).__name__}.")
        _check_type(verdict.tool, str, f"verdicts[{place}].tool")
        _check_type(verdict.reason, str, f"verdicts[{place}].reason")
        _check_type(verdict.arguments, Mapping, f"verdicts[{place}].arguments")
        _check_type(verdict.evidence, Mapping, f"verdicts[{place}].evidence")
        if verdict.state not in _STATES:
            raise MalformedResponse(f"verdicts[{place}].state must be one of {', '.join(_STATES)}.")
        if verdict.confirmation not in (None, "yes", "no"):
            raise MalformedResponse(f"verdicts[{place}].confirmation must be 'yes', 'no' or None.")
    return response


def _check_tuple(value: object, name: str, limit: int) -> tuple[object, ...]:
    if not isinstance(value, tuple | list):
        raise MalformedResponse(f"{name} must be a tuple, got {type(value).__name__}.")
    found = tuple(cast("tuple[object, ...]", value))
    if len(found) > limit:
        raise MalformedResponse(f"{name} must have at most {limit} entries, got {len(found)}.")
    return found


def _check_type(value: object, kind: type[Any], place: str) -> None:
    if not isinstance(value, kind):
        raise MalformedResponse(f"{place} must be a {kind.__name__}, got {type(value).__name__}.")


def check_arguments(
    tool: GuidedTool,
    verdict: ToolVerdict,
    *,
    guideline_ids: tuple[str, ...],
    choices: Mapping[str, Sequence[Any]],
    is_customers_word: Callable[[str], bool],
) -> CheckedArguments:
    """Check inferred arguments with the tool's own validation and the options of its parameters."""
    given = _drop_nulls(tool, verdict.arguments)
    try:
        text = render_arguments(tool, given)
    except ValueError as error:
        return CheckedArguments(error=f"the arguments are not JSON: {shorten(str(error))}")
    missing = {name: "it was not given" for name in tool.required if name not in given}
    invalid: dict[str, str] = {}
    error, key = "", ""
    try:
        key = build_arguments_key(tool, text)
    except InvalidArgumentsError as problem:
        invalid, error = _group_by_parameter(problem, [*tool.properties, *map(str, given)])
        invalid = {name: reason for name, reason in invalid.items() if name not in missing}
    except ToolError as problem:
        error = problem.message
    for name, allowed in choices.items():
        if name in given and name not in invalid and not _is_among(given[name], allowed):
            invalid[name] = "it is not one of the choices"
    if tool.tool.consequential:
        for name in given:
            if name not in invalid and (reason := _find_missing_evidence(tool, name, verdict, is_customers_word)):
                missing[name] = reason
    if not (missing or invalid or error):
        return CheckedArguments(arguments=given, arguments_json=text, key=key)
    reported = _select_reportable(tool, [*missing, *invalid])
    return CheckedArguments(
        arguments=given,
        arguments_json=text,
        missing=tuple(
            MissingData(tool=tool.name, guideline_ids=guideline_ids, reason=reason, **_describe_parameter(tool, name))
            for name, reason in missing.items()
            if name in reported
        ),
        invalid=tuple(
            InvalidData(
                tool=tool.name,
                guideline_ids=guideline_ids,
                reason=reason,
                **_describe_parameter(tool, name),
                value=given.get(name),
                choices=tuple(choices.get(name) or _list_enum_values(tool, name)),
            )
            for name, reason in invalid.items()
            if name in reported
        ),
        error=error or ("" if reported else "a value that the customer cannot give is missing or invalid"),
    )


def render_arguments(tool: GuidedTool, arguments: Mapping[str, Any]) -> str:
    """Render inferred arguments as JSON text; raises `ValueError` if they are not JSON."""
    return faithful_json(_drop_nulls(tool, arguments))


def build_arguments_key(tool: GuidedTool, arguments_json: str) -> str:
    """Build the key of a call from its validated arguments, with defaults; raises `ToolError`."""
    value = tool.tool.parse(arguments_json)
    try:
        canonical = canonical_json(tool.tool.dump(value))
    except Exception as error:  # raised by a type of the developer
        log.error("the arguments of %s could not be serialized", tool.name, exc_info=error)
        raise ToolError("the arguments could not be compared") from error
    # Secret types serialize to asterisks, so the sent text tells two different values apart.
    sent = canonical_json(from_json(arguments_json or "{}")) if "**********" in canonical else ""
    return f"{tool.name}\0{canonical}\0{sent}"


def _drop_nulls(tool: GuidedTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Drop nulls that the schema does not accept: models send them for values that they do not know."""
    return {
        str(name): value
        for name, value in arguments.items()
        if value is not None or name not in tool.properties or _can_be_null(tool.properties[name])
    }


def _can_be_null(node: Any) -> bool:
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
    return any(map(_can_be_null, branches)) if branches else "$ref" not in schema


def _group_by_parameter(problem: InvalidArgumentsError, names: Iterable[str]) -> tuple[dict[str, str], str]:
    """Group the errors by parameter; also return the error of the arguments as a whole."""
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


def _find_missing_evidence(
    tool: GuidedTool, name: str, verdict: ToolVerdict, is_customers_word: Callable[[str], bool]
) -> str | None:
    evidence = verdict.evidence.get(name)
    if not isinstance(evidence, str) or not evidence.strip():
        return "nothing in the conversation supports a value for it"
    if tool.get_options(name).source == "customer" and not is_customers_word(evidence):
        return "the customer has not said it"
    return None


def _select_reportable(tool: GuidedTool, names: Iterable[str]) -> set[str]:
    """Select the parameters to report: not hidden, not from the context, and of the lowest precedence."""
    asked = [
        name for name in names if not (tool.get_options(name).hidden or tool.get_options(name).source == "context")
    ]
    groups = [tool.get_options(name).precedence for name in asked]
    first = min((one for one in groups if one is not None), default=None)
    return {name for name, group in zip(asked, groups, strict=True) if group == first}


def _describe_parameter(tool: GuidedTool, name: str) -> _Description:
    option = tool.get_options(name)
    return {
        "parameter": name,
        "display_name": option.display_name or name.replace("_", " "),
        "significance": option.significance,
    }


def _list_enum_values(tool: GuidedTool, name: str) -> Sequence[Any]:
    """List the values that the schema allows for a parameter."""
    return _read_enum(tool.properties.get(name), tool.tool.input_schema)


def _read_enum(node: Any, root: Mapping[str, Any]) -> Sequence[Any]:
    if not isinstance(node, Mapping):
        return ()
    schema = cast(Mapping[str, Any], node)
    if "enum" in schema:
        return cast(Sequence[Any], schema["enum"])
    if "const" in schema:
        return (schema["const"],)
    if isinstance(target := schema.get("$ref"), str):
        return _read_enum(cast(Mapping[str, Any], root.get("$defs", {})).get(target.rpartition("/")[2]), {})
    branches = cast(Sequence[Any], schema.get("anyOf", schema.get("oneOf", ())))
    return [value for branch in branches for value in _read_enum(branch, root)] or _read_enum(schema.get("items"), root)


def has_hidden_name(tool: GuidedTool, text: str) -> bool:
    """Whether a text names a hidden parameter of a tool."""
    words = normalize_text(text)
    names = (
        name for parameter, one in tool.options.items() if one.hidden for name in (parameter, one.display_name) if name
    )
    return any(normalize_text(name) in words for name in names)


def normalize_text(text: str) -> str:
    """Normalize a text for comparison: no case, no punctuation, single spaces."""
    return f" {_plain(text)} "


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold().replace("_", " ")))
