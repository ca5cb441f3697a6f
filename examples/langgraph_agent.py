"""A LangChain agent on LangGraph with Handrail as its middleware: the graph pauses, and the payment happens once.

    python examples/langgraph_agent.py                     # a fake model stands for a real one
    OPENAI_API_KEY=… python examples/langgraph_agent.py    # with OpenAI, through langchain-openai

Needs `pip install 'handrail[langchain]'`, and `langchain-openai` for OpenAI.
"""

import asyncio
import os
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from handrail import Executor, Policy, Rule, ToolContext, ToolFlags
from handrail.adapters.langchain import HandrailMiddleware, record_decisions

paid: list[str] = []


async def pay(invoice_id: str, amount: int) -> str:
    """Pay an invoice."""
    paid.append(invoice_id)
    return f"Paid {amount} EUR for {invoice_id}."


executor = Executor(
    policy=Policy([Rule.ask("pay", by="operator", reason="money leaves the account")]),
    declared={"pay": ToolFlags(key="invoice_id")},
    # store="postgresql://…": the ledger and the approvals of all your processes.
)


class ScriptedModel(GenericFakeChatModel):
    """Calls the tool, calls it again under a new id, then says something."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def choose_model() -> Any:
    """OpenAI's model if there is a key."""
    if os.environ.get("OPENAI_API_KEY"):
        return "openai:gpt-5-mini"
    call = {"name": "pay", "args": {"invoice_id": "R-7", "amount": 40}}
    calls = [AIMessage("", tool_calls=[{**call, "id": f"call_{number}"}]) for number in range(2)]
    return ScriptedModel(messages=iter([*calls, AIMessage("R-7 is paid.")]))


async def main() -> None:
    """One run, which is interrupted until an operator has decided."""
    handrail = HandrailMiddleware(executor, context=ToolContext(session_id="s-1", customer_id="c-1"))
    agent = create_agent(choose_model(), [pay], middleware=[handrail], checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "s-1"}}

    result = await agent.ainvoke({"messages": [("user", "Pay invoice R-7, 40 EUR.")]}, thread)
    while interrupts := result.get("__interrupt__"):
        for interrupt in interrupts:
            print(f"operator ann: yes to {interrupt.value['tool']} {interrupt.value['arguments']}")
        decisions = [{"type": "approve"} for _ in interrupts]
        resume = await record_decisions(executor, interrupts, decisions, session_id="s-1", by="operator", who="ann")
        result = await agent.ainvoke(resume, thread)
    print(result["messages"][-1].text)
    print(f"payments: {len(paid)}")


if __name__ == "__main__":
    asyncio.run(main())
