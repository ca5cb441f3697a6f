"""A shop's agent that follows guidelines: a return is prepared, read back to the customer, and made after their yes.

    python examples/guided_returns.py                     # a script stands for the model
    OPENAI_API_KEY=… python examples/guided_returns.py    # with OpenAI
    handrail chat examples/guided_returns.py              # type yourself

Needs `pip install 'handrail[openai]'`.
"""

import asyncio
import os
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from handrail import Agent, Guideline, Policy, Rule, ToolContext, ToolError, tool
from handrail.guide import GuidelineMatch, ParameterOptions, Plan, ScriptedJudge, ToolVerdict
from handrail.providers import OpenAIResponses


@dataclass(slots=True, kw_only=True)
class Shop:
    """The state that the tools read and change."""

    orders: dict[str, str] = field(default_factory=lambda: {"A-1": "a lamp, 40 EUR, delivered 3 days ago"})
    returns: list[str] = field(default_factory=list[str])


@tool(read_only=True, concurrency_safe=True)
async def get_order(order_id: str, context: ToolContext[Shop]) -> str:
    """Look up an order."""
    if order_id not in context.deps.orders:
        raise ToolError(f"There is no order {order_id}.")
    return context.deps.orders[order_id]


@tool(key="order_id", timeout=10)
async def create_return(
    order_id: str,
    reason: Annotated[Literal["broken", "unwanted"], ParameterOptions(display_name="why it comes back")],
    context: ToolContext[Shop],
) -> str:
    """Create the return of an order, and send the customer a label."""
    context.deps.returns.append(order_id)
    return f"The return of {order_id} is created; the label is in the mail."


def build_agent(**options: Any) -> Agent:
    """The agent. Only the tools of guidelines that apply are considered."""
    return Agent(
        agent_id="returns",
        instructions="You work for a small shop. You are brief and polite.",
        tools=[get_order, create_return],
        policy=Policy([Rule.ask("create_return", by="customer", reason="the order is sent back")]),
        guidelines=[
            Guideline(
                id="order",
                condition="The customer asks about an order, or wants to return one",
                action="Look the order up",
                tools=("get_order",),
            ),
            Guideline(
                id="return",
                condition="The customer wants to return an order",
                action="Create the return, after the customer has confirmed it",
                tools=("create_return",),
                criticality="high",
            ),
            Guideline(id="late", condition="An order is older than 30 days", action="Say that it cannot be returned"),
        ],
        **options,
    )


async def main() -> None:
    """Two messages of a customer."""
    is_real = bool(os.environ.get("OPENAI_API_KEY"))
    agent = (
        build_agent(provider=OpenAIResponses("gpt-5-mini")) if is_real else build_agent(judge=ScriptedJudge(*SCRIPT))
    )
    shop = Shop()
    session = agent.session(session_id="s-1", customer_id="c-1", deps=shop)
    for message in ("My lamp from order A-1 is broken, I want to return it.", "Yes, please."):
        result = await session.send(message)
        print(f"> {message}\n{result.text}\n{result.trace.tree()}\n")
    print(f"returns: {shop.returns}")


RETURN = {"order_id": "A-1", "reason": "broken"}
SCRIPT = (
    [
        Plan(
            (GuidelineMatch("order"), GuidelineMatch("return")),
            (
                ToolVerdict("get_order", "needs_to_run", {"order_id": "A-1"}),
                ToolVerdict("create_return", "needs_to_run", RETURN, {"order_id": "order A-1", "reason": "is broken"}),
            ),
        ),
        Plan((GuidelineMatch("return"),), (ToolVerdict("create_return", "needs_to_run", RETURN, confirmation="yes"),)),
    ],
    ["I am sorry about the lamp.", "The return of A-1 is created; the label is in your mail."],
)
"""What stands for the model: its plans and its replies."""

AGENT = build_agent()  # for `handrail chat`
make_deps = Shop

if __name__ == "__main__":
    asyncio.run(main())
