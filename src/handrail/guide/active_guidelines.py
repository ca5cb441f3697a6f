"""Which guidelines are active in a turn: what was matched, resolved with relationships, priorities and tracking."""

from collections.abc import Iterable, Mapping, Set

from msgspec import structs

from handrail.chat.conversation import PendingCall
from handrail.errors import shorten
from handrail.guide.compiled_agent import Guide
from handrail.guide.journeys import CallOrder
from handrail.guide.values import Guideline, GuidelineMatch


class ActiveGuidelines:
    """Which guidelines matched and are active in one turn, and which tools were candidates because of them."""

    def __init__(self, guide: Guide, tracked: Iterable[str]) -> None:
        self._guide = guide
        self._tracked = frozenset(tracked)
        """The guidelines whose action was taken in an earlier turn, and is not repeated."""
        self._matches: dict[str, GuidelineMatch] = {}
        """The last match of each guideline in this turn."""
        self._in_code: dict[str, GuidelineMatch] = {}
        self.active: frozenset[str] = frozenset()
        self.candidates: list[str] = []
        """The tools of the active guidelines."""
        self._applying: frozenset[str] = frozenset()
        """The guidelines that apply, with those whose action was already taken."""
        self._prepared: set[str] = set()
        """Guidelines of calls that an earlier turn prepared: they apply to the reply, and add no candidates."""
        self.considered: set[str] = set()
        """Every tool that was a candidate in this turn."""
        self.known_calls: CallOrder = {}
        """The calls that have a result."""

    def add_matches(self, matches: Iterable[GuidelineMatch]) -> list[str]:
        """Add what the judge matched; return the ids that it made up."""
        unknown: list[str] = []
        for match in matches:
            if match.guideline_id in self._guide.by_id:
                self._matches[match.guideline_id] = self._in_code.get(match.guideline_id, match)
            else:
                unknown.append(match.guideline_id)
        return unknown

    def match_in_code(self, matched: Set[str]) -> None:
        """Set the guidelines whose condition in code applies; the judge cannot change that."""
        self._in_code = {
            guideline.id: GuidelineMatch(guideline.id, guideline.id in matched, "decided in code")
            for guideline in self._guide.in_code
        }
        self._matches.update(self._in_code)

    def add_prepared(self, guideline_ids: Iterable[str]) -> None:
        """Add the guidelines of a call that an earlier turn prepared."""
        self._prepared.update(guideline_id for guideline_id in guideline_ids if guideline_id in self._guide.by_id)

    def resolve(self, done: CallOrder) -> dict[str, str]:
        """Find the active guidelines, given the calls that have a result; return why others are not active."""
        guide = self._guide
        self.known_calls = done
        matched, reasons = guide.journeys.resolve(self.get_matched_ids() | guide.always, done)
        resolution = guide.relationships.resolve(matched)
        self._applying, reasons = self._select_priority(resolution.active, reasons)
        taken = {guideline_id for guideline_id in self._applying & self._tracked if guide.by_id[guideline_id].track}
        self.active = self._applying - taken  # What it suppresses stays suppressed.
        reasons |= dict.fromkeys(taken, "its action was already taken")
        self.candidates = list(
            dict.fromkeys(
                tool for guideline in guide.guidelines if guideline.id in self.active for tool in guideline.tools
            )
        )
        return {**resolution.reasons, **reasons}

    def _select_priority(
        self, active: frozenset[str], reasons: Mapping[str, str]
    ) -> tuple[frozenset[str], dict[str, str]]:
        """Keep the guidelines with the highest priority, and those that always apply."""
        guide = self._guide
        if not guide.has_priorities or not active:
            return active, dict(reasons)
        highest = max(guide.by_id[guideline_id].priority for guideline_id in active)
        dropped = {
            guideline_id for guideline_id in active - guide.always if guide.by_id[guideline_id].priority < highest
        }
        return active - dropped, {**reasons, **dict.fromkeys(dropped, "a guideline with a higher priority applies")}

    def get_matched_ids(self) -> set[str]:
        """Return the guidelines that the judge matched."""
        return {guideline_id for guideline_id, match in self._matches.items() if match.applies}

    def find_removed(self, pending: Iterable[PendingCall]) -> dict[str, str]:
        """Find the pending calls whose guidelines the conversation of this turn removes, and why.

        Their guidelines count as matched, because a "yes" is not their condition; but another guideline that takes
        priority removes them, and so does a dependency that does not hold in the turn in which the customer confirms.
        """
        guide, removed = self._guide, dict[str, str]()
        matched, _ = guide.journeys.resolve(self.get_matched_ids() | guide.always, self.known_calls)
        for waiting in pending:
            known = {guideline_id for guideline_id in waiting.call.guideline_ids if guideline_id in guide.by_id}
            assumed = known | {guide.journeys.roots[state] for state in known if state in guide.journeys.roots}
            if waiting.approval.by != "customer":
                assumed = guide.relationships.find_dependencies(assumed)
            resolution = guide.relationships.resolve(matched | assumed)
            active, explained = self._select_priority(resolution.active, resolution.reasons)
            if not known & active:
                reasons = sorted(explained[guideline_id] for guideline_id in known if guideline_id in explained)
                removed[waiting.call.id] = (
                    f"its guideline does not apply any more: {'; '.join(reasons) or 'it is gone'}"
                )
        return removed

    def are_rejected(self, guideline_ids: Iterable[str]) -> bool:
        """Whether the judge found in this turn that none of these guidelines applies."""
        found = [self._matches.get(guideline_id) for guideline_id in guideline_ids]
        return all(match is not None and not match.applies for match in found)

    def explain(self, reasons: dict[str, str]) -> dict[str, tuple[bool, str]]:
        """Return whether each guideline that was looked at is active, and why."""
        explained: dict[str, tuple[bool, str]] = {}
        for guideline in self._guide.guidelines:
            match = self._matches.get(guideline.id)
            if guideline.id in self.active or match is not None or guideline.id in reasons:
                reason = "always" if guideline.always else match.reason if match else ""
                explained[guideline.id] = (
                    guideline.id in self.active,
                    reasons.get(guideline.id) or shorten(reason, 500),
                )
        return explained

    def consider_candidates(self) -> None:
        """Mark the tools of the active guidelines as candidates of this turn."""
        self.considered.update(self.candidates)

    def list_new_candidates(self) -> list[str]:
        """List the tools of the active guidelines that were no candidates in this turn before."""
        return [candidate for candidate in self.candidates if candidate not in self.considered]

    def list_applying(self) -> tuple[Guideline, ...]:
        """List the guidelines that are active, and those of calls that an earlier turn prepared."""
        wanted = self.active | self._prepared
        return tuple(guideline for guideline in self._guide.guidelines if guideline.id in wanted)

    def list_for_reply(self) -> tuple[Guideline, ...]:
        """List the guidelines that the reply follows."""
        return tuple(map(self._add_question, self.list_applying()))

    def _add_question(self, guideline: Guideline) -> Guideline:
        """Return a guideline that disambiguates others with an action that asks which of them is meant."""
        others = self._guide.relationships.alternatives.get(guideline.id)
        if not others:
            return guideline
        conditions = "; ".join(self._guide.by_id[guideline_id].condition for guideline_id in others)
        question = f"Do nothing yet; ask the customer which of these is meant: {conditions}"
        return structs.replace(guideline, action=". ".join(filter(None, [guideline.action, question])))

    def find_tracked(
        self, before: Iterable[str], *, waiting: Set[str], done: Set[str], has_planned: bool
    ) -> tuple[str, ...]:
        """Find the guidelines with `track=True` whose action was taken, now or before, and whose condition applies.

        With tools, the action was taken once one of its calls has succeeded and none waits.
        """
        by_id, applying = self._guide.by_id, self.get_matched_ids() | self._guide.always
        kept = [
            guideline_id
            for guideline_id in before
            if guideline_id in by_id and (guideline_id in applying or not has_planned)
        ]
        taken = [
            guideline.id
            for guideline in self._guide.guidelines
            if guideline.track
            and guideline.id in self.active | self._prepared
            and guideline.id not in waiting
            and (not guideline.tools or guideline.id in done)
        ]
        return tuple(dict.fromkeys([*kept, *taken]))
