"""A judge with scripted responses, for tests, examples and offline runs."""

from collections.abc import Callable, Iterable

from handrail.errors import ConfigError
from handrail.guide.values import Draft, Plan, PlanRequest, ReplyRequest

PlanStep = Plan | Callable[[PlanRequest], Plan]
ReplyStep = Draft | str | Callable[[ReplyRequest], Draft | str]


class ScriptedJudge:
    """Responds to each request with the next step of its script: a value, or a function of the request.

    A function instead of a list responds to every request. The requests are kept for assertions.
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
        """The number of requests so far."""
        return len(self.plan_requests) + len(self.reply_requests)

    async def plan(self, request: PlanRequest) -> Plan:
        """Return the next plan."""
        self.plan_requests.append(request)
        step = self._plans if callable(self._plans) else next(self._plans, None)
        if step is None:
            raise ConfigError(f"the script has no plan number {len(self.plan_requests)}")
        return step(request) if callable(step) else step

    async def reply(self, request: ReplyRequest) -> Draft:
        """Return the next draft."""
        self.reply_requests.append(request)
        step = self._replies if callable(self._replies) else next(self._replies, None)
        if step is None:
            raise ConfigError(f"the script has no reply number {len(self.reply_requests)}")
        draft = step(request) if callable(step) else step
        return Draft(draft) if isinstance(draft, str) else draft
