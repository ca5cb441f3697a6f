"""Measures how well a provider judges: the cases of guided calling that need judgement, one turn each."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Annotated, Any, Literal

import msgspec

from handrail.define.function import tool
from handrail.errors import ConfigError, ProviderError
from handrail.guide import (
    Agent,
    Draft,
    GuidedTurnResult,
    Guideline,
    GuidelineMatch,
    Judge,
    ParameterOptions,
    Plan,
    PlanRequest,
    ReplyRequest,
    ToolVerdict,
)
from handrail.guide.judge_requests import NO_USABLE_RESPONSE


@tool(read_only=True, concurrency_safe=True)
async def get_balance(account: Literal["current", "savings"]) -> str:
    """Look up the balance of one of the customer's accounts."""
    return "310 EUR"


@tool
async def transfer_money(
    recipient_name: Annotated[str, ParameterOptions(display_name="the recipient's name")], amount: int
) -> str:
    """Transfer money from the customer's account to another person, in whole euros."""
    return f"Transferred {amount} EUR to {recipient_name}."


@tool
async def block_card(card: Literal["debit", "credit"]) -> str:
    """Block a bank card that was lost or stolen."""
    return "The card is blocked."


@tool
async def pay_cc_bill(payment_date: Annotated[str, ParameterOptions(source="customer")]) -> str:
    """Pay the credit card bill on a date, written as YYYY-MM-DD. The customer has to say when."""
    return "The bill will be paid."


@tool
async def book_flight(destination: Literal["London", "Tokyo", "Reykjavik"], passenger_id: int) -> str:
    """Book a flight for a passenger."""
    return "Booked."


@tool(read_only=True, concurrency_safe=True)
async def find_branch(city: str) -> str:
    """Find the nearest branch of the bank in a city."""
    return "1 Main Street"


@tool(read_only=True)
async def call_a_person() -> str:
    """Call an employee of the bank to the conversation."""
    return "Somebody is coming."


GUIDELINES = (
    Guideline(id="balance", condition="The customer asks how much money they have", tools=("get_balance",)),
    Guideline(id="transfer", condition="The customer wants to transfer money to somebody", tools=("transfer_money",)),
    Guideline(id="card", condition="The customer's own bank card was lost or stolen", tools=("block_card",)),
    Guideline(id="bill", condition="The customer wants to pay their credit card bill", tools=("pay_cc_bill",)),
    Guideline(id="flight", condition="The customer wants to book a flight", tools=("book_flight",)),
    Guideline(id="branch", condition="The customer looks for a branch of the bank", tools=("find_branch",)),
    Guideline(id="angry", condition="The customer is angry or asks for a person", tools=("call_a_person",)),
)


class ExpectedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that a case expects."""

    tool: str
    arguments: Mapping[str, Any] = {}


class GuidedCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn, and what a good judge makes of it."""

    name: str
    message: str
    matches: tuple[str, ...] | None
    """The guidelines that apply; None where it does not matter."""
    calls: tuple[ExpectedCall, ...]
    """The calls that run or are prepared."""
    missing: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    before: str = ""
    """The customer's message in the turn before."""
    pending: ExpectedCall | None = None
    """The call that the turn before prepared."""
    known: ExpectedCall | None = None
    """The call that the turn before made."""
    runs: bool = False
    """Whether the pending call is expected to run."""


class GuidedScore(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge made of one case."""

    case: GuidedCase
    matches: tuple[str, ...] = ()
    calls: tuple[ExpectedCall, ...] = ()
    missing: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    model_calls: int = 0
    error: str = ""

    @property
    def has_right_matches(self) -> bool:
        """Whether exactly the expected guidelines were found to apply."""
        return not self.error and (self.case.matches is None or set(self.matches) == set(self.case.matches))

    @property
    def has_right_calls(self) -> bool:
        """Whether exactly the expected calls ran or were prepared, with the expected arguments."""
        return not self.error and sorted(map(_comparable, self.calls)) == sorted(map(_comparable, self.case.calls))

    @property
    def has_right_insights(self) -> bool:
        """Whether exactly the expected values were found to be missing or invalid."""
        found = (set(self.missing), set(self.invalid))
        return not self.error and found == (set(self.case.missing), set(self.case.invalid))

    @property
    def is_false_call(self) -> bool:
        """Whether a call ran or was prepared that was not expected."""
        expected = [_comparable(call) for call in self.case.calls]
        return any(_comparable(call) not in expected for call in self.calls)


class GuidedReport(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of a judge."""

    judge: str
    scores: tuple[GuidedScore, ...]

    def totals(self) -> dict[str, int]:
        """The counts that are printed."""
        return {
            "cases": len(self.scores),
            "right guidelines": sum(score.has_right_matches for score in self.scores),
            "right calls": sum(score.has_right_calls for score in self.scores),
            "right insights": sum(score.has_right_insights for score in self.scores),
            "false calls": sum(score.is_false_call for score in self.scores),
            "errors": sum(bool(score.error) for score in self.scores),
            "model calls": sum(score.model_calls for score in self.scores),
        }


def load_guided_cases() -> tuple[GuidedCase, ...]:
    """Load all cases, in the order of the file."""
    text = files("handrail.testing.evaluations").joinpath("guided_cases.jsonl").read_bytes()
    return tuple(msgspec.json.decode(line, type=GuidedCase) for line in text.splitlines() if line)


async def evaluate_guided(
    judge: Judge,
    cases: Sequence[GuidedCase],
    *,
    name: str = "",
    progress: Callable[[GuidedScore], object] | None = None,
) -> GuidedReport:
    """Score a judge. Each case is a session of its own; the tools do nothing."""
    scores: list[GuidedScore] = []
    for case in cases:
        scores.append(await _score(judge, case))
        if progress is not None:
            progress(scores[-1])
    return GuidedReport(judge=name, scores=tuple(scores))


async def _score(judge: Judge, case: GuidedCase) -> GuidedScore:
    agent = Agent(
        judge=_Prepared(case, judge),
        tools=[get_balance, transfer_money, block_card, pay_cc_bill, book_flight, find_branch, call_a_person],
        guidelines=GUIDELINES,
        instructions="You work for a bank that also sells flights.",
        variables={"customer_name": "Mark Corrigan", "next_bill_due": "2026-11-30"},
        terms={"nest egg": "the savings account"},
        clock=lambda: datetime(2026, 11, 16, 9, 30, tzinfo=UTC),
    )
    session = agent.session(session_id="evaluation", customer_id="customer")
    try:
        if case.before:
            await session.send(case.before)
        result = await session.send(case.message)
    except (ProviderError, ConfigError) as error:
        return GuidedScore(case=case, error=f"{type(error).__name__}: {error}")
    finally:
        await agent.aclose()
    return _read(case, result)


def _read(case: GuidedCase, result: GuidedTurnResult) -> GuidedScore:
    candidates = [candidate for iteration in result.trace.iterations for candidate in iteration.candidates]
    made = [candidate for candidate in candidates if candidate.call is not None]
    failed = [
        note for iteration in result.trace.iterations for note in iteration.notes if note.startswith(NO_USABLE_RESPONSE)
    ]
    active = {match.id: match.applies for iteration in result.trace.iterations for match in iteration.guidelines}
    return GuidedScore(
        case=case,
        matches=tuple(match for match, applies in active.items() if applies),
        calls=tuple(
            ExpectedCall(tool=candidate.tool, arguments=candidate.call.arguments)
            for candidate in made
            if candidate.call is not None and (candidate.call.ok is not None) >= case.runs
        ),
        missing=tuple(gap.parameter for gap in result.insights.missing_data),
        invalid=tuple(gap.parameter for gap in result.insights.invalid_data),
        model_calls=result.trace.model_calls,
        error=failed[0] if failed else "",
    )


class _Prepared:
    """Plays the turn before as the case says, and then asks the judge."""

    def __init__(self, case: GuidedCase, judge: Judge) -> None:
        self._before = case.pending or case.known if case.before else None
        self._is_first = bool(case.before)
        self._judge = judge

    async def plan(self, request: PlanRequest) -> Plan:
        if not self._is_first:
            return await self._judge.plan(request)
        earlier = self._before
        assert earlier is not None
        guideline = next(each.id for each in GUIDELINES if earlier.tool in each.tools)
        evidence = {name: str(value) for name, value in earlier.arguments.items()}
        return Plan(
            (GuidelineMatch(guideline),), (ToolVerdict(earlier.tool, "needs_to_run", earlier.arguments, evidence),)
        )

    async def reply(self, request: ReplyRequest) -> Draft:
        if not self._is_first:
            return await self._judge.reply(request)
        self._is_first = False
        results = "; ".join(str(result.output) for result in request.results)
        return Draft(results or "One moment, please.")


def _comparable(call: ExpectedCall) -> tuple[str, tuple[tuple[str, str], ...]]:
    return call.tool, tuple(sorted((name, str(value).strip().casefold()) for name, value in call.arguments.items()))
