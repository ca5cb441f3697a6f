"""A recorded conversation, played through the real conversation and executor: no model, no key, no network."""

from collections.abc import Sequence

from handrail.chat import ChatSession
from handrail.cli.desk import Desk
from handrail.cli.screen import Screen
from handrail.core.context import ToolContext
from handrail.execute.executor import Executor
from handrail.testing.scripted import ScriptedProvider
from handrail.testing.servers import Reply, text, tool_calls

# What the customer said, and what a model answered; None: the customer says yes to what was asked.
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
            tool_calls(("hand_over", {"reason": "a transfer over the limit of this desk"}, "c8")),
        ),
    ),
)


async def play(desk: Desk, screen: Screen) -> None:
    """Play the conversation to its end."""
    screen.console.print(
        "A recorded conversation at a bank's desk. The model's part is recorded; every call runs through the executor.",
        soft_wrap=True,
    )
    bank = desk.make_deps()
    lines = [line for _, lines in CONVERSATION for line in lines]
    session = ChatSession(
        ScriptedProvider(lines),
        Executor(desk.tools, policy=desk.policy),
        context=ToolContext(session_id="desk-1", customer_id="customer-1", deps=bank),
        instructions=desk.instructions,
    )
    for said, _ in CONVERSATION:
        screen.console.print()
        if said is None:
            for approval in await session.approvals():
                screen.say("customer", f"Yes: {approval.tool}, exactly so.")
                await session.approve(approval.token)
        else:
            screen.say("customer", said)
        async for event in session.resume_stream() if said is None else session.stream(said):
            screen.hear(event)
    screen.console.print()
    screen.say("bank", f"transfers made: {', '.join(bank.done)}")
