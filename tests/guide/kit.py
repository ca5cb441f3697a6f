"""What the tests of guided calling share: a bank, a judge with a script, and short ways to write its answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from handrail import Agent, Policy, Tool, ToolContext, ToolError, tool
from handrail.guide import Draft, GuidedSession, GuidelineMatch, Plan, ScriptedJudge, ToolVerdict


@dataclass
class Bank:
    """What the tools work on, and what they did."""

    balance: int = 20_000
    reads: list[str] = field(default_factory=list)
    sent: list[tuple[str, int]] = field(default_factory=list)


@tool(read_only=True, concurrency_safe=True)
async def get_balance(account: str, context: ToolContext[Bank]) -> str:
    """Look up the balance of an account."""
    context.deps.reads.append(account)
    return f"{context.deps.balance} EUR"


@tool(read_only=True, concurrency_safe=True)
async def get_investment_options(context: ToolContext[Bank]) -> list[str]:
    """List the investments that can be recommended."""
    context.deps.reads.append("investments")
    return ["bonds", "funds"]


@tool
async def transfer_money(recipient_name: str, amount: int, context: ToolContext[Bank]) -> str:
    """Transfer funds to another person."""
    if amount > context.deps.balance:
        raise ToolError("There is not enough money in the account.")
    context.deps.sent.append((recipient_name, amount))
    return f"Transferred {amount} EUR to {recipient_name}."


def applies(*ids: str) -> tuple[GuidelineMatch, ...]:
    return tuple(GuidelineMatch(item, True, f"{item} fits") for item in ids)


def needs(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    confirmation: Literal["yes", "no"] | None = None,
    evidence: bool = True,
    reason: str = "",
) -> ToolVerdict:
    """A verdict that a tool needs to run, with evidence for every argument."""
    given = dict(arguments or {})
    quoted = {name: str(value) for name, value in given.items()} if evidence else {}
    return ToolVerdict(name, "needs_to_run", given, quoted, reason, confirmation)


def plan(ids: Iterable[str], *verdicts: ToolVerdict) -> Plan:
    return Plan(applies(*ids), verdicts)


def agent_with(
    judge: Any,
    tools: Iterable[Tool[..., Any]] = (get_balance, transfer_money),
    *,
    policy: Policy | None = None,
    **more: Any,
) -> Agent:
    return Agent(judge=judge, tools=tools, policy=policy, agent_id="desk", **more)


def open_session(agent: Agent, bank: Bank | None = None, **more: Any) -> GuidedSession:
    return agent.session(**{"session_id": "s-1", "customer_id": "c-1", "deps": bank or Bank(), **more})


def scripted(plans: Iterable[Any] = (), replies: Iterable[Draft | str] = ()) -> ScriptedJudge:
    return ScriptedJudge(plans, replies)


SEND_500 = {"recipient_name": "Sophie", "amount": 500}
READ_BACK = "Please confirm: transfer money (recipient name: Sophie; amount: 500). Shall I go ahead?"
