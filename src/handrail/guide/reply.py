"""Writes the reply of a turn: a draft of the judge, checked for false claims, or a text that no model wrote."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final, cast

from msgspec import Struct, structs

from handrail.chat.conversation import PendingCall
from handrail.core.log import log
from handrail.core.text import encodable, faithful_json
from handrail.core.values import ToolCall, ToolResult
from handrail.errors import ProviderError, shorten
from handrail.formats.call_parsing import parse_object
from handrail.guide.compiled_agent import Guide
from handrail.guide.confirmation import add_read_back, format_value
from handrail.guide.judge_requests import JudgeClient, NoResponse
from handrail.guide.parameters import GuidedTool
from handrail.guide.reply_checks import add_not_done, find_problem, list_committed
from handrail.guide.templates import fill_templates
from handrail.guide.trace import ReplyTrace
from handrail.guide.values import (
    ClaimChecker,
    Draft,
    GuidelineMatch,
    InvalidData,
    Judge,
    MissingData,
    ReplyRequest,
    ToolInsights,
)
from handrail.guide.verdicts import MalformedResponse, check_draft
from handrail.providers.messages import AssistantMessage

MAX_DRAFTS: Final = 2
"""The most drafts of a reply before a plain text replaces it."""


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
                if not list_committed(request.results, self._guide.effects):
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
                problem = await find_problem(
                    text,
                    draft,
                    request,
                    considered,
                    effects=self._guide.effects,
                    tools=self._guide.tools,
                    ask_judge=self._ask_for_claims,
                )
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

    async def _ask_for_claims(self, text: str, tools: tuple[str, ...]) -> tuple[str, ...]:
        """Ask a judge that can check a reply which of these tools' effects it claims."""
        judge = self._judge
        if not isinstance(judge, ClaimChecker):
            return ()
        claimed = await self._client.ask(lambda _: judge.check(text, tools), _check_tool_names)
        if isinstance(claimed, NoResponse):
            log.warning("a reply could not be checked by the judge: %s", claimed.reason)
            return ()
        self._client.model_calls += 1
        return claimed

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
        if not replaced:
            text = add_not_done(text, request, self._guide.effects, self._get_locale)
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


def _read_matches(draft: Draft) -> list[GuidelineMatch]:
    return [GuidelineMatch(match) if isinstance(match, str) else match for match in draft.new_matches]


def _check_tool_names(response: object) -> tuple[str, ...]:
    if not isinstance(response, tuple | list) or not all(
        isinstance(name, str) for name in cast(Sequence[Any], response)
    ):
        raise MalformedResponse("The response must be a tuple of names of tools.")
    return tuple(cast(Sequence[str], response))


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
