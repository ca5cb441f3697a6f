"""A judge with scripted responses, for tests, examples and offline runs."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from handrail.errors import ConfigError
from handrail.guide.values import Draft, GuidelineMatch, Plan, PlanRequest, ReplyRequest

T = TypeVar("T")

PlanStep = Plan | Callable[[PlanRequest], Plan]
ReplyStep = Draft | str | Callable[[ReplyRequest], Draft | str]


class ScriptedJudge:
    """Responds to each request with the next step of its script: a value, or a function of the request.

    A function instead of a list responds to every request. The requests are kept for assertions. `finish()` fails if
    some steps were not used.
    """

    def __init__(
        self,
        plans: Iterable[PlanStep] | Callable[[PlanRequest], Plan] = (),
        replies: Iterable[ReplyStep] | Callable[[ReplyRequest], Draft | str] = (),
    ) -> None:
        self._plans = plans if callable(plans) else deque(plans)
        self._replies = replies if callable(replies) else deque(replies)
        self._unknown = ""
        """What the last plan named that its request does not have."""
        self.plan_requests: list[PlanRequest] = []
        self.reply_requests: list[ReplyRequest] = []

    @property
    def questions(self) -> int:
        """The number of requests so far."""
        return len(self.plan_requests) + len(self.reply_requests)

    async def plan(self, request: PlanRequest) -> Plan:
        """Return the next plan."""
        self.plan_requests.append(request)
        step = _take(self._plans, self.plan_requests, "plan", request.error or self._unknown)
        plan = step(request) if callable(step) else step
        self._unknown = _find_unknown(plan, request)
        return plan

    async def reply(self, request: ReplyRequest) -> Draft:
        """Return the next draft."""
        self.reply_requests.append(request)
        step = _take(self._replies, self.reply_requests, "reply", request.error)
        draft = step(request) if callable(step) else step
        return Draft(draft) if isinstance(draft, str) else draft

    def finish(self) -> None:
        """Raise `AssertionError` if steps of the script are unused."""
        for kind, left in {"plans": self._plans, "replies": self._replies}.items():
            if not callable(left) and left:
                raise AssertionError(f"{len(left)} scripted {kind} were not used: {list(left)!r}")


def _take(
    steps: deque[T] | Callable[..., Any], requests: Sequence[object], kind: str, why: str
) -> T | Callable[..., Any]:
    """Take the step for the last of some requests; the error says why there is one request more, if that is known."""
    if callable(steps):
        return steps
    if not steps:
        last = f"; about the one before it: {why}" if why else ""
        raise ConfigError(f"the script has no {kind} number {len(requests)}{last}")
    return steps.popleft()


def _find_unknown(plan: object, request: PlanRequest) -> str:
    """Find a guideline that a plan names and its request does not have."""
    known = [guideline.id for guideline in request.guidelines]
    matches = cast(object, plan.matches) if isinstance(plan, Plan) else ()  # A script's: it can be anything.
    found = cast("Sequence[object]", matches) if isinstance(matches, tuple | list) else ()
    ids = [match.guideline_id for match in found if isinstance(match, GuidelineMatch)]
    unknown = [guideline_id for guideline_id in ids if guideline_id not in known]
    return f"{unknown[0]!r} is no guideline; one of {', '.join(known)}." if unknown else ""
