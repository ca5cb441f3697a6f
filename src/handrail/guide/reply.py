"""Writes the reply of a turn: a draft of the judge, checked for false claims, or a text that no model wrote."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final, cast

from msgspec import Struct, structs

from handrail.chat.conversation import PendingCall
from handrail.core.locale_texts import load_locale
from handrail.core.log import log
from handrail.core.text import compact_json, encodable, faithful_json
from handrail.core.value_mentions import contains_words, mentions_value
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ProviderError, shorten
from handrail.formats.call_parsing import parse_object
from handrail.guide.claims import Effect, extract_value_words, find_false_claims, has_statements
from handrail.guide.compiled_agent import Guide
from handrail.guide.judge_requests import JudgeClient, NoResponse
from handrail.guide.parameters import GuidedTool
from handrail.guide.read_back import add_read_back, format_value
from handrail.guide.templates import fill_templates
from handrail.guide.trace import ReplyTrace
from handrail.guide.values import (
    Claim,
    ClaimChecker,
    Draft,
    GuidelineMatch,
    InvalidData,
    Judge,
    MissingData,
    ReplyRequest,
    ToolInsights,
)
from handrail.guide.verdicts import MalformedResponse, names_hidden
from handrail.providers.messages import AssistantMessage, Message, ToolMessage, UserMessage

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

    def __init__(self, guide: Guide, judge: Judge, client: JudgeClient, *, get_locale: Callable[[], str]) -> None:
        self._guide = guide
        self._judge = judge
        self._client = client
        self._get_locale = get_locale
        self.trace = ReplyTrace()

    async def write(self, request: ReplyRequest, *, considered: Set[str], may_plan: bool) -> WrittenReply | None:
        """Write a reply; None if the turn ended first.

        `considered` has the tools that were candidates in this turn. With `may_plan`, a draft with new matches is
        dropped, and the matches are returned.
        """
        strict = self._guide.replies_mode == "strict"
        if self._guide.templates:
            filled = fill_templates(self._guide.templates, results=request.results, variables=request.variables)
            request = structs.replace(request, templates=filled, strict=strict)
        templates = {template.id: template.text for template in request.templates}
        known = {candidate.id for candidate in request.candidates}
        rejected: list[str] = []
        error = ""
        for number in range(MAX_DRAFTS):
            asked = structs.replace(request, error=error) if error else request
            if self._guide.has_hidden:
                asked = hide_from_request(asked, self._guide.tools)
            try:
                draft = await self._client.ask(lambda problem, asked=asked: self._ask(asked, problem), check_draft)
            except ProviderError as failed:
                if not _list_committed(request.results, self._guide):
                    raise
                # The customer is told that it was done, whatever fails after it.
                draft = NoResponse(f"the provider failed: {failed.code}")
            if isinstance(draft, NoResponse):
                if draft.interrupted:
                    return None
                rejected.append(draft.reason)
                break
            self._client.count(draft)
            new = tuple(match for match in _read_matches(draft) if match.applies and match.guideline_id in known)
            if new and may_plan:
                reason = f"{', '.join(match.guideline_id for match in new)} applies only now"
                self.trace = structs.replace(
                    self.trace, drafts=self.trace.drafts + 1, rejected=(*self.trace.rejected, reason)
                )
                return WrittenReply(new_matches=new)
            text = templates.get(draft.template, "" if strict or draft.template else encodable(draft.text))
            if not text.strip():
                problem = (
                    "template must be the id of an approved text, or 'none'" if templates else "no text is approved"
                )
            else:
                problem = await self._find_problem(text, draft, request, considered)
            if problem is None:
                return self._finish(text, request, number + 1, rejected, template=draft.template)
            rejected.append(problem)
            error = f"The draft cannot be sent: {problem}. Say only what the results show."
            if strict and not templates:
                break
        plain = build_plain_reply(
            results=request.results, insights=request.insights, pending=request.pending, tools=self._guide.tools
        )
        return self._finish(plain, request, len(rejected), rejected, replaced=True)

    async def _ask(self, request: ReplyRequest, problem: str) -> Draft:
        return await self._judge.reply(structs.replace(request, error=problem) if problem else request)

    def _finish(
        self,
        text: str,
        request: ReplyRequest,
        drafts: int,
        rejected: list[str],
        *,
        replaced: bool = False,
        template: str = "",
    ) -> WrittenReply:
        if not replaced and (open_tools := _find_unmet(request, self._guide)) and has_statements(text):
            # Whatever the text says or seems to say: what the customer wanted has not happened.
            names = ", ".join(name.replace("_", " ") for name in open_tools)
            text = f"{text.strip()}\n\n{load_locale(self._get_locale())['reply.not_done'].format(calls=names)}"
        if request.pending or request.withdrawn:
            text = add_read_back(
                text, request.pending, self._guide.tools, self._get_locale(), withdrawn=request.withdrawn
            )
        self.trace = ReplyTrace(
            text=text,
            guideline_ids=tuple(guideline.id for guideline in request.guidelines),
            drafts=self.trace.drafts + drafts,
            rejected=(*self.trace.rejected, *rejected),
            replaced=replaced,
            template=template,
        )
        return WrittenReply(text=text)

    # Checks.

    async def _find_problem(self, text: str, draft: Draft, request: ReplyRequest, considered: Set[str]) -> str | None:
        """Find a false claim or a hidden name in a draft."""
        guide = self._guide
        if not guide.effects and not guide.has_hidden:
            return None
        calls = [
            call for message in request.messages if isinstance(message, AssistantMessage) for call in message.calls
        ]
        calls += [waiting.call for waiting in request.pending]
        said = [message.text for message in request.messages if isinstance(message, UserMessage)]
        if (name := _find_hidden_name(text, guide, calls, said)) is not None:
            return f"it names {name}, which the customer must not hear of"
        committed = _find_committed(request.messages, request.results, guide)
        in_turn = _list_committed(request.results, guide)
        open_effects = _find_open_effects(guide, request, considered, in_turn)
        in_turn -= {effect.tool for effect in open_effects}
        others = [effect for name, effect in guide.effects.items() if name not in considered and name not in committed]
        done = [guide.effects[name] for name in (in_turn if open_effects else committed)]
        names = {effect.tool for effect in open_effects}
        if (claimed_tool := _find_false_claim(draft, calls, request, guide, names)) is not None:
            return f"it claims an effect that did not happen: {claimed_tool}"
        earlier = _find_earlier_effects(guide, calls, request)
        if found := find_false_claims(
            text, candidates=open_effects, others=others, committed=done, earlier=() if open_effects else earlier
        ):
            return f"it claims an effect that did not happen: {found[0]}"
        if names and isinstance(self._judge, ClaimChecker):
            claimed = await self._client.ask(
                lambda _: cast(ClaimChecker, self._judge).check(text, tuple(sorted(names))), _check_tool_names
            )
            if not isinstance(claimed, NoResponse):
                self._client.model_calls += 1
                if wrong := [name for name in claimed if name in names]:
                    return f"it claims an effect that did not happen: {wrong[0]}"
            else:
                log.warning("a reply could not be checked by the judge: %s", claimed.reason)
        return None


def _find_unmet(request: ReplyRequest, guide: Guide) -> list[str]:
    """Find the effects that were wanted in this turn and did not happen, without those that are read back anyway."""
    if not guide.effects:
        return []
    wanted = {
        evaluation.tool
        for evaluation in request.insights.evaluations
        if evaluation.state == "cannot_run" and evaluation.guideline_ids
    }
    wanted |= {result.tool_name for result in request.results if result.error is not None}
    wanted |= {waiting.call.name for waiting in request.pending if waiting.approval.by != "customer"}
    happened = {result.tool_name for result in request.results if result.error is None}
    read_back = {waiting.call.name for waiting in request.pending if waiting.approval.by == "customer"}
    return [name for name in guide.effects if name in wanted - happened - read_back]


def _find_false_claim(
    draft: Draft, calls: Sequence[ToolCall], request: ReplyRequest, guide: Guide, open_tools: Set[str]
) -> str | None:
    """Find a claim that the judge itself reports, and that no successful call of this conversation bears out."""
    ok = _list_successes(request)
    for claim in draft.claims:
        effect = Claim(claim) if isinstance(claim, str) else claim
        tool, claimed = effect.tool, effect.arguments
        if tool not in guide.effects:
            continue
        made = [parse_object(call.arguments_json) for call in calls if call.name == tool and call.id in ok]
        if tool in open_tools and not claimed:
            return tool
        if not any(all(_is_equal(given.get(name), value) for name, value in claimed.items()) for given in made):
            return f"{tool}({compact_json(dict(claimed))})" if claimed else tool
    return None


def _is_equal(given: Any, claimed: Any) -> bool:
    return given == claimed or (isinstance(claimed, str | int | float) and mentions_value(str(claimed), given))


def _list_successes(request: ReplyRequest) -> set[str]:
    """List the calls of this conversation that succeeded."""
    history = (message.results for message in request.messages if isinstance(message, ToolMessage))
    return {result.call_id for results in (*history, request.results) for result in results if result.error is None}


def _find_earlier_effects(guide: Guide, calls: Sequence[ToolCall], request: ReplyRequest) -> list[Effect]:
    """Find the effects that happened in this conversation, with the words of their arguments and outputs."""
    ok = _list_successes(request)
    said = [
        result.for_model()
        for message in request.messages
        if isinstance(message, ToolMessage)
        for result in message.results
    ]
    shared = extract_value_words(" ".join([*said, *(result.for_model() for result in request.results)]))
    return [
        structs.replace(
            effect,
            done_values=shared.union(*(extract_value_words(call.arguments_json) for call in made)),
        )
        for name, effect in guide.effects.items()
        if (made := [call for call in calls if call.name == name and call.id in ok])
    ]


def _find_open_effects(guide: Guide, request: ReplyRequest, considered: Set[str], in_turn: Set[str]) -> list[Effect]:
    """Find the effects that were considered in this turn and did not happen, or not with all arguments."""
    results = {result.call_id: result.error is None for result in request.results}
    made = [call for message in request.messages if isinstance(message, AssistantMessage) for call in message.calls]
    calls = [(call, results[call.id]) for call in made if call.id in results]
    calls += [(pending_call.call, False) for pending_call in request.pending]
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


def _find_hidden_name(text: str, guide: Guide, hidden: Sequence[ToolCall], said: Sequence[str]) -> str | None:
    """Find a hidden parameter that a text names, or whose value it contains although the customer has not said it."""
    for tool in guide.tools.values():
        if not tool.hidden:
            continue
        calls = [parse_object(call.arguments_json) for call in hidden if call.name == tool.name]
        values = [given[name] for given in calls for name in tool.hidden if name in given]
        values = [value for value in values if not any(contains_words(words, str(value)) for words in said)]
        if (found := names_hidden(tool, text, values)) is not None:
            return found
    return None


def hide_arguments(call: ToolCall, tools: Mapping[str, GuidedTool]) -> ToolCall:
    """Return a call without the values of hidden parameters, as the reply may know it."""
    tool = tools.get(call.name)
    if tool is None or not tool.hidden:
        return call
    given = {name: value for name, value in parse_object(call.arguments_json).items() if name not in tool.hidden}
    return structs.replace(call, arguments_json=faithful_json(given))


def hide_from_request(request: ReplyRequest, tools: Mapping[str, GuidedTool]) -> ReplyRequest:
    """Return a request without the values of hidden parameters in its calls and pending calls."""
    messages = tuple(
        structs.replace(message, calls=tuple(hide_arguments(call, tools) for call in message.calls), native=None)
        if isinstance(message, AssistantMessage) and message.calls
        else message
        for message in request.messages
    )
    pending = tuple(
        structs.replace(
            waiting,
            call=hide_arguments(waiting.call, tools),
            approval=structs.replace(
                waiting.approval,
                arguments={
                    name: value
                    for name, value in waiting.approval.arguments.items()
                    if waiting.call.name not in tools or name not in tools[waiting.call.name].hidden
                },
            ),
        )
        for waiting in request.pending
    )
    return structs.replace(request, messages=messages, pending=pending)


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
    if any(not isinstance(claim, Claim | str) for claim in given.claims):
        raise MalformedResponse("claims must have names of tools, or Claim values.")
    if any(not isinstance(match, GuidelineMatch | str) for match in given.new_matches):
        raise MalformedResponse("new_matches must have ids of guidelines, or GuidelineMatch values.")
    if not isinstance(given.template, str):
        raise MalformedResponse("template must be the id of a template.")
    if not given.text.strip() and not given.new_matches and not given.template:
        raise MalformedResponse("text must not be empty.")
    return response


def _read_matches(draft: Draft) -> list[GuidelineMatch]:
    return [GuidelineMatch(match) if isinstance(match, str) else match for match in draft.new_matches]


def _check_tool_names(response: object) -> tuple[str, ...]:
    if not isinstance(response, tuple | list) or not all(
        isinstance(name, str) for name in cast(Sequence[Any], response)
    ):
        raise MalformedResponse("The response must be a tuple of names of tools.")
    return tuple(cast(Sequence[str], response))


def _list_committed(results: Sequence[ToolResult], guide: Guide) -> set[str]:
    return {result.tool_name for result in results if result.error is None and result.tool_name in guide.effects}


def _find_committed(messages: Sequence[Message], results: Sequence[ToolResult], guide: Guide) -> set[str]:
    """Find the effects that happened in this conversation."""
    found = _list_committed(results, guide)
    if len(found) < len(guide.effects):
        for message in messages:
            if isinstance(message, ToolMessage):
                found |= _list_committed(message.results, guide)
    return found


# A reply without a model.

_MAX_OUTPUT: Final = 500


def build_plain_reply(
    *,
    results: Sequence[ToolResult],
    insights: ToolInsights,
    pending: Sequence[PendingCall],
    tools: Mapping[str, GuidedTool],
) -> str:
    """Build a reply without a judge: results, and missing and invalid values."""
    parts = [describe_outcome(result) for result in results]
    if insights.missing_data:
        parts.append(f"To go on I still need: {', '.join(_list_names(insights.missing_data))}.")
    for entry in insights.invalid_data:
        choices = (
            f" Possible values: {', '.join(format_value(choice) for choice in entry.choices)}." if entry.choices else ""
        )
        value = f" ({format_value(entry.value)})" if entry.value is not None else ""
        parts.append(f"The {entry.display_name or entry.parameter}{value} cannot be used.{choices}")
    if any(pending_call.approval.by != "customer" for pending_call in pending):
        parts.append("A colleague has to agree first; nothing was done yet.")
    if not parts and not pending:
        return "Nothing was done. How can I help you?"
    return "\n".join(parts)


def describe_outcome(result: ToolResult) -> str:
    """Describe a result in one line, without a model."""
    name = result.tool_name.replace("_", " ")
    if result.error is not None:
        return f"{name}: this did not work. {shorten(result.error.message, _MAX_OUTPUT)}"
    return f"{name}: {shorten(result.for_model(), _MAX_OUTPUT)}"


def _list_names(missing: Iterable[MissingData | InvalidData]) -> list[str]:
    return list(dict.fromkeys(entry.display_name or entry.parameter for entry in missing))
