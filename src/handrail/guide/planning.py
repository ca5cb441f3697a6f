"""Asks the judge which guidelines apply and which tools should run: in one request, or guidelines first."""

import asyncio
from collections.abc import Mapping, Sequence, Set

from msgspec import Struct, structs

from handrail.chat.turn import TurnState
from handrail.core.log import log
from handrail.guide.checking import check_plan
from handrail.guide.definition import Guide
from handrail.guide.evaluation import list_candidates
from handrail.guide.inputs import JudgeInputs
from handrail.guide.judge_client import JudgeClient, NoResponse
from handrail.guide.parameters import add_choices
from handrail.guide.values import CandidateTool, Guideline, GuidelineMatch, Judge, Plan, PlanRequest, ToolVerdict
from handrail.providers.messages import UserMessage

_MAX_CUSTOMER_MESSAGES = 3
"""The number of the customer's last messages that the pre-filter reads."""


class PlanningResult(Struct, frozen=True, kw_only=True):
    """The responses of the judge in one iteration."""

    matches: tuple[GuidelineMatch, ...] = ()
    verdicts: tuple[ToolVerdict, ...] = ()
    shown: frozenset[str] = frozenset()
    """The tools that the judge saw, or that need no inference."""
    failed: Mapping[str, str] = {}
    """Tools without a usable response, and why."""
    error: str = ""
    """Why there is no usable response at all."""


class Planner:
    """Requests the plans of one turn from the judge."""

    def __init__(self, guide: Guide, judge: Judge, state: TurnState, client: JudgeClient) -> None:
        self._guide = guide
        self._judge = judge
        self._state = state
        self._client = client

    async def select_guidelines(self, matched: Set[str]) -> tuple[Guideline, ...]:
        """Select the guidelines that the judge is asked about."""
        guide, settings = self._guide, self._guide.settings
        if guide.prefilter is None or len(guide.guidelines) <= settings.prefilter_above:
            return guide.guidelines
        try:
            found = await guide.prefilter.select(guide.guidelines, self._read_recent_text(), settings.prefilter_limit)
        except Exception as error:  # then the judge is asked about all of them
            log.error("the pre-filter failed", exc_info=error)
            return guide.guidelines
        if not found:
            return guide.guidelines
        waiting = {one for pending in self._state.conversation.pending for one in pending.call.guideline_ids}
        wanted = guide.relationships.find_linked({*found, *matched, *waiting, *guide.always})
        return tuple(one for one in guide.guidelines if one.id in wanted)

    def _read_recent_text(self) -> str:
        messages = self._state.conversation.messages
        spoken = [one.text for one in messages[-20:] if isinstance(one, UserMessage)][-_MAX_CUSTOMER_MESSAGES:]
        results = [one.for_model()[:2_000] for one in self._state.results]
        return "\n".join([*spoken, *results])

    async def plan(self, iteration: int, matched: Set[str], inputs: JudgeInputs) -> PlanningResult | None:
        """Plan one iteration; None if the turn was interrupted or its budget is used up."""
        guide = self._guide
        scope = await self.select_guidelines(matched)
        pending_tools = {one.call.name for one in self._state.conversation.pending}
        tools = list_candidates(guide, {one.id for one in scope})
        first = guide.settings.match_first
        if not tools and not any(not one.always for one in scope):
            return PlanningResult()  # Nothing to match or infer.
        if first != "always" and len(tools) <= first:
            response = await self._ask(iteration, scope, tools, inputs)
            if isinstance(response, NoResponse):
                return None if response.interrupted else PlanningResult(error=response.reason, shown=frozenset(tools))
            return PlanningResult(matches=response.matches, verdicts=response.verdicts, shown=frozenset(tools))
        return await self._match_first(iteration, scope, matched, pending_tools, inputs)

    async def _match_first(
        self,
        iteration: int,
        scope: Sequence[Guideline],
        matched: Set[str],
        pending_tools: Set[str],
        inputs: JudgeInputs,
    ) -> PlanningResult | None:
        guide = self._guide
        response = await self._ask(iteration, scope, [], inputs)
        if isinstance(response, NoResponse):
            return None if response.interrupted else PlanningResult(error=response.reason)
        ids = {one.id for one in scope}
        found_matches = {one.guideline_id: one for one in response.matches if one.guideline_id in ids}
        applied = {one for one in matched if one not in found_matches} | {
            one.guideline_id for one in found_matches.values() if one.applies
        }
        active = guide.relationships.resolve(applied | guide.always).active
        names = [
            name
            for name in guide.tools
            if name in pending_tools or any(one in active for one in guide.candidates[name].guideline_ids)
        ]
        if all(guide.tools[name].needs_no_inference for name in names):
            return PlanningResult(matches=response.matches, shown=frozenset(names))
        batches = guide.relationships.split_into_batches(names, size=guide.settings.max_tools_per_plan)
        responses = await asyncio.gather(*(self._ask_batch(iteration, scope, one, inputs) for one in batches))
        if any(isinstance(one, NoResponse) and one.interrupted for one in responses):
            return None
        verdicts: list[ToolVerdict] = []
        failed: dict[str, str] = {}
        for batch, one in zip(batches, responses, strict=True):
            if isinstance(one, NoResponse):
                failed |= dict.fromkeys(batch, one.reason)
                continue
            # A batch decides only about its own tools, and can reject guidelines, but not add them.
            verdicts += [verdict for verdict in one.verdicts if verdict.tool in batch or verdict.tool not in names]
            found_matches |= {
                match.guideline_id: match
                for match in one.matches
                if match.guideline_id in found_matches and not match.applies
            }
        unknown = [one for one in response.matches if one.guideline_id not in found_matches]
        return PlanningResult(
            matches=(*found_matches.values(), *unknown), verdicts=tuple(verdicts), shown=frozenset(names), failed=failed
        )

    async def _ask_batch(
        self, iteration: int, scope: Sequence[Guideline], names: Sequence[str], inputs: JudgeInputs
    ) -> Plan | NoResponse:
        wanted = {one for name in names for one in self._guide.candidates[name].guideline_ids}
        return await self._ask(iteration, [one for one in scope if one.id in wanted], names, inputs)

    async def _ask(
        self, iteration: int, scope: Sequence[Guideline], names: Sequence[str], inputs: JudgeInputs
    ) -> Plan | NoResponse:
        guide, state = self._guide, self._state
        ids = {one.id for one in scope}
        request = PlanRequest(
            iteration=iteration,
            messages=state.conversation.messages,
            instructions=guide.instructions,
            guidelines=tuple(scope),
            tools=tuple(self._build_candidate(name, ids, inputs) for name in names),
            variables=inputs.variables,
            terms=guide.terms,
            results=state.results,
            pending=self._state.conversation.pending,
            now=guide.clock(),
        )
        response = await self._client.ask(
            lambda error: self._judge.plan(structs.replace(request, error=error) if error else request), check_plan
        )
        if isinstance(response, Plan):
            self._client.count(response)
        return response

    def _build_candidate(self, name: str, ids: Set[str], inputs: JudgeInputs) -> CandidateTool:
        candidate = self._guide.candidates[name]
        asked_by = tuple(one for one in candidate.guideline_ids if one in ids)
        if len(asked_by) < len(candidate.guideline_ids):
            candidate = structs.replace(candidate, guideline_ids=asked_by)
        if (choices := inputs.choices.get(name)) and self._guide.tools[name].has_dynamic_choices:
            candidate = structs.replace(candidate, schema=add_choices(candidate.schema, choices))
        return candidate
