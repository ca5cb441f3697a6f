"""Agents from a file, YAML or JSON: guidelines, journeys, options of parameters, templates; errors name the line."""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast

import pydantic
from msgspec import Struct

from handrail.core.text import suggest
from handrail.core.yaml_reader import YamlPath, YamlReader, find_surprise, read_config_file
from handrail.errors import ConfigError
from handrail.guide.journeys import Journey
from handrail.guide.parameters import ParameterOptions
from handrail.guide.relationships import Relation
from handrail.guide.templates import RepliesMode, Template
from handrail.guide.values import Criticality, Guideline, Term

_MAX_VALUES = 100_000


class _Entry(pydantic.BaseModel, extra="forbid", strict=True, defer_build=True):
    """A mapping of the file: it has no other keys, and values of exactly these types."""


class _GuidelineEntry(_Entry):
    condition: str = ""
    action: str = ""
    tools: list[str] = []
    criticality: Criticality = "medium"
    always: bool = False
    priority: int = 0
    track: bool = False
    id: str = ""


class _TermEntry(_Entry):
    description: str
    synonyms: list[str] = []


class _TemplateEntry(_Entry):
    text: str
    id: str = ""


class _ParameterEntry(_Entry):
    display_name: str = ""
    hidden: bool = False
    display: Literal["whole", "masked"] = "whole"
    description: str = ""
    significance: str = ""
    source: Literal["customer", "context", "any", "model"] = "any"
    precedence: int | None = None
    examples: list[Any] = []
    choices: list[Any] | None = None


class _StateEntry(_Entry):
    name: str
    action: str = ""
    tools: list[str] = []
    condition: str = ""


class _TransitionEntry(_Entry):
    source: Annotated[str, pydantic.Field(alias="from")]
    to: str
    condition: str = ""


class _JourneyEntry(_Entry):
    title: str
    condition: str
    id: str = ""
    states: list[_StateEntry]
    transitions: list[_TransitionEntry] = []
    guidelines: list[_GuidelineEntry] = []


class _AgentEntry(_Entry):
    instructions: str = ""
    agent_id: str | None = None
    locale: str = "en"
    guidelines: list[_GuidelineEntry] = []
    relationships: list[tuple[str, Relation, str]] = []
    journeys: list[_JourneyEntry] = []
    variables: dict[str, Any] = {}
    terms: dict[str, str | _TermEntry] = {}
    parameters: dict[str, dict[str, _ParameterEntry]] = {}
    """The options of parameters, by tool and parameter."""
    replies: list[str | _TemplateEntry] = []
    replies_mode: RepliesMode = "fluid"

    # JSON and YAML have no tuples.
    @pydantic.field_validator("relationships", mode="before")
    @classmethod
    def _read_relationships(cls, value: Any) -> Any:
        given = cast(list[Any], value)
        return (
            [tuple(cast(list[Any], entry)) if isinstance(entry, list) else entry for entry in given]
            if isinstance(value, list)
            else value
        )


class DefinedAgent(Protocol):
    """The part of `Agent` that a file defines."""

    def add_guideline(self, guideline: Guideline) -> Guideline: ...
    def add_relationship(self, source: Any, kind: Relation, target: Any) -> None: ...
    def add_journey(self, title: str, condition: str, *, id: str = "") -> Journey: ...
    def add_variable(self, name: str, value: Any) -> object: ...
    def add_term(self, name: str, term: Term) -> None: ...
    def add_parameter_options(self, tool: str, options: Mapping[str, ParameterOptions]) -> None: ...
    def add_template(self, template: Template) -> None: ...


class AgentDefinition(Struct, frozen=True, kw_only=True):
    """What a file defines, and the line of each of its places."""

    file: str
    entry: _AgentEntry
    lines: Mapping[YamlPath, int]

    @property
    def options(self) -> dict[str, Any]:
        """The options of the constructor of `Agent` that the file has."""
        entry = self.entry
        return {
            "instructions": entry.instructions,
            "agent_id": entry.agent_id,
            "locale": entry.locale,
            "replies_mode": entry.replies_mode,
        }

    def apply(self, agent: DefinedAgent) -> None:
        """Add everything that the file defines to an agent; a `ConfigError` names the file and the line."""
        entry = self.entry
        for place, guideline in enumerate(entry.guidelines):
            with self._locate("guidelines", place):
                agent.add_guideline(_build_guideline(guideline))
        for place, journey in enumerate(entry.journeys):
            self._apply_journey(agent, journey, place)
        for place, (source, kind, target) in enumerate(entry.relationships):
            with self._locate("relationships", place):
                agent.add_relationship(source, kind, target)
        for name, value in entry.variables.items():
            with self._locate("variables", name):
                agent.add_variable(name, value)
        for name, term in entry.terms.items():
            with self._locate("terms", name):
                given = _TermEntry(description=term) if isinstance(term, str) else term
                agent.add_term(name, Term(given.description, tuple(given.synonyms)))
        for tool, parameters in entry.parameters.items():
            for parameter, options in parameters.items():
                with self._locate("parameters", tool, parameter):
                    agent.add_parameter_options(
                        tool, {parameter: ParameterOptions(**options.model_dump(exclude_unset=True))}
                    )
        for place, reply in enumerate(entry.replies):
            with self._locate("replies", place):
                given = _TemplateEntry(text=reply) if isinstance(reply, str) else reply
                agent.add_template(Template(given.text, given.id))

    def _apply_journey(self, agent: DefinedAgent, entry: _JourneyEntry, place: int) -> None:
        with self._locate("journeys", place):
            journey = agent.add_journey(entry.title, entry.condition, id=entry.id)
        for number, state in enumerate(entry.states):
            with self._locate("journeys", place, "states", number):
                journey.define_state(state.name, action=state.action, tools=state.tools, condition=state.condition)
        for number, transition in enumerate(entry.transitions):
            with self._locate("journeys", place, "transitions", number):
                journey.define_transition(transition.source, transition.to, condition=transition.condition)
        for number, guideline in enumerate(entry.guidelines):
            with self._locate("journeys", place, "guidelines", number):
                journey.define_guideline(_build_guideline(guideline))

    @contextmanager
    def _locate(self, *place: str | int) -> Generator[None]:
        try:
            yield
        except ConfigError as error:
            raise ConfigError(f"{self.file}:{_find_line(self.lines, place)}: {error.message}") from error


def _build_guideline(entry: _GuidelineEntry) -> Guideline:
    fields: dict[str, Any] = {**entry.model_dump(), "tools": tuple(entry.tools)}
    return Guideline(**fields)


def _find_line(lines: Mapping[YamlPath, int], place: YamlPath) -> int:
    """Find the line of a place, or of the nearest one around it."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 1)


def load_agent_definition(path: str | Path) -> AgentDefinition:
    """Read the definition of an agent; a `ConfigError` names the file and the line."""
    file = Path(path)
    reader = YamlReader(
        read_config_file(file),
        source=str(file),
        max_values=_MAX_VALUES,
        allow_aliases=False,
        check_plain=find_surprise,
    )
    if reader.root is None:
        raise reader.build_error(None, "the file is empty")
    lines: dict[YamlPath, int] = {}
    value = reader.read_value(reader.root, lines)
    _check_plain_types(value, (), str(file), lines)
    try:
        return AgentDefinition(file=str(file), entry=_AgentEntry.model_validate(value), lines=lines)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = first["loc"]
        where = ".".join(map(str, place)) or "the file"
        problem = f"{first['msg']}"
        if first["type"] == "extra_forbidden":
            problem = f"there is no key {place[-1]!r}{suggest(place[-1], _list_keys(place))}"
        end = "" if problem[-1] in ".?" else "."
        raise ConfigError(f"{file}:{_find_line(lines, place)}: {where}: {problem}{end}") from error


def _list_keys(place: YamlPath) -> list[str]:
    """List the keys that the mapping at a place may have."""
    models: dict[str, type[pydantic.BaseModel]] = {
        "guidelines": _GuidelineEntry,
        "states": _StateEntry,
        "transitions": _TransitionEntry,
        "journeys": _JourneyEntry,
        "terms": _TermEntry,
        "parameters": _ParameterEntry,
        "replies": _TemplateEntry,
    }
    known = [part for part in place[:-1] if isinstance(part, str) and part in models]
    model = models[known[-1]] if known else _AgentEntry
    return [field.alias or name for name, field in model.model_fields.items()]


def _check_plain_types(value: Any, place: YamlPath, file: str, lines: Mapping[YamlPath, int]) -> None:
    """Refuse values that JSON does not have, such as bytes of `!!binary`."""
    if isinstance(value, dict):
        for name, item in cast(dict[str, Any], value).items():
            _check_plain_types(item, (*place, name), file, lines)
    elif isinstance(value, list):
        for index, item in enumerate(cast(list[Any], value)):
            _check_plain_types(item, (*place, index), file, lines)
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(
            f"{file}:{_find_line(lines, place)}: {'.'.join(map(str, place))} must be a text, a number, true, false or "
            f"null, got {type(value).__name__}."
        )
