"""Writes the reply of a turn: a draft of the judge, checked for false claims, rewritten or replaced."""

import re
from collections.abc import Sequence, Set
from typing import Any, Final, cast

from msgspec import Struct, structs

from handrail.chat.conversation import PendingCall
from handrail.chat.turn import TurnState
from handrail.core.log import log
from handrail.core.text import encodable
from handrail.core.values import ToolResult
from handrail.guide.checking import MalformedResponse
from handrail.guide.claims import Effect, extract_value_words, find_false_claims
from handrail.guide.definition import Guide
from handrail.guide.judge_client import JudgeClient, NoResponse
from handrail.guide.reply_texts import build_plain_reply, ensure_read_back
from handrail.guide.trace import ReplyTrace
from handrail.guide.values import ClaimChecker, Draft, GuidelineMatch, Judge, ReplyRequest
from handrail.providers.messages import AssistantMessage, Message, ToolMessage

MAX_DRAFTS: Final = 2
"""The most drafts of a reply before a plain text replaces it."""
_MAX_CHARS: Final = 100_000
_MAX_MATCHES: Final = 1_000


class WrittenReply(Struct, frozen=True, kw_only=True):
    """The text of a reply, or the further guidelines that apply."""

    text: str = ""
    new_matches: tuple[GuidelineMatch, ...] = ()


class ReplyWriter:
    """Writes the reply of one turn."""

    def __init__(self, guide: Guide, judge: Judge, state: TurnState, client: JudgeClient) -> None:
        self._guide = guide
        self._judge = judge
        self._state = state
        self._client = client
        self.trace = ReplyTrace()

    async def write(
        self, request: ReplyRequest, *, considered: Set[str], pending: Sequence[PendingCall], may_plan: bool
    ) -> WrittenReply | None:
        """Write a reply; None if the turn ended first.

        `considered` has the tools that were candidates in this turn. With `may_plan`, a draft with new matches is
        dropped, and the matches are returned.
        """
        known = {one.id for one in request.candidates}
        rejected: list[str] = []
        error = ""
        for number in range(MAX_DRAFTS):
            asked = structs.replace(request, error=error) if error else request
            draft = await self._client.ask(lambda problem, asked=asked: self._ask(asked, problem), check_draft)
            if isinstance(draft, NoResponse):
                if draft.interrupted:
                    return None
                rejected.append(draft.reason)
                break
            self._client.count(draft)
            new = tuple(one for one in _read_matches(draft) if one.applies and one.guideline_id in known)
            if new and may_plan:
                reason = f"{', '.join(one.guideline_id for one in new)} applies only now"
                self.trace = structs.replace(
                    self.trace, drafts=self.trace.drafts + 1, rejected=(*self.trace.rejected, reason)
                )
                return WrittenReply(new_matches=new)
            text = encodable(draft.text)
            problem = await self._find_problem(text, draft, considered)
            if problem is None:
                return self._finish(ensure_read_back(text, pending, self._guide.tools), request, number + 1, rejected)
            rejected.append(problem)
            error = f"The draft cannot be sent: {problem}. Say only what the results show."
        plain = build_plain_reply(
            results=request.results, insights=request.insights, pending=pending, tools=self._guide.tools
        )
        return self._finish(plain, request, len(rejected), rejected, replaced=True)

    async def _ask(self, request: ReplyRequest, problem: str) -> Draft:
        return await self._judge.reply(structs.replace(request, error=problem) if problem else request)

    def _finish(
        self, text: str, request: ReplyRequest, drafts: int, rejected: list[str], *, replaced: bool = False
    ) -> WrittenReply:
        self.trace = ReplyTrace(
            text=text,
            guideline_ids=tuple(one.id for one in request.guidelines),
            drafts=self.trace.drafts + drafts,
            rejected=(*self.trace.rejected, *rejected),
            replaced=replaced,
        )
        return WrittenReply(text=text)

    # Checks.

    async def _find_problem(self, text: str, draft: Draft, considered: Set[str]) -> str | None:
        """Find a false claim or a hidden name in a draft."""
        guide = self._guide
        if (name := self._find_hidden_name(text, considered)) is not None:
            return f"it names {name}, which the customer must not hear of"
        committed = _find_committed(self._state.conversation.messages, self._state.results, guide)
        in_turn = _list_committed(self._state.results, guide)
        open_effects = self._find_open_effects(considered, in_turn)
        in_turn -= {one.tool for one in open_effects}
        others = [one for name, one in guide.effects.items() if name not in considered and name not in committed]
        done = [guide.effects[name] for name in (in_turn if open_effects else committed)]
        if found := find_false_claims(text, candidates=open_effects, others=others, committed=done):
            return f"it claims an effect that did not happen: {found[0]}"
        names = {one.tool for one in open_effects}
        if any(isinstance(one, str) and one in names for one in draft.claims):  # pyright: ignore[reportUnnecessaryIsInstance]
            return "it claims an effect that did not happen"
        if names and isinstance(self._judge, ClaimChecker):
            claimed = await self._client.ask(
                lambda _: cast(ClaimChecker, self._judge).check(text, tuple(sorted(names))), _check_tool_names
            )
            if not isinstance(claimed, NoResponse):
                self._client.model_calls += 1
                if wrong := [one for one in claimed if one in names]:
                    return f"it claims an effect that did not happen: {wrong[0]}"
            else:
                log.warning("a reply could not be checked by the judge: %s", claimed.reason)
        return None

    def _find_open_effects(self, considered: Set[str], in_turn: Set[str]) -> list[Effect]:
        """Find the effects that were considered in this turn and did not happen, or not with all arguments."""
        guide, conversation = self._guide, self._state.conversation
        results = {one.call_id: one.ok for one in self._state.results}
        made = [call for one in conversation.messages if isinstance(one, AssistantMessage) for call in one.calls]
        calls = [(call, results[call.id]) for call in made if call.id in results]
        calls += [(one.call, False) for one in conversation.pending]
        found: list[Effect] = []
        for name, effect in guide.effects.items():
            failed = [extract_value_words(call.arguments_json) for call, ok in calls if call.name == name and not ok]
            done = [extract_value_words(call.arguments_json) for call, ok in calls if call.name == name and ok]
            if name in in_turn and not failed:
                continue
            if name in considered:
                values = {"open_values": frozenset[str]().union(*failed), "done_values": frozenset[str]().union(*done)}
                found.append(structs.replace(effect, **values) if done else effect)
        return found

    def _find_hidden_name(self, text: str, considered: Set[str]) -> str | None:
        lowered = text.casefold()
        for name in considered:
            if name not in self._guide.tools:
                continue
            for parameter, option in self._guide.tools[name].options.items():
                # A name that is one plain word can occur in any sentence.
                forms = [
                    one for one in (parameter, parameter.replace("_", " "), option.display_name) if _is_distinctive(one)
                ]
                if option.hidden and any(re.search(rf"\b{re.escape(one.casefold())}\b", lowered) for one in forms):
                    return parameter
        return None


def _is_distinctive(name: str) -> bool:
    return "_" in name or " " in name


def check_draft(response: object) -> Draft:
    """Check that a judge's response is a `Draft` with values of the right types."""
    if not isinstance(response, Draft):
        raise MalformedResponse(f"The response must be a Draft, got {type(response).__name__}.")
    given: Any = response
    if not isinstance(given.text, str) or len(given.text) > _MAX_CHARS:
        raise MalformedResponse(f"text must be a text of at most {_MAX_CHARS} characters.")
    for name in ("new_matches", "claims"):
        if not isinstance(getattr(given, name), tuple | list) or len(getattr(given, name)) > _MAX_MATCHES:
            raise MalformedResponse(f"{name} must be a tuple of at most {_MAX_MATCHES} entries.")
    if any(not isinstance(one, GuidelineMatch | str) for one in given.new_matches):
        raise MalformedResponse("new_matches must have ids of guidelines, or GuidelineMatch values.")
    if not given.text.strip() and not given.new_matches:
        raise MalformedResponse("text must not be empty.")
    return response


def _read_matches(draft: Draft) -> list[GuidelineMatch]:
    return [GuidelineMatch(one) if isinstance(one, str) else one for one in draft.new_matches]


def _check_tool_names(response: object) -> tuple[str, ...]:
    if not isinstance(response, tuple | list) or not all(isinstance(one, str) for one in cast(Sequence[Any], response)):
        raise MalformedResponse("The response must be a tuple of names of tools.")
    return tuple(cast(Sequence[str], response))


def _list_committed(results: Sequence[ToolResult], guide: Guide) -> set[str]:
    return {one.tool_name for one in results if one.ok and one.tool_name in guide.effects}


def _find_committed(messages: Sequence[Message], results: Sequence[ToolResult], guide: Guide) -> set[str]:
    """Find the effects that happened in this conversation."""
    found = _list_committed(results, guide)
    if len(found) < len(guide.effects):
        for message in messages:
            if isinstance(message, ToolMessage):
                found |= _list_committed(message.results, guide)
    return found
