"""Asking the judge which guidelines apply and what should run: in one question, or guidelines first."""

import asyncio
from collections.abc import Mapping, Sequence, Set
from typing import Any

from msgspec import Struct, structs

from handrail.chat.conversation import PendingCall
from handrail.chat.turn import TurnState
from handrail.core.log import log
from handrail.guide.checking import check_plan
from handrail.guide.definition import Guide
from handrail.guide.evaluation import candidate_names
from handrail.guide.parameters import with_choices
from handrail.guide.questions import Questions, Unanswered
from handrail.guide.values import CandidateTool, Guideline, GuidelineMatch, Judge, Plan, PlanRequest, ToolVerdict
from handrail.providers.messages import UserMessage

_SPOKEN = 3
"""How many of the customer's last messages the pre-filter reads."""


class Planned(Struct, frozen=True, kw_only=True):
    """What the judge answered in one iteration."""

    matches: tuple[GuidelineMatch, ...] = ()
    verdicts: tuple[ToolVerdict, ...] = ()
    shown: frozenset[str] = frozenset()
    """The tools that it was shown, or that need no question."""
    failed: Mapping[str, str] = {}
    """Tools about which it gave no usable answer, and why."""
    error: str = ""
    """Why it gave no usable answer at all."""


class Knowledge(Struct, frozen=True, kw_only=True):
    """What the judge is told in every question of a turn."""

    variables: Mapping[str, Any]
    choices: Mapping[str, Mapping[str, Sequence[Any]] | None]
    """The choices of parameters, by tool; None where they could not be read."""


class Planner:
    """Asks for the plans of one turn."""

    def __init__(self, guide: Guide, judge: Judge, state: TurnState, questions: Questions) -> None:
        self._guide = guide
        self._judge = judge
        self._state = state
        self._questions = questions

    async def scope(self, matched: Set[str]) -> tuple[Guideline, ...]:
        """The guidelines that the judge is asked about."""
        guide, settings = self._guide, self._guide.settings
        if guide.prefilter is None or len(guide.guidelines) <= settings.prefilter_above:
            return guide.guidelines
        try:
            found = await guide.prefilter.select(guide.guidelines, self._recent_text(), settings.prefilter_limit)
        except Exception as error:  # without it the judge is asked about all of them
            log.error("the pre-filter failed", exc_info=error)
            return guide.guidelines
        if not found:
            return guide.guidelines
        waiting = {one for pending in self._state.conversation.pending for one in pending.call.guideline_ids}
        wanted = guide.relationships.linked({*found, *matched, *waiting, *guide.always})
        return tuple(one for one in guide.guidelines if one.id in wanted)

    def _recent_text(self) -> str:
        messages = self._state.conversation.messages
        spoken = [one.text for one in messages[-20:] if isinstance(one, UserMessage)][-_SPOKEN:]
        results = [one.for_model()[:2_000] for one in self._state.results]
        return "\n".join([*spoken, *results])

    async def plan(self, iteration: int, matched: Set[str], knowledge: Knowledge) -> Planned | None:
        """One round of planning; None if the turn was interrupted or ran out of its budget."""
        guide = self._guide
        scope = await self.scope(matched)
        pending_tools = {one.call.name for one in self._state.conversation.pending}
        tools = candidate_names(guide, {one.id for one in scope})
        first = guide.settings.match_first
        if not tools and not any(not one.always for one in scope):
            return Planned()  # There is nothing to ask.
        if first != "always" and len(tools) <= first:
            answer = await self._ask(iteration, scope, tools, knowledge)
            if isinstance(answer, Unanswered):
                return None if answer.interrupted else Planned(error=answer.reason, shown=frozenset(tools))
            return Planned(matches=answer.matches, verdicts=answer.verdicts, shown=frozenset(tools))
        return await self._match_first(iteration, scope, matched, pending_tools, knowledge)

    async def _match_first(
        self,
        iteration: int,
        scope: Sequence[Guideline],
        matched: Set[str],
        pending_tools: Set[str],
        knowledge: Knowledge,
    ) -> Planned | None:
        guide = self._guide
        answer = await self._ask(iteration, scope, [], knowledge)
        if isinstance(answer, Unanswered):
            return None if answer.interrupted else Planned(error=answer.reason)
        ids = {one.id for one in scope}
        said = {one.guideline_id: one for one in answer.matches if one.guideline_id in ids}
        applied = {one for one in matched if one not in said} | {
            one.guideline_id for one in said.values() if one.applies
        }
        active = guide.relationships.resolve(applied | guide.always).active
        names = [
            name
            for name in guide.tools
            if name in pending_tools or any(one in active for one in guide.candidates[name].guideline_ids)
        ]
        if all(guide.tools[name].needs_no_inference for name in names):
            return Planned(matches=answer.matches, shown=frozenset(names))
        batches = guide.relationships.batches(names, size=guide.settings.max_tools_per_plan)
        answers = await asyncio.gather(*(self._ask_batch(iteration, scope, one, knowledge) for one in batches))
        if any(isinstance(one, Unanswered) and one.interrupted for one in answers):
            return None
        verdicts: list[ToolVerdict] = []
        failed: dict[str, str] = {}
        for batch, one in zip(batches, answers, strict=True):
            if isinstance(one, Unanswered):
                failed |= dict.fromkeys(batch, one.reason)
                continue
            # Only about what this question showed; and a guideline can be dropped by it, but not added.
            verdicts += [verdict for verdict in one.verdicts if verdict.tool in batch or verdict.tool not in names]
            said |= {
                match.guideline_id: match for match in one.matches if match.guideline_id in said and not match.applies
            }
        unknown = [one for one in answer.matches if one.guideline_id not in said]
        return Planned(
            matches=(*said.values(), *unknown), verdicts=tuple(verdicts), shown=frozenset(names), failed=failed
        )

    async def _ask_batch(
        self, iteration: int, scope: Sequence[Guideline], names: Sequence[str], knowledge: Knowledge
    ) -> Plan | Unanswered:
        wanted = {one for name in names for one in self._guide.candidates[name].guideline_ids}
        return await self._ask(iteration, [one for one in scope if one.id in wanted], names, knowledge)

    async def _ask(
        self, iteration: int, scope: Sequence[Guideline], names: Sequence[str], knowledge: Knowledge
    ) -> Plan | Unanswered:
        guide, state = self._guide, self._state
        ids = {one.id for one in scope}
        request = PlanRequest(
            iteration=iteration,
            messages=state.conversation.messages,
            instructions=guide.instructions,
            guidelines=tuple(scope),
            tools=tuple(self._candidate(name, ids, knowledge) for name in names),
            variables=knowledge.variables,
            terms=guide.terms,
            results=state.results,
            pending=self._open_pending(),
            now=guide.clock(),
        )
        answer = await self._questions.ask(
            lambda error: self._judge.plan(structs.replace(request, error=error) if error else request), check_plan
        )
        if isinstance(answer, Plan):
            self._questions.count(answer)
        return answer

    def _open_pending(self) -> tuple[PendingCall, ...]:
        return self._state.conversation.pending

    def _candidate(self, name: str, ids: Set[str], knowledge: Knowledge) -> CandidateTool:
        candidate = self._guide.candidates[name]
        asked_by = tuple(one for one in candidate.guideline_ids if one in ids)
        if len(asked_by) < len(candidate.guideline_ids):
            candidate = structs.replace(candidate, guideline_ids=asked_by)
        if (choices := knowledge.choices.get(name)) and self._guide.tools[name].has_dynamic_choices:
            candidate = structs.replace(candidate, schema=with_choices(candidate.schema, choices))
        return candidate
