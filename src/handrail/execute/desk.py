"""What an executor has worked out about one tool, so that a call does not have to."""

import dis
from types import CodeType
from typing import Any

from handrail.authorize.policy import Plan
from handrail.core.tool import Tool
from handrail.execute.schedule import Way


class Desk:
    """One tool, its plan, its limits, and whether its calls can take the short way."""

    __slots__ = ("decision", "most", "never_waits", "plan", "seconds", "simple", "tool", "way")

    def __init__(self, tool: Tool[..., Any], plan: Plan, *, seconds: float, most: int) -> None:
        self.tool = tool
        self.plan = plan
        self.seconds = tool.timeout or seconds
        self.most = int(tool.max_output_chars or most)
        self.way: Way = "together" if tool.concurrency_safe or tool.lock_key is not None else "alone"
        constant = plan.constant if tool.permission_check is None else None
        self.decision = constant if constant is not None and constant.action == "allow" else None
        """The decision about every call, where it is always to let it run."""
        self.simple = (
            self.decision is not None
            and tool.read_only
            and tool.is_async
            and tool.lock_key is None
            and tool.cache_for is None
        )
        """Nothing to ask, nothing to claim: the handler can run in the caller's task at once."""
        self.never_waits = _without_await(tool) if self.simple else None
        """The code of a handler that has no `await` in it: it is over when its first step is."""

    def for_handler(self, tool: Tool[..., Any]) -> "Desk":
        """The same desk for a tool that differs in its handler only."""
        desk = object.__new__(Desk)
        for name in Desk.__slots__:
            setattr(desk, name, getattr(self, name))
        desk.tool, desk.never_waits = tool, None
        return desk


def _without_await(tool: Tool[..., Any]) -> CodeType | None:
    code = getattr(tool.function, "__code__", None)
    if not isinstance(code, CodeType) or any(one.opname == "SEND" for one in dis.get_instructions(code)):
        return None
    return code
