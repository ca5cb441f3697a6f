"""Journeys: state machines over several turns, whose states are guidelines; and which state a turn is in."""

from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.guide.relationships import Relationships, find_reachable
from handrail.guide.values import Guideline

CallOrder: TypeAlias = Mapping[tuple[str, str], int]
"""The guidelines and tools of the calls that have a result, with the order of the last one."""


class JourneyStates(Struct, frozen=True, kw_only=True):
    """The states of all journeys of an agent, by the id of their guideline."""

    tools: Mapping[str, tuple[str, ...]] = {}
    sources: Mapping[str, tuple[str, ...]] = {}
    """The states that lead to each state."""
    following: Mapping[str, tuple[str, ...]] = {}
    """The states that follow each state without a condition."""
    roots: Mapping[str, str] = {}
    """The journey of each state."""
    starts: frozenset[str] = frozenset()
    """The states that journeys start with: they wait for nothing, even if a loop leads back to them."""

    def resolve(self, matched: Iterable[str], done: CallOrder) -> tuple[set[str], dict[str, str]]:
        """Return the guidelines that apply, given the calls that have a result, and why others do not.

        A state waits until the calls of the state before it have results. A state whose own calls have results is
        passed, and the states that follow it without a condition apply instead. In a loop, the calls of the time before
        do not count: those of the state before it came later.
        """
        applied, reasons = set(matched), dict[str, str]()
        if not self.tools:
            return applied, reasons
        for guideline_id in list(applied):
            if self._is_waiting(guideline_id, done):
                applied.discard(guideline_id)
                reasons[guideline_id] = "a tool before it has no result yet"
        todo = [guideline_id for guideline_id in applied if guideline_id in self.tools]
        passed: set[str] = set()
        while todo:
            state = todo.pop()
            if state in passed or not self._is_passed(state, done):
                continue
            passed.add(state)
            reasons[state] = "its result is already there"
            todo += self.following[state]
            applied |= set(self.following[state])
        for state in self._find_earlier(passed) & applied:
            applied.discard(state)
            reasons[state] = "a later state was reached"
        return applied - passed, reasons

    def _find_earlier(self, states: Set[str]) -> set[str]:
        """Find the states that lead to these, without those that also follow them."""
        before = find_reachable(self.sources, [source for state in states for source in self.sources.get(state, ())])
        return before - {target for state in states for target in self.following.get(state, ())}

    def _is_waiting(self, state: str, done: CallOrder) -> bool:
        sources = self.sources.get(state, ())
        return (
            bool(sources) and state not in self.starts and all(self._has_tools_left(source, done) for source in sources)
        )

    def _is_passed(self, state: str, done: CallOrder) -> bool:
        return bool(self.tools.get(state) and self.following.get(state)) and not self._has_tools_left(state, done)

    def _has_tools_left(self, state: str, done: CallOrder) -> bool:
        return any(not self.is_done(state, tool, done) for tool in self.tools.get(state, ()))

    def is_done(self, state: str, tool: str, done: CallOrder) -> bool:
        """Whether the call of a state has a result that is not older than those of the states before it."""
        before = [
            done[source, other]
            for source in self.sources.get(state, ())
            for other in self.tools.get(source, ())
            if (source, other) in done
        ]
        return (state, tool) in done and all(done[state, tool] >= order for order in before)


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
