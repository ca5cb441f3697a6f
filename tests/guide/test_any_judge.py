"""Any judge, customer and policy: what runs was shown and agreed to, or allowed; no reply claims more than was done."""

import asyncio
import json
from collections import defaultdict
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from handrail import Agent, Policy, Rule, ToolContext, tool
from handrail.authorize import MemoryApprovals
from handrail.core import Approval
from handrail.errors import ConfigError
from handrail.guide import Draft, GuidelineMatch, GuideSettings, Plan, PlanRequest, ReplyRequest, ToolVerdict
from handrail.providers import AssistantMessage

IDS = ("g1", "g2", "g3", "g4")
TOOLS = {"g1": ("look",), "g2": ("send",), "g3": ("send", "look"), "g4": ()}
STATES = ("needs_to_run", "data_already_in_context", "not_applicable", "cannot_run")

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
amounts = st.sampled_from([{"amount": 1}, {"amount": 2}, {"amount": "1"}, {"amount": 0}, {}])
arguments = (
    amounts | amounts | st.dictionaries(st.sampled_from(["amount", "what"]) | st.text(max_size=3), anything, max_size=2)
)
matches = st.builds(
    GuidelineMatch, st.sampled_from([*IDS, "g9"]), st.booleans() | st.just(True) | st.just(True), st.text(max_size=3)
)
verdicts = st.builds(
    ToolVerdict,
    st.sampled_from(["look", "send", "send", "other", "nothing"]),
    st.sampled_from(STATES) | st.just("needs_to_run") | st.just("needs_to_run"),
    arguments,
    st.just({"amount": "send 1 or 2", "what": "send"})
    | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=1),
    st.text(max_size=3),
    st.sampled_from([None, "yes", "yes", "no"]),
)
likely = st.builds(
    lambda ids, amount, confirmation, more: Plan(
        tuple(GuidelineMatch(item) for item in ids),
        (ToolVerdict("send", "needs_to_run", {"amount": amount}, {"amount": f"{amount}"}, "", confirmation), *more),
    ),
    st.sampled_from([("g2",), ("g2",), ("g3", "g1"), ("g1",), ()]),
    st.sampled_from([1, 1, 2]),
    st.sampled_from([None, "yes", "yes", "yes", "no"]),
    st.lists(verdicts, max_size=1),
)
odd = st.builds(Plan, st.lists(matches, max_size=4).map(tuple), st.lists(verdicts, max_size=4).map(tuple))
# Drawn by a number, so that what is likely is tried most: else nothing would ever run.
plans = st.integers(0, 9).flatmap(
    lambda which: likely if which < 6 else odd if which < 9 else anything | st.just(RuntimeError("a bug"))
)
words = st.sampled_from(["Yes.", "Yes.", "yes, send 1", "Yes, send 2", "No, stop!", "Is it 1?", "hm", "Yes, but 3"])
YES = {"Yes.": {1, 2}, "yes, send 1": {1}, "Yes, send 2": {2}}
"""What a customer agrees to with these words; nothing with the others."""
texts = st.sampled_from(["Hello.", "I have sent it.", "I have sent 1.", "I have sent 2.", "Shall I send 1?", ""])
POLICIES = {
    "default": (None, {1: "customer", 2: "customer"}),
    "allow": (Policy([Rule.allow("send")]), {1: "allow", 2: "allow"}),
    "deny": (Policy([Rule.deny("send", reason="never")]), {}),
    "operator": (Policy([Rule.ask("send", by="operator")]), {1: "operator", 2: "operator"}),
    "limit": (
        Policy([Rule.ask("send", by="customer", where={"amount": {"above": 1}}), Rule.allow("send")]),
        {1: "allow", 2: "customer"},
    ),
    "two limits": (
        Policy([Rule.ask("send", by="operator", where={"amount": {"above": 1}}), Rule.ask("send", by="customer")]),
        {1: "customer", 2: "operator"},
    ),
}
"""Policies, and what each of them wants for an amount; nothing: it is denied."""
news = st.lists(st.sampled_from([*IDS, "g9"]), max_size=2).map(tuple)
drafts = st.integers(0, 9).flatmap(lambda which: st.builds(Draft, texts, news) if which < 9 else anything)


class AnyJudge:
    """Answers with whatever is drawn, and remembers what it said in which turn."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.turn = 0
        self.said: dict[int, list[set[str]]] = defaultdict(list)
        """For each turn, the guidelines that it last said apply, after each of its answers."""
        self.agreed: dict[int, list[Any]] = defaultdict(list)
        """For each turn, the arguments to which it reported a yes."""

    def _say(self, ids: dict[str, bool]) -> None:
        before = set(self.said[self.turn][-1]) if self.said[self.turn] else set()
        self.said[self.turn].append(
            (before | {one for one, yes in ids.items() if yes}) - {one for one, yes in ids.items() if not yes}
        )

    async def plan(self, request: PlanRequest) -> Plan:
        answer: Any = self._data.draw(plans)
        if request.pending and self._data.draw(st.integers(0, 9)) < 6:  # A judge that hears a yes in everything.
            call = self._data.draw(st.sampled_from(request.pending)).call
            found = ToolVerdict("send", "needs_to_run", json.loads(call.arguments_json), {}, "", "yes")
            answer = Plan(tuple(map(GuidelineMatch, call.guideline_ids)), (found,))
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Plan):
            self._say({match.guideline_id: match.applies for match in answer.matches})
            self.agreed[self.turn] += [
                verdict.arguments
                for verdict in answer.verdicts
                if verdict.confirmation == "yes" and verdict.tool == "send"
            ]
        return answer

    async def reply(self, request: ReplyRequest) -> Draft:
        answer: Any = self._data.draw(drafts)
        if isinstance(answer, Draft):
            known = {candidate.id for candidate in request.candidates}
            self._say({match: True for match in answer.new_matches if match in known})
        return answer


class CountingApprovals(MemoryApprovals):
    """Remembers which approvals were used up, and by which way they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[str] = []
        self.by_words: list[tuple[int, Approval]] = []
        """With the turn in which it was given."""
        self.turn = 0

    async def consume(self, token: str, *, now: float, call_id: str | None = None) -> bool:
        used = await super().consume(token, now=now, call_id=call_id)
        if used:
            self.used.append(token)
        return used

    async def approve(self, token: str, **how: Any) -> Approval:
        approval = await super().approve(token, **how)
        if how.get("reason") == "agreed in words":
            self.by_words.append((self.turn, approval))
        return approval


@given(data=st.data())
def test_whatever_the_judge_says_nothing_runs_that_must_not(data: st.DataObject) -> None:
    asyncio.run(conversation(data))


async def conversation(data: st.DataObject) -> None:
    ran: list[tuple[str, str, tuple[str, ...], int]] = []
    sent: list[tuple[int, int]] = []
    policy, wants = POLICIES[data.draw(st.sampled_from(["default", *POLICIES]))]

    def note(context: ToolContext[Any]) -> None:
        assert context.call is not None
        ran.append((context.call.name, context.call.id, context.call.guideline_ids, judge.turn))

    @tool(read_only=True, concurrency_safe=True)
    async def look(context: ToolContext[Any], what: str = "all") -> str:
        """Look."""
        note(context)
        return what

    @tool
    async def send(amount: int, context: ToolContext[Any]) -> str:
        """Send an amount."""
        note(context)
        sent.append((amount, judge.turn))
        return f"sent {amount}"

    @tool(read_only=True)
    async def other(context: ToolContext[Any]) -> str:
        """Belongs to no guideline."""
        note(context)
        return "other"

    judge, approvals = AnyJudge(data), CountingApprovals()
    settings = GuideSettings(match_first=data.draw(st.sampled_from([12, "always", 0])))
    agent = Agent(judge=judge, tools=[look, send, other], policy=policy, approvals=approvals, settings=settings)
    for name in IDS:
        await agent.create_guideline(f"condition {name}", tools=TOOLS[name], id=name)
    session = agent.session(session_id="s", customer_id="c")
    by_token: list[Approval] = []
    shown: dict[int, list[str]] = {}
    """What the customer had read before each turn."""
    wrote: dict[int, str] = {}
    for turn in range(1, data.draw(st.integers(2, 4)) + 1):
        judge.turn = approvals.turn = turn
        shown[turn] = [
            message.text for message in session.conversation.messages if isinstance(message, AssistantMessage)
        ]
        if session.conversation.pending and data.draw(st.booleans()):
            for pending in await session.approvals():
                if data.draw(st.booleans()):
                    by_token.append(await approvals.approve(pending.token, by=pending.by, who="c", reason="checked"))
        try:
            if turn > 1 and data.draw(st.integers(0, 4)) == 4:
                result = await session.resume()
            else:
                wrote[turn] = data.draw(words) if turn > 1 else "Please send 1 or 2"
                result = await session.send(wrote[turn])
        except ConfigError:  # There is nothing to resume.
            judge.turn = turn
            continue
        for number, approval in approvals.by_words:
            if number == turn:
                amount = approval.arguments["amount"]
                said = wrote[max(wrote)]
                assert amount in YES.get(said, ()), "the customer did not agree to it"
                assert any(f"send (amount: {amount})" in text for text in shown[turn]), "it was not read back"
        if "I have sent it." in result.text:
            assert sent, "a reply claims what did not happen"
        for amount in (1, 2):
            if f"I have sent {amount}." in result.text:
                assert amount in [one for one, _ in sent], "a reply claims another amount than was sent"
        assert result.stop_reason in ("completed", "approval_required")
        assert {item.call_id for item in result.results} <= {call_id for _, call_id, _, _ in ran} | {
            item.call_id for item in result.results if not item.ok
        }

    for name, call_id, guideline_ids, _ in ran:
        prepared = next(turn for turn in judge.said if turn == _turn_of(call_id, session))
        assert guideline_ids, "a call without a guideline"
        assert all(name in TOOLS[item] for item in guideline_ids)
        assert any(set(guideline_ids) <= said for said in judge.said[prepared]), "its guidelines did not apply"
    ids = [call_id for _, call_id, _, _ in ran]
    assert len(ids) == len(set(ids)), "a call ran twice"
    seen: set[int] = set()
    asked: list[tuple[int, int, str]] = []
    for amount, turn in sent:
        how = wants.get(amount, "customer" if policy is None else "")
        assert how, "what the policy denies has run"
        if how != "allow" or amount in seen:  # For a repetition the customer is asked, whatever the policy allows.
            asked.append((amount, turn, "customer" if how == "allow" else how))
        seen.add(amount)
    assert len(asked) == len(approvals.used) == len(set(approvals.used)), "an effect without an approval of its own"
    assert len(asked) <= len(by_token) + len(approvals.by_words)
    for amount, turn, how in asked:
        if how == "customer":
            assert any(f"send (amount: {amount})" in text for text in shown[turn]), (
                "it was not shown in an earlier turn"
            )
        if how == "operator":
            decided = [item.arguments["amount"] for item in by_token if item.by == "operator"]
            assert amount in decided, "no operator has agreed"
    for _, approval in approvals.by_words:
        agreed = [dict(item) for turn, every in judge.agreed.items() if turn > 1 for item in every]
        assert any(str(item.get("amount")) == str(approval.arguments["amount"]) for item in agreed)
    counts = {"effects": len(sent), "reads": len(ran) - len(sent), "by words": len(approvals.by_words)}
    for name, count in counts.items():
        event(f"{name}: {min(count, 2)}")


def _turn_of(call_id: str, session: Any) -> int:
    """The turn in which a call was prepared is in its id; the judge counts the turns in the same way."""
    return int(call_id.split("_")[1])
