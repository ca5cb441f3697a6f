"""Checks the plans of a judge, and turns them into calls: the only place where a verdict becomes a call."""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final, TypedDict, cast

from msgspec import Struct, structs
from pydantic_core import from_json

from handrail.core.context import ToolContext
from handrail.core.log import log
from handrail.core.text import canonical_json, compact_json, encodable, faithful_json
from handrail.core.values import ToolCall
from handrail.errors import InvalidArgumentsError, ToolError, shorten
from handrail.execute.executor import Executor
from handrail.formats.call_parsing import parse_object
from handrail.guide.compiled_agent import RANK, Guide
from handrail.guide.journeys import CallOrder
from handrail.guide.parameters import (
    EvidenceSources,
    GuidedTool,
    adapt_value,
    find_missing_evidence,
    is_known,
    read_enum,
)
from handrail.guide.reply_checks import names_hidden
from handrail.guide.values import (
    Claim,
    Draft,
    GuidelineMatch,
    InvalidData,
    MissingData,
    Plan,
    ToolEvaluation,
    ToolVerdict,
    VerdictState,
)

MAX_MATCHES: Final = 1_000
MAX_VERDICTS: Final = 100
"""The most verdicts that a plan may have."""
MAX_REASON: Final = 500
MAX_REPLY: Final = 100_000
"""The most characters of a draft."""

_STATES: Final = ("needs_to_run", "data_already_in_context", "not_applicable", "cannot_run")
_PLACE: Final = re.compile(r"^- ([^:\n]*): (.*)$", re.MULTILINE)
NO_GUIDELINE_APPLIES = "no guideline that asks for it applies"
NOT_AVAILABLE = "it is not available: it has no handler, or its source is not connected"


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
    said: Mapping[str, Any] = {}
    """What the customer said, where an adapter made another value of it."""

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
        _check_match(match, f"matches[{place}]")
    checked: list[ToolVerdict] = []
    for place, verdict in enumerate(verdicts):
        if not isinstance(verdict, ToolVerdict):
            raise MalformedResponse(f"verdicts[{place}] must be a ToolVerdict, got {type(verdict).__name__}.")
        _check_type(verdict.tool, str, f"verdicts[{place}].tool")
        _check_type(verdict.reason, str, f"verdicts[{place}].reason")
        if verdict.state not in _STATES:
            given = shorten(repr(verdict.state))
            raise MalformedResponse(f"verdicts[{place}].state {given} is no state; one of {', '.join(_STATES)}.")
        if verdict.confirmation not in (None, "yes", "no"):
            raise MalformedResponse(f"verdicts[{place}].confirmation must be 'yes', 'no' or None.")
        checked.append(
            structs.replace(
                verdict,
                arguments=_copy_mapping(verdict.arguments, f"verdicts[{place}].arguments"),
                evidence=_copy_mapping(verdict.evidence, f"verdicts[{place}].evidence"),
            )
        )
    return structs.replace(response, matches=matches, verdicts=tuple(checked))


def check_draft(response: object) -> Draft:
    """Check that a judge's response is a `Draft` with values of the right types; raises `MalformedResponse`."""
    if not isinstance(response, Draft):
        raise MalformedResponse(f"The response must be a Draft, got {type(response).__name__}.")
    given: Any = response
    if not isinstance(given.text, str) or len(given.text) > MAX_REPLY:
        raise MalformedResponse(f"text must be a text of at most {MAX_REPLY} characters.")
    matches = _check_tuple(given.new_matches, "new_matches", MAX_MATCHES)
    for place, match in enumerate(matches):
        if not isinstance(match, str):
            _check_match(match, f"new_matches[{place}]")
    claims = _check_tuple(given.claims, "claims", MAX_MATCHES)
    checked = tuple(
        claim if isinstance(claim, str) else _check_claim(claim, f"claims[{place}]")
        for place, claim in enumerate(claims)
    )
    _check_type(given.template, str, "template")
    if not given.text.strip() and not matches and not given.template:
        raise MalformedResponse("text must not be empty.")
    return structs.replace(response, new_matches=matches, claims=checked)


def _check_match(match: object, place: str) -> None:
    if not isinstance(match, GuidelineMatch):
        raise MalformedResponse(f"{place} must be a GuidelineMatch, got {type(match).__name__}.")
    _check_type(match.guideline_id, str, f"{place}.guideline_id")
    _check_type(match.applies, bool, f"{place}.applies")
    _check_type(match.reason, str, f"{place}.reason")


def _check_claim(claim: object, place: str) -> Claim:
    if not isinstance(claim, Claim):
        raise MalformedResponse(f"{place} must be a Claim or the name of a tool, got {type(claim).__name__}.")
    _check_type(claim.tool, str, f"{place}.tool")
    arguments = _copy_mapping(claim.arguments, f"{place}.arguments")
    try:
        compact_json(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedResponse(f"{place}.arguments must be JSON.") from error
    return structs.replace(claim, arguments=arguments)


def _copy_mapping(value: object, place: str) -> dict[str, Any]:
    """Copy a mapping of a judge: whatever it does when it is read, it does here."""
    _check_type(value, Mapping, place)
    try:
        return dict(cast(Mapping[str, Any], value).items())
    except Exception as error:
        raise MalformedResponse(f"{place} cannot be read: {type(error).__name__}.") from error


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


class AdaptedArguments(Struct, frozen=True, kw_only=True):
    """What the adapters of a tool made of the arguments of one verdict."""

    said: Mapping[str, Any] = {}
    """The values that the judge gave for the parameters with an adapter."""
    problems: Mapping[str, str] = {}
    """Why an adapter could not use a value, by parameter."""


NOT_ADAPTED: Final = AdaptedArguments()


async def adapt_verdicts(
    plan: Plan,
    guide: Guide,
    context: ToolContext[Any],
    executor: Executor,
    *,
    candidates: Iterable[str],
    pending: Sequence[ToolCall],
) -> tuple[Plan, dict[int, AdaptedArguments]]:
    """Return the plan with the values that its calls run with; also what the customer said, by the verdict's index.

    Only verdicts that may become a call of a candidate are adapted, all at once. Arguments that are those of a pending
    call are not adapted a second time.
    """
    wanted = {*candidates, *(call.name for call in pending)} & guide.tools.keys()
    places = [
        place
        for place, verdict in enumerate(plan.verdicts)
        if verdict.tool in wanted
        and verdict.state in ("needs_to_run", "cannot_run")
        and not guide.tools[verdict.tool].adapters.keys().isdisjoint(verdict.arguments)
        and not any(
            call.name == verdict.tool and parse_object(call.arguments_json) == verdict.arguments for call in pending
        )
    ]
    adapted = await asyncio.gather(
        *(
            _adapt_arguments(guide.tools[plan.verdicts[place].tool], plan.verdicts[place], context, executor)
            for place in places
        )
    )
    verdicts, found = list(plan.verdicts), dict[int, AdaptedArguments]()
    for place, (verdict, arguments) in zip(places, adapted, strict=True):
        verdicts[place], found[place] = verdict, arguments
    return structs.replace(plan, verdicts=tuple(verdicts)), found


async def _adapt_arguments(
    tool: GuidedTool, verdict: ToolVerdict, context: ToolContext[Any], executor: Executor
) -> tuple[ToolVerdict, AdaptedArguments]:
    said, values, problems = dict[str, Any](), dict(verdict.arguments), dict[str, str]()
    for name in tool.adapters.keys() & values.keys():
        if (value := values[name]) is None:
            continue
        said[name] = value
        try:
            values[name] = await adapt_value(
                tool.adapters[name], value, context, executor=executor, where=f"{tool.name}.{name}"
            )
        except ToolError as problem:
            problems[name] = shorten(problem.message, MAX_REASON)
    return structs.replace(verdict, arguments=values), AdaptedArguments(said=said, problems=problems)


def check_arguments(
    tool: GuidedTool,
    verdict: ToolVerdict,
    *,
    guideline_ids: tuple[str, ...],
    choices: Mapping[str, Sequence[Any]],
    find_sources: Callable[[], EvidenceSources],
    adapted: AdaptedArguments = NOT_ADAPTED,
) -> CheckedArguments:
    """Check inferred arguments with the tool's own validation and the options of its parameters."""
    given = _drop_nulls(tool, verdict.arguments)
    said = {**given, **adapted.said}
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
        invalid, error = _group_by_parameter(tool, problem, [*tool.properties, *map(str, given)])
        invalid = {name: reason for name, reason in invalid.items() if name not in missing}
        if adapted.problems and not invalid.keys() - adapted.problems.keys():
            error = ""  # The value that could not be adapted is the whole problem.
    except ToolError as problem:
        error = problem.message if not names_hidden(tool, problem.message, ()) else "the arguments are not valid"
    invalid |= adapted.problems
    for name, allowed in choices.items():
        if name in given and name not in invalid and not _is_among(said[name], allowed):
            invalid[name] = "it is not one of the choices"
    if not tool.tool.read_only:
        for name in given:
            if name not in invalid and (
                reason := find_missing_evidence(tool, name, said[name], verdict, find_sources())
            ):
                missing[name] = reason
    if not (missing or invalid or error):
        return CheckedArguments(arguments=given, arguments_json=text, key=key, said=adapted.said)
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
                value=said.get(name),
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
        if value is not None or name not in tool.properties or name in tool.nullable
    }


def _group_by_parameter(
    tool: GuidedTool, problem: InvalidArgumentsError, names: Iterable[str]
) -> tuple[dict[str, str], str]:
    """Group the errors by parameter; also return the error of the arguments as a whole."""
    by_length = sorted(set(names), key=len, reverse=True)
    found: dict[str, str] = {}
    for place, reason in _PLACE.findall(problem.message):
        name = next(
            (known for known in by_length if place == known or place.startswith((f"{known}.", f"{known}["))), None
        )
        if name is not None:
            found.setdefault(name, shorten(reason, MAX_REASON))
    whole = "" if found and all(problem.places) else shorten(problem.message, MAX_REASON)
    if whole and names_hidden(tool, whole, ()):
        whole = "the arguments are not valid together"
    return found, whole


def _is_among(value: Any, allowed: Sequence[Any]) -> bool:
    if isinstance(value, list):
        return all(item in allowed for item in cast(list[Any], value))
    return value in allowed


def _select_reportable(tool: GuidedTool, names: Iterable[str]) -> set[str]:
    """Select the parameters to report: not hidden, not from the context, and of the lowest precedence."""
    asked = [
        name for name in names if not (tool.get_options(name).hidden or tool.get_options(name).source == "context")
    ]
    groups = [tool.get_options(name).precedence for name in asked]
    first = min((group for group in groups if group is not None), default=None)
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
    return read_enum(tool.properties.get(name), tool.tool.input_schema)


class PlannedCall(Struct, frozen=True, kw_only=True):
    """A call that passed every check."""

    tool: str
    arguments: Mapping[str, Any]
    arguments_json: str
    key: str
    guideline_ids: tuple[str, ...]
    rank: int
    reason: str
    ask_operator: str = ""
    """Why an operator has to agree."""
    said: Mapping[str, Any] = {}
    """What the customer said, where an adapter made another value of it."""


class Situation(Struct, frozen=True, kw_only=True):
    """The state of the turn that a plan is checked against."""

    guide: Guide
    iteration: int
    shown: Set[str]
    """The tools that the judge was shown."""
    active: Set[str]
    """The active guidelines."""
    candidates: Sequence[str]
    """Their tools."""
    choices: Mapping[str, Mapping[str, Sequence[Any]] | None]
    """The choices of parameters, by tool; None if they could not be read."""
    done: Set[str]
    """The keys of calls that were made in this turn, or that the customer rejected."""
    known_calls: CallOrder
    """The calls that have a result."""
    ran: Set[str]
    """Tools that were called in this turn."""
    find_sources: Callable[[], EvidenceSources]
    """Finds what evidence may be quoted from; only consequential calls need it."""
    adapted: Mapping[int, AdaptedArguments] = {}
    """What the adapters did, by the index of the verdict."""


class CheckedPlan(Struct, frozen=True, kw_only=True):
    """A plan after the checks: the outcome of each verdict, and the calls to run."""

    evaluations: tuple[ToolEvaluation, ...]
    calls: tuple[PlannedCall, ...]
    """The calls in the order in which they run, the most critical first."""
    missing: tuple[MissingData, ...]
    invalid: tuple[InvalidData, ...]


def build_verdict_keys(plan: Plan, guide: Guide) -> dict[int, str]:
    """Build the key of every verdict with valid arguments, by its index."""
    found: dict[int, str] = {}
    for place, verdict in enumerate(plan.verdicts):
        key = build_call_key(guide, verdict.tool, verdict.arguments)
        if key is not None:
            found[place] = key
    return found


def build_call_key(guide: Guide, tool: str, arguments: Mapping[str, Any] | str) -> str | None:
    """Build the key of a call; None if its arguments are not valid, or there is no such tool."""
    known = guide.tools.get(tool)
    if known is None:
        return None
    try:
        return build_arguments_key(
            known, arguments if isinstance(arguments, str) else render_arguments(known, arguments)
        )
    except (ToolError, ValueError):
        return None


def check_verdicts(plan: Plan, situation: Situation, *, skip: Set[int] = frozenset()) -> CheckedPlan:
    """Check every verdict of a plan; `skip` has the indexes of those that were only about a pending call."""
    return _VerdictChecker(situation).run(plan, skip)


class _VerdictChecker:
    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._evaluations: list[ToolEvaluation] = []
        self._calls: dict[str, PlannedCall] = {}
        self._missing: list[MissingData] = []
        self._invalid: list[InvalidData] = []

    def run(self, plan: Plan, skip: Set[int]) -> CheckedPlan:
        judged: set[str] = set()
        for place, verdict in enumerate(plan.verdicts):
            judged.add(verdict.tool)
            if place not in skip:
                self._check_verdict(verdict, self._situation.adapted.get(place, NOT_ADAPTED))
        self._add_unjudged(judged)
        calls = sorted(
            self._calls.values(), key=lambda call: call.rank
        )  # The sort is stable: equal ranks keep the judge's order.
        return CheckedPlan(
            evaluations=tuple(self._evaluations),
            calls=tuple(calls),
            missing=tuple(self._missing),
            invalid=tuple(self._invalid),
        )

    def _check_verdict(self, verdict: ToolVerdict, adapted: AdaptedArguments) -> None:
        here = self._situation
        tool = here.guide.tools.get(verdict.tool)
        if tool is None or verdict.tool not in here.shown:
            self._add_evaluation(shorten(verdict.tool, 100), "cannot_run", "it is not a candidate")
            return
        asked_by = self._select_guidelines(tool.name)
        reason = _clean_reason(tool, verdict)
        if not asked_by:
            self._add_evaluation(tool.name, "not_applicable", NO_GUIDELINE_APPLIES, verdict=verdict)
        elif verdict.state in ("data_already_in_context", "not_applicable"):
            self._add_evaluation(tool.name, verdict.state, reason, asked_by, verdict)
        elif not tool.runnable:
            self._add_evaluation(tool.name, "cannot_run", NOT_AVAILABLE, asked_by, verdict)
        else:
            self._check_call(tool, verdict, asked_by, reason, adapted)

    def _select_guidelines(self, tool: str) -> tuple[str, ...]:
        """Select the active guidelines that ask for a tool."""
        here = self._situation
        return tuple(
            guideline_id for guideline_id in here.guide.candidates[tool].guideline_ids if guideline_id in here.active
        )

    def _check_call(
        self,
        tool: GuidedTool,
        verdict: ToolVerdict,
        asked_by: tuple[str, ...],
        reason: str,
        adapted: AdaptedArguments,
    ) -> None:
        here = self._situation
        choices = here.choices.get(tool.name, {})
        if choices is None:
            self._add_evaluation(
                tool.name, "cannot_run", "the choices of a parameter could not be read", asked_by, verdict
            )
            return
        checked = check_arguments(
            tool,
            verdict,
            guideline_ids=asked_by,
            choices=choices,
            find_sources=here.find_sources,
            adapted=adapted,
        )
        verdict = structs.replace(verdict, arguments={**verdict.arguments, **adapted.said})
        if verdict.state == "cannot_run" or not checked.ok:
            self._missing += checked.missing
            self._invalid += checked.invalid
            why = "; ".join(filter(None, [reason, _describe_problems(checked)]))
            self._add_evaluation(tool.name, "cannot_run", why, asked_by, verdict)
        elif checked.key in here.done:
            self._add_evaluation(tool.name, "data_already_in_context", "it was called in this turn", asked_by, verdict)
        elif checked.key in self._calls:  # Of identical calls only one runs.
            self._add_evaluation(
                tool.name, "data_already_in_context", "the same call is already planned", asked_by, verdict
            )
        else:
            self._add_call(tool, checked, asked_by, reason)
            self._add_evaluation(tool.name, "needs_to_run", reason, asked_by, verdict)

    def _add_call(self, tool: GuidedTool, checked: CheckedArguments, asked_by: tuple[str, ...], reason: str) -> None:
        by_id = self._situation.guide.by_id
        self._calls[checked.key] = PlannedCall(
            tool=tool.name,
            arguments=checked.arguments,
            arguments_json=checked.arguments_json,
            key=checked.key,
            guideline_ids=asked_by,
            ask_operator=self._find_operator_reason(tool, checked),
            said=checked.said,
            rank=min(RANK[by_id[guideline_id].criticality] for guideline_id in asked_by),
            reason=reason,
        )

    def _select_visible(self, tool: str, verdict: ToolVerdict) -> dict[str, Any]:
        known = self._situation.guide.tools.get(tool)
        hidden = known.hidden if known is not None else frozenset[str]()
        return {name: value for name, value in verdict.arguments.items() if name not in hidden}

    def _find_operator_reason(self, tool: GuidedTool, checked: CheckedArguments) -> str:
        """Find why an operator has to agree: a model filled what only the program may set, and no customer can see."""
        given = checked.arguments
        if not tool.hidden & given.keys() or not tool.tool.consequential:
            return ""
        known = self._situation.find_sources().variables.values()
        filled = [
            name
            for name in given
            if name in tool.hidden and not is_known(given[name], (tool.get_default(name), *known))
        ]
        if not filled:
            return ""
        return f"a model set {', '.join(filled)}, which the customer cannot see"

    def _add_unjudged(self, judged: set[str]) -> None:
        """Add the candidates without a verdict: one that needs no inference runs, unless its result is known."""
        here = self._situation
        for name in here.candidates:
            if name in judged:
                continue
            tool = here.guide.tools[name]
            asked_by = self._select_guidelines(name)
            if name in here.ran:
                self._add_evaluation(name, "data_already_in_context", "it was called in this turn", asked_by)
                continue
            if not tool.needs_no_inference:
                if name in here.shown:
                    state: VerdictState = "not_applicable" if tool.runnable else "cannot_run"
                    reason = "the judge gave no verdict" if tool.runnable else NOT_AVAILABLE
                    self._add_evaluation(name, state, reason, asked_by)
                continue
            key = build_arguments_key(tool, "{}")
            journeys = here.guide.journeys
            states = [
                guideline_id
                for guideline_id in asked_by
                if guideline_id in journeys.roots and journeys.is_done(guideline_id, name, here.known_calls)
            ]
            if key in here.done or len(states) == len(asked_by):  # A state of a journey asks once.
                self._add_evaluation(name, "data_already_in_context", "its result is already there", asked_by)
                continue
            self._add_call(tool, CheckedArguments(key=key), asked_by, "it needs no arguments")
            self._add_evaluation(name, "needs_to_run", "it needs no arguments", asked_by)

    def _add_evaluation(
        self,
        tool: str,
        state: VerdictState,
        reason: str,
        guideline_ids: tuple[str, ...] = (),
        verdict: ToolVerdict | None = None,
    ) -> None:
        self._evaluations.append(
            ToolEvaluation(
                tool=tool,
                state=state,
                arguments=self._select_visible(tool, verdict) if verdict else {},
                reason=reason,
                guideline_ids=guideline_ids,
                iteration=self._situation.iteration,
            )
        )


def _clean_reason(tool: GuidedTool, verdict: ToolVerdict) -> str:
    """Return the judge's reason, unless it names a hidden parameter or its value."""
    values = [verdict.arguments[name] for name in tool.hidden if name in verdict.arguments]
    return "" if names_hidden(tool, verdict.reason, values) else encodable(shorten(verdict.reason, MAX_REASON))


def _describe_problems(checked: CheckedArguments) -> str:
    parts = [checked.error]
    if checked.missing:
        parts.append(f"missing: {', '.join(entry.parameter for entry in checked.missing)}")
    if checked.invalid:
        parts.append(f"invalid: {', '.join(entry.parameter for entry in checked.invalid)}")
    return "; ".join(filter(None, parts))
