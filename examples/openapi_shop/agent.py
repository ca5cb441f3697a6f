"""A shop's API as tools, from its OpenAPI document: reads run, small refunds too, large ones wait for an operator.

    python examples/openapi_shop/agent.py                     # a script stands for the model
    OPENAI_API_KEY=… python examples/openapi_shop/agent.py    # with OpenAI

Needs `pip install 'handrail[openapi,openai]'`. See what becomes of a document: `handrail openapi inspect FILE`.
"""

import asyncio
import os
from pathlib import Path

from shop import serve_shop

from handrail import ChatSession, Executor, Policy, Rule, ToolContext
from handrail.core import CallFinished, Event
from handrail.providers import OpenAIResponses
from handrail.sources import OpenApi
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls

POLICY = Policy(
    [
        Rule.deny("refund_order", where={"amount": {"above": 500}}, reason="over the limit of this desk"),
        Rule.ask("refund_order", by="operator", where={"amount": {"above": 20}}),
        Rule.allow("refund_order"),
    ]
)


def show(event: Event) -> None:
    """Print every call and its result."""
    if isinstance(event, CallFinished):
        result = event.result.error.code if event.result.error else event.result.output
        print(f"  {event.call.name} {event.call.arguments_json}: {result}")


async def main() -> None:
    """One conversation about two orders."""
    provider = OpenAIResponses("gpt-5-mini") if os.environ.get("OPENAI_API_KEY") else ScriptedProvider(SCRIPT)
    with serve_shop() as url:
        # `allow_private`: the shop is on this machine. A credential would be a reference: bearer="env:SHOP_TOKEN".
        api = OpenApi(Path(__file__).parent / "shop.yaml", base_url=url, allow_private=True)
        async with Executor(api.tools(), policy=POLICY, listeners=[show]) as executor:
            session = ChatSession(provider, executor, context=ToolContext(session_id="s-1", customer_id="c-1"))
            print(f"> {MESSAGE}")
            result = await session.send(MESSAGE)
            while result.approvals:
                for approval in result.approvals:
                    print(f"  operator ann: yes to {approval.tool} {dict(approval.arguments)}")
                    await executor.approvals.approve(approval.token, by="operator", who="ann")
                result = await session.resume()
            print(result.text)


MESSAGE = "Please refund A-1 completely, and all of A-2."
SCRIPT = [
    tool_calls(("get_order", {"id": "A-1"})),
    tool_calls(("refund_order", {"id": "A-1", "amount": 50})),
    tool_calls(("refund_order", {"id": "A-2", "amount": 900})),
    "A-1 is refunded. A refund of 900 EUR is over my limit.",
]
"""What stands for the model."""

if __name__ == "__main__":
    asyncio.run(main())
