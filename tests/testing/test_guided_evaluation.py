"""The evaluation of guided calling: a perfect judge scores everything, and one that calls at random is found out."""

from typing import Any

import pytest

from handrail.cli.main import main
from handrail.guide import Draft, GuidelineMatch, Plan, PlanRequest, ReplyRequest, ToolVerdict
from handrail.testing.evaluations import GuidedCase, evaluate_guided, load_guided_cases
from handrail.testing.evaluations.guided import GUIDELINES
from handrail.testing.servers import OpenAIServer
from tests.guide.test_provider_judge import said, wrote

CASES = {case.message: case for case in load_guided_cases()}


class PerfectJudge:
    """Answers as the cases expect it."""

    async def plan(self, request: PlanRequest) -> Plan:
        case = CASES[
            next(
                message.text
                for message in reversed(request.messages)
                if hasattr(message, "text") and message.text in CASES
            )
        ]
        if request.iteration > 1:
            return Plan()
        confirmation: Any = "yes" if case.runs else "no" if case.name == "a no" else None
        verdicts = [self._verdict(call.tool, call.arguments, confirmation) for call in case.calls]
        if case.missing or case.invalid:
            verdicts.append(self._incomplete(case, request))
        if case.name in ("a no", "a conditional yes") and case.pending:
            verdicts.append(self._verdict(case.pending.tool, case.pending.arguments, confirmation))
        ids = case.matches if case.matches is not None else _guidelines(case)
        return Plan(tuple(GuidelineMatch(item) for item in ids), tuple(verdicts))

    def _verdict(self, tool: str, arguments: Any, confirmation: Any) -> ToolVerdict:
        evidence = {name: "immediately" if name == "payment_date" else str(value) for name, value in arguments.items()}
        return ToolVerdict(tool, "needs_to_run", arguments, evidence, "", confirmation)

    def _incomplete(self, case: GuidedCase, request: PlanRequest) -> ToolVerdict:
        given = {"recipient_name": "Sophie Chapman", "amount": 500, "destination": "Singapore"}
        tool = next(item for item in request.tools if set(case.missing) <= item.schema["properties"].keys())
        known = {name: given[name] for name in tool.schema["properties"] if name in given and name not in case.missing}
        return ToolVerdict(tool.name, "cannot_run", known, {name: str(value) for name, value in known.items()})

    async def reply(self, request: ReplyRequest) -> Draft:
        return Draft("Well.")


def _guidelines(case: GuidedCase) -> list[str]:
    names = {call.tool for call in case.calls} | ({case.pending.tool} if case.pending else set())
    return [guideline.id for guideline in GUIDELINES if names & set(guideline.tools)]


async def test_a_perfect_judge_scores_everything() -> None:
    cases = load_guided_cases()
    report = await evaluate_guided(PerfectJudge(), cases)
    totals = report.totals()

    wrong = [
        score
        for score in report.scores
        if not (score.has_right_matches and score.has_right_calls and score.has_right_insights)
    ]
    assert wrong == []
    assert totals["cases"] == totals["right calls"] == totals["right insights"] == len(cases) >= 20
    assert (totals["false calls"], totals["errors"]) == (0, 0)
    assert totals["model calls"] <= 3 * len(cases)


async def test_a_judge_that_wants_everything_makes_false_calls_and_one_that_fails_makes_errors() -> None:
    class Eager(PerfectJudge):
        async def plan(self, request: PlanRequest) -> Plan:
            every = tuple(GuidelineMatch(guideline.id) for guideline in request.guidelines)
            return Plan(every, (ToolVerdict("get_balance", "needs_to_run", {"account": "current"}),))

    class Broken(PerfectJudge):
        async def plan(self, request: PlanRequest) -> Any:
            return None

    cases = load_guided_cases()[2:5]
    eager = (await evaluate_guided(Eager(), cases)).totals()
    broken = (await evaluate_guided(Broken(), cases)).totals()

    assert (eager["false calls"], eager["right calls"]) == (3, 0)
    assert (broken["errors"], broken["right calls"]) == (3, 0)


def test_the_command_prints_the_score_of_any_provider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = [said("balance", tool="get_balance", arguments={"account": "savings"}), wrote("310 EUR.")]
    with OpenAIServer(script) as server:
        for name, value in {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test", "HANDRAIL_MODEL": "m"}.items():
            monkeypatch.setenv(name, value)
        assert main(["eval", "guided", "--limit", "1", "--verbose"]) == 0
    printed = {
        line.rsplit(maxsplit=1)[0].strip(): line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]
    }

    assert printed == {
        "cases": "1",
        "right guidelines": "1",
        "right calls": "1",
        "right insights": "1",
        "false calls": "0",
        "errors": "0",
        "model calls": "2",
    }
