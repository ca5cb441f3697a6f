"""The recorded conversation of `handrail chat`: the model's responses are scripted, everything else is real."""

from collections.abc import Sequence

from handrail.chat import ChatSession
from handrail.cli.agent_file import AgentFile
from handrail.cli.screen import Screen
from handrail.core.context import ToolContext
from handrail.execute.executor import Executor
from handrail.testing.scripted import ScriptedProvider
from handrail.testing.servers import Reply, text, tool_calls

# A message of the customer and the responses of the model; None: the customer approves the open calls.
CONVERSATION: Sequence[tuple[str | None, Sequence[Reply]]] = (
    (
        "How much is on my accounts, and where is my order A-17?",
        (
            tool_calls(
                ("get_balance", {"account": "current"}, "c1"),
                ("get_balance", {"account": "savings"}, "c2"),
                ("get_order_status", {"order_id": "A-17"}, "c3"),
            ),
            text("Your current account has 310 EUR, your savings 2400 EUR. The order is due tomorrow."),
        ),
    ),
    (
        "Please send 120 euros to Sophie.",
        (
            tool_calls(("transfer", {"to": "Sophie", "amount": "a hundred and twenty"}, "c4")),
            tool_calls(("transfer", {"to": "Sophie", "amount": 120}, "c5")),
        ),
    ),
    (
        None,
        (
            tool_calls(("transfer", {"to": "Sophie", "amount": 120}, "c6")),
            text("Done: 120 EUR went to Sophie, once. 190 EUR are left."),
        ),
    ),
    (
        "And 20000 to Mark.",
        (
            tool_calls(("transfer", {"to": "Mark", "amount": 20000}, "c7")),
            tool_calls(("hand_off", {"reason": "a transfer over the limit"}, "c8")),
        ),
    ),
)


async def play_recorded_chat(agent: AgentFile, screen: Screen) -> None:
    """Play the recorded conversation to its end."""
    screen.console.print(
        "A recorded conversation with a bank's agent: the model's part is recorded, every call runs in the executor.",
        soft_wrap=True,
    )
    bank = agent.make_deps()
    lines = [line for _, lines in CONVERSATION for line in lines]
    session = ChatSession(
        ScriptedProvider(lines),
        Executor(agent.tools, policy=agent.policy),
        context=ToolContext(session_id="demo", customer_id="customer-1", deps=bank),
        instructions=agent.instructions,
    )
    for message, _ in CONVERSATION:
        screen.console.print()
        if message is None:
            for approval in await session.approvals():
                screen.print_message("customer", f"Yes, {approval.tool}.")
                await session.approve(approval.token)
        else:
            screen.print_message("customer", message)
        async for event in session.resume_stream() if message is None else session.stream(message):
            screen.show(event)
    screen.console.print()
    screen.print_message("bank", f"transfers made: {', '.join(bank.done)}")
