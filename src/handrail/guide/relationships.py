"""The relationships between guidelines: which of those that matched they make active, and which inactive."""

from collections.abc import Iterable, Mapping, Set
from typing import Final, Literal, get_args

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
        return find_reachable(self._linked, ids)

    def find_dependencies(self, ids: Iterable[str]) -> set[str]:
        """Find these guidelines, and all that they depend on."""
        every, alternatives = self._edges["depends_on"], self._edges["depends_on_any"]
        both = {
            guideline_id: (*every.get(guideline_id, ()), *alternatives.get(guideline_id, ()))
            for guideline_id in {*every, *alternatives}
        }
        return find_reachable(both, ids)

    def resolve(self, matched: Iterable[str]) -> "Resolution":
        """Find the active guidelines among those that matched and those that they entail."""
        matched = set(matched)
        if not any(self._edges.values()):
            return Resolution(active=frozenset(matched), reasons={})
        suppressed: dict[str, str] = {}
        while True:
            entailed = find_reachable(self._edges["entails"], matched - suppressed.keys()) - suppressed.keys()
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
            together = find_reachable(within, [name])
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


def find_reachable(edges: Mapping[str, Iterable[str]], start: Iterable[str]) -> set[str]:
    """Find these nodes, and all that edges lead to."""
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
