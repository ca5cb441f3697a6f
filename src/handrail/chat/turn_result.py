"""How a turn of a conversation ends, and what a streamed turn yields until then."""

from typing import TypeAlias

from msgspec import Struct

from handrail.core.events import CallFinished, CallIgnored, CallStarted, Progress
from handrail.core.values import Approval, ToolResult
from handrail.execute.loop import StopReason
from handrail.providers.provider import FinishReason, TextDelta, Usage


class TurnResult(Struct, frozen=True, kw_only=True):
    """How a turn ended."""

    text: str = ""
    """The last text that the model wrote in this turn."""
    stop_reason: StopReason = "completed"
    finish_reason: FinishReason = "stop"
    """Why the model stopped writing. Show the person when it is `length` or `refusal`: the text is incomplete."""
    results: tuple[ToolResult, ...] = ()
    """The results of this turn's calls, in the order in which they came in. Calls that await an approval have none.
    Those with the codes `in_progress` and `outcome_unknown` are not final: the next turn looks the calls up again."""
    approvals: tuple[Approval, ...] = ()
    """The open approvals: decide with `session.approve(token)` or `session.deny(token)`, then `session.resume()`."""
    usage: Usage = Usage()
    """Tokens and cost of this turn."""


ChatEvent: TypeAlias = TextDelta | CallStarted | Progress | CallFinished | CallIgnored | Approval | TurnResult
"""What a streamed turn yields. The last one, and only the last, is the `TurnResult`."""
