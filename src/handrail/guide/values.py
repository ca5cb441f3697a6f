"""The values of guided calling: guidelines, the requests to a judge and its responses, and insights."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from handrail.chat.conversation import PendingCall
from handrail.core.context import ToolContext
from handrail.core.values import ToolResult
from handrail.guide.templates import FilledTemplate
from handrail.providers.messages import Message
from handrail.providers.provider import Usage

VerdictState = Literal["needs_to_run", "data_already_in_context", "not_applicable", "cannot_run"]
Criticality = Literal["low", "medium", "high"]


class Guideline(Struct, frozen=True, kw_only=True):
    """A condition, the action when it applies, and the tools that the action may need."""

    condition: str = ""
    """When it applies, in words that a model judges."""
    action: str = ""
    """What the agent does when it applies."""
    tools: tuple[str, ...] = ()
    """The names of its tools, which are candidates only while the guideline applies."""
    criticality: Criticality = "medium"
    """Calls of one iteration run in this order, the most critical first."""
    always: bool = False
    """Whether it applies in every turn, without being matched."""
    id: str = ""
    """If left out, the agent assigns `g1`, `g2`, …"""
    matches: Callable[[ToolContext[Any]], Awaitable[bool] | bool] | None = None
    """Decides in code, sync or async, whether it applies in a turn. The judge is not asked about it; if the function
    fails, it does not apply."""
    priority: int = 0
    """Of the guidelines that apply, only those with the highest number are active; without one, all are."""
    track: bool = False
    """Whether its action is taken once: it is not repeated until its condition has not applied, and applies anew."""
    on_match: Callable[[ToolContext[Any]], Awaitable[object] | object] | None = None
    """Called once in every turn in which it is active, before its tools run. A failure is logged."""


class Term(Struct, frozen=True):
    """A word of your business, for the judge."""

    description: str
    synonyms: tuple[str, ...] = ()
    """Other words that customers use for it."""


class CandidateTool(Struct, frozen=True, kw_only=True):
    """A tool as the judge sees it."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] = {}
    guideline_ids: tuple[str, ...] = ()
    """The guidelines of this request that ask for it."""
    consequential: bool = True


class GuidelineMatch(Struct, frozen=True):
    """Whether a guideline applies to the conversation."""

    guideline_id: str
    applies: bool = True
    reason: str = ""


class ToolVerdict(Struct, frozen=True):
    """What the judge decided about one call of a candidate."""

    tool: str
    state: VerdictState
    arguments: Mapping[str, Any] = {}
    evidence: Mapping[str, str] = {}
    """For each argument, the quote that it comes from. A consequential call needs one for every argument."""
    reason: str = ""
    confirmation: Literal["yes", "no"] | None = None
    """Whether the customer confirmed or rejected the pending call of this tool with these arguments."""


class Plan(Struct, frozen=True):
    """The judge's response to a `PlanRequest`."""

    matches: tuple[GuidelineMatch, ...] = ()
    verdicts: tuple[ToolVerdict, ...] = ()
    usage: Usage = Usage()
    model_calls: int = 1


class PlanRequest(Struct, frozen=True, kw_only=True):
    """A request to match guidelines and to decide which of their tools should run."""

    iteration: int
    messages: tuple[Message, ...]
    """The conversation, with the calls and results of earlier iterations."""
    instructions: str = ""
    guidelines: tuple[Guideline, ...] = ()
    tools: tuple[CandidateTool, ...] = ()
    """The tools of these guidelines; none if guidelines are matched first."""
    variables: Mapping[str, Any] = {}
    terms: Mapping[str, str] = {}
    results: tuple[ToolResult, ...] = ()
    """The results of this turn."""
    pending: tuple[PendingCall, ...] = ()
    """Calls that were read back to the customer and wait for a confirmation."""
    now: datetime | None = None
    error: str = ""
    """What was wrong with the previous response, if the request is repeated."""


class MissingData(Struct, frozen=True, kw_only=True):
    """A value that a call needs and that is not known."""

    tool: str
    parameter: str
    display_name: str = ""
    significance: str = ""
    reason: str = ""
    guideline_ids: tuple[str, ...] = ()


class InvalidData(MissingData, frozen=True, kw_only=True):
    """A value that was given and cannot be used."""

    value: Any = None
    choices: tuple[Any, ...] = ()


class ToolEvaluation(Struct, frozen=True, kw_only=True):
    """The decision about one candidate, after the checks."""

    tool: str
    state: VerdictState
    arguments: Mapping[str, Any] = {}
    reason: str = ""
    guideline_ids: tuple[str, ...] = ()
    iteration: int = 1


class ToolInsights(Struct, frozen=True, kw_only=True):
    """The decisions about the tools of a turn, and the data that is missing or invalid."""

    evaluations: tuple[ToolEvaluation, ...] = ()
    missing_data: tuple[MissingData, ...] = ()
    invalid_data: tuple[InvalidData, ...] = ()


class ReplyRequest(Struct, frozen=True, kw_only=True):
    """A request to write the reply to the customer."""

    messages: tuple[Message, ...]
    instructions: str = ""
    guidelines: tuple[Guideline, ...] = ()
    """The guidelines that apply."""
    candidates: tuple[Guideline, ...] = ()
    """Guidelines that do not apply yet, but may because of the results."""
    results: tuple[ToolResult, ...] = ()
    insights: ToolInsights = ToolInsights()
    pending: tuple[PendingCall, ...] = ()
    """Pending calls. The question that reads them back is added to the reply."""
    variables: Mapping[str, Any] = {}
    terms: Mapping[str, str] = {}
    retrieved: Mapping[str, str] = {}
    """What the agent's retrievers found for this turn, by their names."""
    withdrawn: tuple[str, ...] = ()
    """Pending calls that this turn dropped, as the customer reads them. A line that says so is added to the reply."""
    templates: tuple[FilledTemplate, ...] = ()
    """The approved texts that can be sent in this turn, with their fields filled."""
    strict: bool = False
    """Whether the reply must be one of the templates."""
    effects: tuple[str, ...] = ()
    """The tools of the agent that change something: those whose effects a reply can claim."""
    now: datetime | None = None
    error: str = ""
    """What was wrong with the previous draft, if the request is repeated."""


class Claim(Struct, frozen=True):
    """An effect that a text says has happened."""

    tool: str
    arguments: Mapping[str, Any] = {}
    """The arguments that the text mentions."""


class Draft(Struct, frozen=True):
    """The judge's response to a `ReplyRequest`."""

    text: str
    new_matches: tuple[GuidelineMatch | str, ...] = ()
    """Further guidelines that apply now. The draft is dropped, and planning continues with them."""
    claims: tuple["Claim | str", ...] = ()
    """The effects that the text claims, if the judge can tell: each must have a successful result. A tool's name alone
    claims its effect with any arguments."""
    template: str = ""
    """The id of the template to send instead of the text."""
    usage: Usage = Usage()
    model_calls: int = 1


class Judge(Protocol):
    """Decides which guidelines and tools a conversation asks for. Every response is checked."""

    async def plan(self, request: PlanRequest) -> Plan:
        """Match guidelines, and decide about their tools."""
        ...

    async def reply(self, request: ReplyRequest) -> Draft:
        """Write the reply to the customer."""
        ...


@runtime_checkable
class ClaimChecker(Protocol):
    """A judge that can also check a reply for false claims."""

    async def check(self, text: str, effects: tuple[str, ...]) -> tuple[str, ...]:
        """Return the tools, among these, whose effect a text claims."""
        ...
