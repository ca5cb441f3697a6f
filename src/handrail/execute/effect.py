"""One call with consequences on its way down the line."""

from typing import Any

from msgspec import Struct

from handrail.core.context import ToolContext
from handrail.core.tool import Tool
from handrail.core.values import Decision, ToolCall
from handrail.execute.desk import Desk
from handrail.execute.running import Running
from handrail.execute.schedule import Ticket


class Effect(Struct, kw_only=True, eq=False):
    """One call with consequences: what it asks for, and how far it has come."""

    running: Running
    call: ToolCall
    tool: Tool[..., Any]
    desk: Desk
    value: Any
    arguments: dict[str, Any]
    context: ToolContext[Any]
    identity: str
    key: str
    ticket: Ticket
    started: float
    """When it arrived, by the clock that measures durations."""
    walks: bool = False
    """Whether its line has taken its first step."""
    decision: Decision | None = None
    replayed: bool = False
    """Whether its answer is the recorded one."""
