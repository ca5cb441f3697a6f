"""The guidelines that are active in a turn: those that matched, after journeys and relationships."""

from collections.abc import Iterable, Set

from handrail.errors import shorten
from handrail.guide.definition import Guide
from handrail.guide.evaluation import list_candidates
from handrail.guide.values import Guideline, GuidelineMatch


class GuidelineState:
    """Which guidelines matched and are active in one turn, and which tools were candidates because of them."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide
        self._matches: dict[str, GuidelineMatch] = {}
        """The last match of each guideline in this turn."""
        self.active: frozenset[str] = frozenset()
        self._prepared: set[str] = set()
        """Guidelines of calls that an earlier turn prepared: they apply to the reply, and add no candidates."""
        self.considered: set[str] = set()
        """Every tool that was a candidate in this turn."""

    def add_matches(self, matches: Iterable[GuidelineMatch]) -> list[str]:
        """Add what the judge matched; return the ids that it made up."""
        unknown: list[str] = []
        for one in matches:
            if one.guideline_id in self._guide.by_id:
                self._matches[one.guideline_id] = one
            else:
                unknown.append(one.guideline_id)
        return unknown

    def add_prepared(self, guideline_ids: Iterable[str]) -> None:
        """Add the guidelines of a call that an earlier turn prepared."""
        self._prepared.update(one for one in guideline_ids if one in self._guide.by_id)

    def resolve(self, done: Set[str]) -> dict[str, str]:
        """Find the active guidelines, given the tools that have a result; return why others are not active."""
        guide = self._guide
        matched, reasons = guide.journeys.resolve(self.get_matched_ids() | guide.always, done)
        resolution = guide.relationships.resolve(matched)
        self.active = resolution.active
        return {**resolution.reasons, **reasons}

    def get_matched_ids(self) -> set[str]:
        """Return the guidelines that the judge matched."""
        return {one for one, match in self._matches.items() if match.applies}

    def is_rejected(self, guideline_id: str) -> bool:
        """Whether the judge found in this turn that a guideline does not apply."""
        match = self._matches.get(guideline_id)
        return match is not None and not match.applies

    def explain(self, reasons: dict[str, str]) -> dict[str, tuple[bool, str]]:
        """Return whether each guideline that was looked at is active, and why."""
        explained: dict[str, tuple[bool, str]] = {}
        for one in self._guide.guidelines:
            match = self._matches.get(one.id)
            if one.id in self.active or match is not None or one.id in reasons:
                reason = "always" if one.always else match.reason if match else ""
                explained[one.id] = (one.id in self.active, reasons.get(one.id) or shorten(reason, 500))
        return explained

    def consider_candidates(self) -> None:
        """Mark the tools of the active guidelines as candidates of this turn."""
        self.considered.update(self.list_candidates())

    def list_candidates(self) -> list[str]:
        """List the tools of the active guidelines."""
        return list_candidates(self._guide, self.active)

    def list_new_candidates(self) -> list[str]:
        """List the tools of the active guidelines that were no candidates in this turn before."""
        return [one for one in self.list_candidates() if one not in self.considered]

    def list_for_reply(self) -> tuple[Guideline, ...]:
        """List the guidelines that the reply follows."""
        return tuple(one for one in self._guide.guidelines if one.id in self.active | self._prepared)
