"""The values of guided calling: guidelines, the judge's questions and answers, and the insights of a turn."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from handrail.chat.conversation import PendingCall
from handrail.chat.turn_result import TurnResult
from handrail.core.values import ToolResult
from handrail.guide.trace import TurnTrace
from handrail.providers.messages import Message
from handrail.providers.provider import Usage

VerdictState = Literal["needs_to_run", "data_already_in_context", "not_applicable", "cannot_run"]
Criticality = Literal["low", "medium", "high"]


class Guideline(Struct, frozen=True, kw_only=True):
    """A condition, what to do when it applies, and the tools that may be needed for it."""

    condition: str
    action: str = ""
    tools: tuple[str, ...] = ()
    """Names of tools; they are candidates only while the guideline applies."""
    criticality: Criticality = "medium"
    """Calls of one iteration run in this order, the most critical first."""
    always: bool = False
    """Whether it applies in every turn, without a question to the judge."""
    id: str = ""
    """Given by the agent where it is left out: `g1`, `g2`, …"""


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
    """For each argument, the words that it comes from. A consequential call needs it for every argument."""
    reason: str = ""
    confirmation: Literal["yes", "no"] | None = None
    """What the customer said about a pending call of this tool with these arguments."""


class Plan(Struct, frozen=True):
    """The judge's answer to `PlanRequest`."""

    matches: tuple[GuidelineMatch, ...] = ()
    verdicts: tuple[ToolVerdict, ...] = ()
    usage: Usage = Usage()
    model_calls: int = 1


class PlanRequest(Struct, frozen=True, kw_only=True):
    """Which guidelines apply, and what should run for them?"""

    iteration: int
    messages: tuple[Message, ...]
    """The conversation, with the calls and results of earlier iterations."""
    instructions: str = ""
    guidelines: tuple[Guideline, ...] = ()
    tools: tuple[CandidateTool, ...] = ()
    """The tools of these guidelines; none where guidelines are matched first."""
    variables: Mapping[str, Any] = {}
    terms: Mapping[str, str] = {}
    results: tuple[ToolResult, ...] = ()
    """Of this turn."""
    pending: tuple[PendingCall, ...] = ()
    """Calls that were read back to the customer and wait for a yes."""
    now: datetime | None = None
    error: str = ""
    """What was wrong with the previous answer to this request, if it is asked again."""


class MissingData(Struct, frozen=True, kw_only=True):
    """A value that a call needs and that nobody has given."""

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
    """What was decided for one candidate, after the checks."""

    tool: str
    state: VerdictState
    arguments: Mapping[str, Any] = {}
    reason: str = ""
    guideline_ids: tuple[str, ...] = ()
    iteration: int = 1


class ToolInsights(Struct, frozen=True, kw_only=True):
    """What was decided for the tools of a turn, and what stands in the way of those that cannot run."""

    evaluations: tuple[ToolEvaluation, ...] = ()
    missing_data: tuple[MissingData, ...] = ()
    invalid_data: tuple[InvalidData, ...] = ()


class ReplyRequest(Struct, frozen=True, kw_only=True):
    """What should be said to the customer?"""

    messages: tuple[Message, ...]
    instructions: str = ""
    guidelines: tuple[Guideline, ...] = ()
    """Those that apply."""
    candidates: tuple[Guideline, ...] = ()
    """Those that do not apply yet, and may because of what the tools returned."""
    results: tuple[ToolResult, ...] = ()
    insights: ToolInsights = ToolInsights()
    pending: tuple[PendingCall, ...] = ()
    """Calls that are prepared: the reply reads them back and asks for a yes."""
    variables: Mapping[str, Any] = {}
    terms: Mapping[str, str] = {}
    error: str = ""
    """What was wrong with the previous draft, if another one is asked for."""


class Draft(Struct, frozen=True):
    """The judge's answer to `ReplyRequest`."""

    text: str
    new_matches: tuple[GuidelineMatch | str, ...] = ()
    """Candidates that apply only now. The draft is dropped, and planning continues with them."""
    claims: tuple[str, ...] = ()
    """Tools whose effect the text says has happened, if the judge can tell."""
    usage: Usage = Usage()
    model_calls: int = 1


class GuidedTurnResult(TurnResult, frozen=True, kw_only=True):
    """How a guided turn ended, and why."""

    insights: ToolInsights = ToolInsights()
    trace: TurnTrace = TurnTrace()


class Judge(Protocol):
    """Whoever decides what the conversation asks for. Code checks every answer."""

    async def plan(self, request: PlanRequest) -> Plan:
        """Match guidelines, and decide about their tools."""
        ...

    async def reply(self, request: ReplyRequest) -> Draft:
        """Write to the customer."""
        ...


@runtime_checkable
class ClaimChecker(Protocol):
    """A judge that can also be asked the third question."""

    async def check(self, text: str, effects: tuple[str, ...]) -> tuple[str, ...]:
        """Which of these effects (names of tools) does a text say have happened?"""
        ...
