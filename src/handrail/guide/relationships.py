"""Which guidelines are active: relationships, the states of journeys, and what follows from a match."""

from collections.abc import Iterable, Mapping, Set
from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct

from handrail.errors import ConfigError

GuidelineRelation = Literal["entails", "depends_on", "depends_on_any", "takes_priority_over", "disambiguates"]
Relation = Literal["entails", "depends_on", "depends_on_any", "takes_priority_over", "disambiguates", "overlaps"]
RELATIONS: Final = get_args(Relation)
_SUPPRESSING: Final = {
    "takes_priority_over": "{} takes priority",
    "disambiguates": "{} applies: the customer is asked which one is meant",
}


class Relationships:
    """The relationships of one agent. A relationship that would make a cycle is refused."""

    def __init__(self) -> None:
        self._edges: dict[str, dict[str, tuple[str, ...]]] = {kind: {} for kind in get_args(GuidelineRelation)}
        self.alternatives: Mapping[str, tuple[str, ...]] = self._edges["disambiguates"]
        """The guidelines that a guideline disambiguates: the customer is asked which of them is meant."""
        self._overlaps: dict[str, set[str]] = {}
        self._linked: dict[str, set[str]] = {}

    def add(self, source: str, kind: str, target: str) -> None:
        """Add a relationship, between tools for `overlaps`, else between guidelines. Both ids must exist."""
        if kind not in RELATIONS:
            raise ConfigError(f"kind must be one of {', '.join(RELATIONS)}, got {kind!r}.")
        if source == target:
            raise ConfigError(f"{source!r} cannot be related to itself ({kind}).")
        if kind == "overlaps":
            self._overlaps.setdefault(source, set()).add(target)
            self._overlaps.setdefault(target, set()).add(source)
            return
        edges = self._edges[kind]
        if (path := _find_path(edges, target, source)) is not None:
            circle = f" {kind} ".join([source, *path])
            raise ConfigError(f"{source!r} {kind} {target!r} would make a cycle: {circle}.")
        edges[source] = (*edges.get(source, ()), target)
        self._linked.setdefault(source, set()).add(target)
        if kind in ("takes_priority_over", "disambiguates"):
            self._linked.setdefault(target, set()).add(source)

    def find_linked(self, ids: Iterable[str]) -> set[str]:
        """Find these guidelines, and all that are related to them."""
        return _find_reachable(self._linked, ids)

    def find_dependencies(self, ids: Iterable[str]) -> set[str]:
        """Find these guidelines, and all that they depend on."""
        every, alternatives = self._edges["depends_on"], self._edges["depends_on_any"]
        both = {
            guideline_id: (*every.get(guideline_id, ()), *alternatives.get(guideline_id, ()))
            for guideline_id in {*every, *alternatives}
        }
        return _find_reachable(both, ids)

    def resolve(self, matched: Iterable[str]) -> "Resolution":
        """Find the active guidelines among those that matched and those that they entail."""
        matched = set(matched)
        if not any(self._edges.values()):
            return Resolution(active=frozenset(matched), reasons={})
        suppressed: dict[str, str] = {}
        while True:
            entailed = _find_reachable(self._edges["entails"], matched - suppressed.keys()) - suppressed.keys()
            active, unmet = self._drop_unmet(entailed)
            newly = self._find_suppressed(active)
            if not newly:
                break
            suppressed |= newly
        reasons = dict.fromkeys(active - matched, "entailed by another guideline")
        return Resolution(active=frozenset(active), reasons={**reasons, **unmet, **suppressed})

    def _drop_unmet(self, ids: set[str]) -> tuple[set[str], dict[str, str]]:
        """Drop the guidelines that depend on one which is not active; also return why."""
        active, unmet = set(ids), dict[str, str]()
        every, alternatives = self._edges["depends_on"], self._edges["depends_on_any"]
        while True:
            lacking = {
                guideline_id: f"depends on {need}, which does not apply"
                for guideline_id in active
                for need in every.get(guideline_id, ())
                if need not in active
            } | {
                guideline_id: f"depends on one of {', '.join(needs)}, and none applies"
                for guideline_id in active
                if (needs := alternatives.get(guideline_id)) and active.isdisjoint(needs)
            }
            if not lacking:
                return active, unmet
            unmet |= lacking
            active -= lacking.keys()

    def _find_suppressed(self, active: Set[str]) -> dict[str, str]:
        """Find the guidelines that an active one takes priority over, or disambiguates; a suppressed one suppresses
        none."""
        pairs = [
            (guideline_id, other, reason)
            for kind, reason in _SUPPRESSING.items()
            for guideline_id, others in self._edges[kind].items()
            for other in others
            if guideline_id in active and other in active
        ]
        beaten = {other for _, other, _ in pairs}
        return {
            other: reason.format(guideline_id)
            for guideline_id, other, reason in sorted(pairs)
            if guideline_id not in beaten
        }

    def split_into_batches(self, tools: Iterable[str], *, size: int) -> list[tuple[str, ...]]:
        """Split tools into batches of at most `size`, in order; tools that overlap, also indirectly, stay together."""
        names = list(dict.fromkeys(tools))
        present, placed = set(names), set[str]()
        batches: list[list[str]] = []
        for name in names:
            if name in placed:
                continue
            within = {tool: others & present for tool, others in self._overlaps.items() if tool in present}
            together = _find_reachable(within, [name])
            group = [name for name in names if name in together]
            placed |= together
            if batches and len(batches[-1]) + len(group) <= size:
                batches[-1] += group
            else:
                batches.append(group)
        return [tuple(batch) for batch in batches]


class Resolution(Struct, frozen=True, kw_only=True):
    """The active guidelines, and the reasons of those that relationships made active or inactive."""

    active: frozenset[str]
    reasons: Mapping[str, str]


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
        before = _find_reachable(self.sources, [source for state in states for source in self.sources.get(state, ())])
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


def _find_reachable(edges: Mapping[str, Iterable[str]], start: Iterable[str]) -> set[str]:
    found, todo = set[str](), list(start)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += edges.get(node, ())
    return found


def _find_path(edges: Mapping[str, tuple[str, ...]], start: str, end: str) -> list[str] | None:
    """Find a path from one node to another."""
    before: dict[str, str] = {}
    todo = [start]
    while todo:
        node = todo.pop()
        if node == end:
            path = [node]
            while path[-1] != start:
                path.append(before[path[-1]])
            return path[::-1]
        for other in edges.get(node, ()):
            if other not in before and other != start:
                before[other] = node
                todo.append(other)
    return None
