"""Your own loop over the Responses API, streamed: the customer approves a payment in between.

    python examples/responses_stream.py                     # a local server stands for OpenAI, the customer says yes
    OPENAI_API_KEY=… python examples/responses_stream.py    # with OpenAI, and your own answers

Needs `pip install 'handrail[openai]'`.
"""

import asyncio
import os
from typing import Any

from openai import AsyncOpenAI

from handrail import Executor, Policy, Rule, ToolContext, ToolResult, tool
from handrail.formats import openai_responses as wire
from handrail.testing.servers import OpenAIServer, text, tool_calls

CUSTOMER = "c-1"


@tool(read_only=True, concurrency_safe=True)
async def list_invoices() -> list[dict[str, Any]]:
    """List the open invoices."""
    return [{"invoice_id": "R-7", "amount": 40, "from": "Printer & Sons"}]


@tool(key="invoice_id", timeout=10)
async def pay(invoice_id: str, amount: int) -> str:
    """Pay an invoice."""
    return f"Paid {amount} EUR for {invoice_id}."


executor = Executor([list_invoices, pay], policy=Policy([Rule.ask("pay", by="customer")]))
definitions = wire.tools(executor.registry)


async def stream_response(client: AsyncOpenAI, messages: list[Any]) -> Any:
    """Print the text as it comes, and return the whole response."""
    async with client.responses.stream(model="gpt-5-mini", input=messages, tools=list(definitions)) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
        response = await stream.get_final_response()
    if response.output_text:
        print()
    return response


async def play_turn(client: AsyncOpenAI, messages: list[Any], context: ToolContext) -> list[ToolResult]:
    """Run calls until the model has nothing more to call; the results that wait for the customer."""
    waiting: list[ToolResult] = []
    while True:
        response = await stream_response(client, messages)
        messages += wire.assistant_messages(response)
        calls = wire.calls(response, definitions)  # Calls of a response that was cut off are refused, not guessed.
        if not calls:
            return waiting
        results = await executor.run_all(calls, context)
        for result in results:
            print(f"  [{result.tool_name}: {result.error.code if result.error else 'ok'}]")
        waiting += [result for result in results if result.approval is not None]
        messages += wire.results(results, definitions)


async def main() -> None:
    """A conversation of at most ten turns."""
    scripted = None if os.environ.get("OPENAI_API_KEY") else OpenAIServer(SCRIPT).__enter__()
    client = AsyncOpenAI() if scripted is None else AsyncOpenAI(base_url=scripted.url, api_key="none")
    messages: list[Any] = []
    said = "Pay what is open, please."
    async with client:
        for turn in range(1, 11):
            print(f"> {said}")
            messages.append({"role": "user", "content": said})
            context = ToolContext(session_id="s-1", customer_id=CUSTOMER, turn=turn)
            waiting = await play_turn(client, messages, context)
            if not waiting:
                break
            for result in waiting:
                approval = result.approval
                assert approval is not None
                # Show what will run, not what the model says about it.
                question = f"{approval.tool} {dict(approval.arguments)}? [y/N] "
                answer = "y" if scripted else await asyncio.to_thread(input, question)
                if answer == "y":
                    await executor.approvals.approve(approval.token, by="customer", who=CUSTOMER)
                else:
                    await executor.approvals.deny(approval.token, by="customer", who=CUSTOMER)
                said = "Yes." if answer == "y" else "No."
    if scripted is not None:
        scripted.__exit__(None, None, None)


SCRIPT = [
    tool_calls(("list_invoices", {})),
    tool_calls(("pay", {"invoice_id": "R-7", "amount": 40})),
    text("Shall I pay 40 EUR to Printer & Sons?"),
    tool_calls(("pay", {"invoice_id": "R-7", "amount": 40})),
    text("R-7 is paid."),
]
"""What the local server answers."""

if __name__ == "__main__":
    asyncio.run(main())
