"""A pydantic-ai agent with Handrail under its tools: a run pauses for an operator, and the payment happens once.

    python examples/pydantic_ai_agent.py                     # a function stands for the model
    OPENAI_API_KEY=… python examples/pydantic_ai_agent.py    # with OpenAI

Needs `pip install 'handrail[pydantic-ai,openai]'`.
"""

import asyncio
import os

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, FunctionToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from handrail import Executor, Policy, Rule, ToolContext, ToolFlags
from handrail.adapters.pydantic_ai import HandrailToolset, record_decisions

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


def play_script(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Call the tool, call it again under a new id, then say something."""
    step = sum(isinstance(message, ModelResponse) for message in messages)
    if step < 2:
        call = ToolCallPart("pay", {"invoice_id": "R-7", "amount": 40}, tool_call_id=f"call_{step}")
        return ModelResponse(parts=[call])
    return ModelResponse(parts=[TextPart("R-7 is paid.")])


async def main() -> None:
    """One run, which pauses until an operator has decided."""
    model = "openai:gpt-5-mini" if os.environ.get("OPENAI_API_KEY") else FunctionModel(play_script)
    context = ToolContext(session_id="s-1", customer_id="c-1")
    toolset = HandrailToolset(FunctionToolset([pay]), executor, context=context)
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])

    run = await agent.run("Pay invoice R-7, 40 EUR.")
    while isinstance(run.output, DeferredToolRequests):
        for request in run.output.approvals:
            question = run.output.metadata[request.tool_call_id]
            print(f"operator ann: yes to {question['tool']} {question['arguments']}")
        decided = DeferredToolResults(approvals={request.tool_call_id: True for request in run.output.approvals})
        resume = await record_decisions(executor, decided, session_id="s-1", by="operator", who="ann")
        run = await agent.run(message_history=run.all_messages(), deferred_tool_results=resume)
    print(run.output)
    print(f"payments: {len(paid)}")


if __name__ == "__main__":
    asyncio.run(main())
