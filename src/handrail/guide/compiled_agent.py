"""The compiled definition of an agent, which all of its turns share."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, Unpack, get_args

from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.text import compact_json, encodable
from handrail.errors import ConfigError
from handrail.guide.journeys import JourneyStates
from handrail.guide.parameters import GuidedTool
from handrail.guide.prefilter import Prefilter
from handrail.guide.relationships import Relationships
from handrail.guide.reply_checks import Effect, build_effect
from handrail.guide.templates import RepliesMode, Template
from handrail.guide.values import CandidateTool, Criticality, Guideline, Term

MAX_TEXT: Final = 10_000
"""The most characters of a condition, an action or a term: they are part of every request to the judge."""
RANK: Final = {"high": 0, "medium": 1, "low": 2}
"""The order in which the calls of one iteration run."""


class GuideSettings(Struct, frozen=True, kw_only=True):
    """Limits and thresholds of planning."""

    max_iterations: int = 3
    """The most iterations of planning in one turn."""
    match_first: int | Literal["always"] = 12
    """Above this number of tools, guidelines are matched first, and only the tools of those that match are sent."""
    max_tools_per_plan: int = 12
    """The most tools in one request after guidelines were matched; tools that overlap stay together."""
    prefilter_above: int = 100
    """Above this number of guidelines, a pre-filter selects the ones that the judge is asked about."""
    prefilter_limit: int = 60
    """How many guidelines the pre-filter selects."""
    judge_timeout: float = 60.0
    """The timeout of one request to the judge, in seconds."""

    def __post_init__(self) -> None:
        for name in ("max_iterations", "max_tools_per_plan", "prefilter_limit"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.match_first != "always" and (not isinstance(self.match_first, int) or self.match_first < 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"match_first must be a number of tools or 'always', got {self.match_first!r}.")
        if not self.judge_timeout > 0:
            raise ConfigError(f"judge_timeout must be more than 0 seconds, got {self.judge_timeout!r}.")


class Variable(Struct, frozen=True, kw_only=True):
    """A value that is part of every request to the judge."""

    name: str
    value: Any = None
    read: Callable[[ToolContext[Any]], Awaitable[Any] | Any] | None = None
    fresh_for: float = 0.0
    """Seconds for which a session caches the result of `read`."""


class Retriever(Struct, frozen=True, kw_only=True):
    """A function that finds text for the reply, while the turn plans."""

    name: str
    find: Callable[[ToolContext[Any]], Awaitable[str] | str]


class Guide(Struct, frozen=True, kw_only=True):
    """The compiled definition of an agent."""

    agent_id: str | None
    instructions: str
    locale: str
    guidelines: tuple[Guideline, ...]
    by_id: Mapping[str, Guideline]
    always: frozenset[str]
    tools: Mapping[str, GuidedTool]
    candidates: Mapping[str, CandidateTool]
    """Each tool as the judge sees it, with all of its guidelines."""
    effects: Mapping[str, Effect]
    """The effects of the consequential tools."""
    in_code: tuple[Guideline, ...]
    """The guidelines whose condition is a function."""
    has_priorities: bool
    has_hidden: bool
    """Whether some parameter is hidden."""
    has_adapters: bool
    """Whether some parameter has an adapter."""
    with_on_match: tuple[Guideline, ...]
    """The guidelines with an `on_match`."""
    relationships: Relationships
    journeys: JourneyStates
    variables: tuple[Variable, ...]
    retrievers: tuple[Retriever, ...]
    terms: Mapping[str, str]
    """The description of each term, with its synonyms."""
    synonyms: Mapping[str, str]
    """The term that each synonym stands for."""
    templates: tuple[Template, ...]
    replies_mode: RepliesMode
    settings: GuideSettings
    prefilter: Prefilter | None
    clock: Callable[[], datetime]


class _Definition(TypedDict):
    """The fields of `Guide` that are taken over unchanged."""

    agent_id: str | None
    instructions: str
    locale: str
    relationships: Relationships
    journeys: JourneyStates
    variables: tuple[Variable, ...]
    retrievers: tuple[Retriever, ...]
    templates: tuple[Template, ...]
    replies_mode: RepliesMode
    settings: GuideSettings
    prefilter: Prefilter | None
    clock: Callable[[], datetime]


def compile_guide(
    *,
    guidelines: Mapping[str, Guideline],
    tools: Mapping[str, GuidedTool],
    terms: Mapping[str, Term],
    **definition: Unpack[_Definition],
) -> Guide:
    """Compile a definition."""
    return Guide(
        guidelines=tuple(guidelines.values()),
        by_id=dict(guidelines),
        always=frozenset(guideline.id for guideline in guidelines.values() if guideline.always),
        tools=tools,
        terms={
            name: term.description + (f" (also called {', '.join(term.synonyms)})" if term.synonyms else "")
            for name, term in terms.items()
        },
        synonyms={synonym: name for name, term in terms.items() for synonym in term.synonyms},
        in_code=tuple(guideline for guideline in guidelines.values() if guideline.matches is not None),
        has_priorities=any(guideline.priority for guideline in guidelines.values()),
        has_hidden=any(tool.hidden for tool in tools.values()),
        has_adapters=any(tool.adapters for tool in tools.values()),
        with_on_match=tuple(guideline for guideline in guidelines.values() if guideline.on_match is not None),
        candidates={
            name: CandidateTool(
                name=name,
                description=guided.tool.description,
                schema=guided.schema,
                guideline_ids=tuple(each.id for each in guidelines.values() if name in each.tools),
                consequential=guided.tool.consequential,
            )
            for name, guided in tools.items()
        },
        effects={
            name: build_effect(name, guided.tool.description)
            for name, guided in tools.items()
            if guided.tool.consequential
        },
        **definition,
    )


def check_guideline(guideline: Guideline) -> None:
    """Refuse a guideline without a condition, or with an unknown criticality."""
    for name in ("condition", "action"):
        check_text(name, getattr(guideline, name))
    if not guideline.condition.strip() and not guideline.always and guideline.matches is None:
        raise ConfigError("condition must not be empty, unless always=True or matches=function.")
    if guideline.matches is not None and (guideline.always or not callable(guideline.matches)):
        raise ConfigError("matches must be a function of the context, and cannot be passed together with always=True.")
    if guideline.on_match is not None and not callable(guideline.on_match):
        raise ConfigError("on_match must be a function of the context.")
    if guideline.criticality not in get_args(Criticality):
        allowed = ", ".join(get_args(Criticality))
        raise ConfigError(f"criticality must be one of {allowed}, got {guideline.criticality!r}.")


def check_variable(variable: Variable) -> Variable:
    """Refuse a variable with both a value and a function, or with a value that is not JSON."""
    check_text("name", variable.name)
    if variable.read is not None and (variable.value is not None or not callable(variable.read)):
        raise ConfigError(f"the variable {variable.name!r} must have a value or a function that reads it, not both.")
    if variable.read is None:
        try:
            compact_json(variable.value)
        except ValueError as error:
            raise ConfigError(f"the value of the variable {variable.name!r} must be JSON: {error}") from error
    return variable


def check_text(name: str, text: object) -> None:
    """Refuse what is not a text of limited length."""
    if not isinstance(text, str):
        raise ConfigError(f"{name} must be a text, got {type(text).__name__}.")
    if len(text) > MAX_TEXT:
        raise ConfigError(f"{name} must be at most {MAX_TEXT} characters, got {len(text)}.")
    if encodable(text) != text:
        raise ConfigError(f"{name} must be text that can be sent as UTF-8.")
