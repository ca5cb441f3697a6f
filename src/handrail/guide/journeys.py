"""Journeys: state machines over several turns, whose states are guidelines."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.guide.relationships import JourneyStates, Relationships
from handrail.guide.values import Guideline


class JourneyOwner(Protocol):
    """The part of `Agent` that a journey uses."""

    def add_guideline(self, guideline: Guideline) -> Guideline: ...
    def replace_guideline(self, guideline: Guideline) -> None: ...
    def resolve_tool_name(self, tool: str | Tool[..., Any]) -> str: ...
    @property
    def relationships(self) -> Relationships: ...


class Journey:
    """A state machine over several turns. It starts with the state that was added first."""

    def __init__(self, owner: JourneyOwner, *, id: str, title: str, condition: str) -> None:
        self._owner = owner
        self.id = id
        self.title = title
        self.guideline = owner.add_guideline(
            Guideline(id=id, condition=condition, action=f"Follow the journey {title!r}")
        )
        self._states: dict[str, Guideline] = {}
        self._transitions: dict[str, dict[str, str]] = {}
        """The states that follow each state, with their conditions."""

    @property
    def states(self) -> tuple[Guideline, ...]:
        """The states, as guidelines."""
        return tuple(self._states.values())

    async def add_state(
        self, name: str, *, action: str = "", tools: Iterable[str | Tool[..., Any]] = (), condition: str = ""
    ) -> Guideline:
        """Add a state; a state with tools is passed when their results are known."""
        return self.define_state(name, action=action, tools=tools, condition=condition)

    def define_state(
        self, name: str, *, action: str = "", tools: Iterable[str | Tool[..., Any]] = (), condition: str = ""
    ) -> Guideline:
        """Add a state; the sync form of `add_state`."""
        owner, first = self._owner, not self._states
        state = owner.add_guideline(
            Guideline(
                id=f"{self.id}.{name}",
                condition=condition or (self.guideline.condition if first else f"{self._where}, {name} is reached"),
                action=action,
                tools=tuple(owner.resolve_tool_name(tool) for tool in tools),
            )
        )
        self._states[state.id] = state
        owner.relationships.add(state.id, "depends_on", self.id)
        return state

    async def create_guideline(
        self, condition: str, action: str = "", *, tools: Iterable[str | Tool[..., Any]] = (), **fields: Any
    ) -> Guideline:
        """Add a guideline that applies only in this journey; `fields` are further fields of `Guideline`."""
        names = tuple(self._owner.resolve_tool_name(tool) for tool in tools)
        return self.define_guideline(Guideline(condition=condition, action=action, tools=names, **fields))

    def define_guideline(self, guideline: Guideline) -> Guideline:
        """Add a guideline that applies only in this journey; the sync form of `create_guideline`."""
        made = self._owner.add_guideline(guideline)
        self._owner.relationships.add(made.id, "depends_on", self.id)
        return made

    @property
    def _where(self) -> str:
        return f"In the journey {self.title!r}"

    async def add_transition(self, source: Guideline | str, target: Guideline | str, *, condition: str = "") -> None:
        """Add a transition: if a condition applies, or, without one, as soon as the source is done."""
        self.define_transition(source, target, condition=condition)

    def define_transition(self, source: Guideline | str, target: Guideline | str, *, condition: str = "") -> None:
        """Add a transition; the sync form of `add_transition`."""
        start, end = (self._find_state(end) for end in (source, target))
        if start.id == end.id:
            raise ConfigError(f"a transition must lead to another state, got {start.id!r} twice.")
        self._transitions.setdefault(start.id, {})[end.id] = condition
        ways = [
            f"{self._get_name(state_id)} was done" + (f" and {targets[end.id]}" if targets[end.id] else "")
            for state_id, targets in self._transitions.items()
            if end.id in targets
        ]
        changed = Guideline(
            id=end.id,
            condition=f"{self._where}: {'; or '.join(ways)}",
            action=end.action,
            tools=end.tools,
            criticality=end.criticality,
        )
        self._states[end.id] = changed
        self._owner.replace_guideline(changed)
        with suppress(ConfigError):  # A journey may have a cycle; then neither state takes priority.
            self._owner.relationships.add(end.id, "takes_priority_over", start.id)

    def _get_name(self, state_id: str) -> str:
        return state_id.removeprefix(f"{self.id}.")

    def _find_state(self, state: Guideline | str) -> Guideline:
        given = state.id if isinstance(state, Guideline) else state
        known = self._states.get(given) or self._states.get(f"{self.id}.{given}")
        if known is None:
            names = ", ".join(map(self._get_name, self._states)) or "none yet"
            raise ConfigError(f"unknown state {given!r} of the journey {self.title!r}; its states are: {names}.")
        return known

    def compile(self) -> JourneyStates:
        """Compile the states and transitions."""
        sources: dict[str, tuple[str, ...]] = {}
        for start, targets in self._transitions.items():
            for end in targets:
                sources[end] = (*sources.get(end, ()), start)
        return JourneyStates(
            tools={state_id: state.tools for state_id, state in self._states.items()},
            sources=sources,
            following={
                start: tuple(end for end, condition in targets.items() if not condition)
                for start, targets in self._transitions.items()
            },
            roots=dict.fromkeys(self._states, self.id),
            starts=frozenset(list(self._states)[:1]),
        )


def merge_journeys(journeys: Iterable[Journey]) -> JourneyStates:
    """Merge the states of several journeys."""
    every = [journey.compile() for journey in journeys]
    return JourneyStates(
        tools={key: value for item in every for key, value in item.tools.items()},
        sources={key: value for item in every for key, value in item.sources.items()},
        following={key: value for item in every for key, value in item.following.items()},
        roots={key: value for item in every for key, value in item.roots.items()},
        starts=frozenset(start for item in every for start in item.starts),
    )
