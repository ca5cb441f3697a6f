"""Journeys: state machines over several turns, whose states are guidelines."""

from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct

from handrail.core.tool import Tool
from handrail.errors import ConfigError
from handrail.guide.relationships import Relationships
from handrail.guide.values import Guideline


class JourneyStates(Struct, frozen=True, kw_only=True):
    """The states of all journeys of an agent, by the id of their guideline."""

    tools: Mapping[str, tuple[str, ...]] = {}
    sources: Mapping[str, tuple[str, ...]] = {}
    """The states that lead to each state."""
    following: Mapping[str, tuple[str, ...]] = {}
    """The states that follow each state without a condition."""

    def resolve(self, matched: Iterable[str], done: Set[str]) -> tuple[set[str], dict[str, str]]:
        """Return the guidelines that apply, given the tools that have a result, and why others do not.

        A state waits until the tools of the state before it have results. A state whose tools have results is passed,
        and the states that follow it without a condition apply instead.
        """
        applied, reasons = set(matched), dict[str, str]()
        if not self.tools:
            return applied, reasons
        for one in list(applied):
            if self._is_waiting(one, done):
                applied.discard(one)
                reasons[one] = "a tool before it has no result yet"
        todo = [one for one in applied if one in self.tools]
        passed: set[str] = set()
        while todo:
            one = todo.pop()
            if one in passed or not self._is_passed(one, done):
                continue
            passed.add(one)
            reasons[one] = "its result is already there"
            todo += self.following[one]
            applied |= set(self.following[one])
        for one in self._find_earlier(passed) & applied:
            applied.discard(one)
            reasons[one] = "a later state was reached"
        return applied - passed, reasons

    def _find_earlier(self, states: Set[str]) -> set[str]:
        """Find the states that lead to these, without those that also follow them."""
        before, todo = set[str](), [source for one in states for source in self.sources.get(one, ())]
        while todo:
            one = todo.pop()
            if one not in before:
                before.add(one)
                todo += self.sources.get(one, ())
        return before - {target for one in states for target in self.following.get(one, ())}

    def _is_waiting(self, state: str, done: Set[str]) -> bool:
        sources = self.sources.get(state, ())
        return bool(sources) and all(self._has_tools_left(one, done) for one in sources)

    def _is_passed(self, state: str, done: Set[str]) -> bool:
        return bool(self.tools.get(state) and self.following.get(state)) and not self._has_tools_left(state, done)

    def _has_tools_left(self, state: str, done: Set[str]) -> bool:
        return any(one not in done for one in self.tools.get(state, ()))


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
        owner, first = self._owner, not self._states
        state = owner.add_guideline(
            Guideline(
                id=f"{self.id}.{name}",
                condition=condition or (self.guideline.condition if first else f"{self._where}, {name} is reached"),
                action=action,
                tools=tuple(owner.resolve_tool_name(one) for one in tools),
            )
        )
        self._states[state.id] = state
        owner.relationships.add(state.id, "depends_on", self.id)
        return state

    @property
    def _where(self) -> str:
        return f"In the journey {self.title!r}"

    async def add_transition(self, source: Guideline | str, target: Guideline | str, *, condition: str = "") -> None:
        """Add a transition: if a condition applies, or, without one, as soon as the source is done."""
        start, end = (self._find_state(one) for one in (source, target))
        if start.id == end.id:
            raise ConfigError(f"a transition must lead to another state, got {start.id!r} twice.")
        self._transitions.setdefault(start.id, {})[end.id] = condition
        ways = [
            f"{self._get_name(one)} was done" + (f" and {targets[end.id]}" if targets[end.id] else "")
            for one, targets in self._transitions.items()
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
            tools={one: state.tools for one, state in self._states.items()},
            sources=sources,
            following={
                start: tuple(end for end, condition in targets.items() if not condition)
                for start, targets in self._transitions.items()
            },
        )


def merge_journeys(journeys: Iterable[Journey]) -> JourneyStates:
    """Merge the states of several journeys."""
    every = [one.compile() for one in journeys]
    return JourneyStates(
        tools={key: value for one in every for key, value in one.tools.items()},
        sources={key: value for one in every for key, value in one.sources.items()},
        following={key: value for one in every for key, value in one.following.items()},
    )
