"""A judge with its answers written down: for tests, examples and offline runs."""

from collections.abc import Callable, Iterable

from handrail.errors import ConfigError
from handrail.guide.values import Draft, Plan, PlanRequest, ReplyRequest

PlanStep = Plan | Callable[[PlanRequest], Plan]
ReplyStep = Draft | str | Callable[[ReplyRequest], Draft | str]


class ScriptedJudge:
    """Answers each question with the next line of its script, or with what a function makes of the request.

    A function instead of a list answers every question. The requests are kept, for a test to look at.
    """

    def __init__(
        self,
        plans: Iterable[PlanStep] | Callable[[PlanRequest], Plan] = (),
        replies: Iterable[ReplyStep] | Callable[[ReplyRequest], Draft | str] = (),
    ) -> None:
        self._plans = plans if callable(plans) else iter(tuple(plans))
        self._replies = replies if callable(replies) else iter(tuple(replies))
        self.plan_requests: list[PlanRequest] = []
        self.reply_requests: list[ReplyRequest] = []

    @property
    def questions(self) -> int:
        """How often it was asked."""
        return len(self.plan_requests) + len(self.reply_requests)

    async def plan(self, request: PlanRequest) -> Plan:
        """The next plan."""
        self.plan_requests.append(request)
        step = self._plans if callable(self._plans) else next(self._plans, None)
        if step is None:
            raise ConfigError(f"the script has no plan number {len(self.plan_requests)}")
        return step(request) if callable(step) else step

    async def reply(self, request: ReplyRequest) -> Draft:
        """The next draft."""
        self.reply_requests.append(request)
        step = self._replies if callable(self._replies) else next(self._replies, None)
        if step is None:
            raise ConfigError(f"the script has no reply number {len(self.reply_requests)}")
        draft = step(request) if callable(step) else step
        return Draft(draft) if isinstance(draft, str) else draft
