"""A recorded conversation, played through the real executor: no model, no key, no network."""

import sys
from collections.abc import Sequence
from typing import Any

from handrail.authorize.approvals import Approval
from handrail.cli.desk import POLICY, TOOLS, Bank
from handrail.core.context import ToolContext
from handrail.core.events import CallFinished, CallIgnored, DecisionMade, Event
from handrail.core.text import compact_json
from handrail.execute.executor import Executor
from handrail.formats import openai_responses as wire

Items = Sequence[dict[str, Any]]


def _call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": compact_json(arguments),
        "status": "completed",
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


# What a model answered, turn by turn, in the form of OpenAI's Responses API. Each list is one response.
CONVERSATION: Sequence[tuple[str, Sequence[Items]]] = (
    (
        "How much is on my accounts, and where is my order A-17?",
        (
            (
                _call("c1", "get_balance", account="current"),
                _call("c2", "get_balance", account="savings"),
                _call("c3", "get_order_status", order_id="A-17"),
            ),
            (_text("Your current account has 310 EUR, your savings 2400 EUR. The order is due tomorrow."),),
        ),
    ),
    (
        "Please send 120 euros to Sophie.",
        (
            (_call("c4", "transfer", to="Sophie", amount="a hundred and twenty"),),
            (_call("c5", "transfer", to="Sophie", amount=120),),
            (_text("I can send 120 EUR to Sophie from your current account. Shall I?"),),
        ),
    ),
    (
        "Yes, do it.",
        (
            (_call("c6", "transfer", to="Sophie", amount=120),),
            (_call("c7", "transfer", to="Sophie", amount=120),),
            (_text("Done: 120 EUR went to Sophie, once. 190 EUR are left."),),
        ),
    ),
    (
        "And 20000 to Mark.",
        (
            (_call("c8", "transfer", to="Mark", amount=20000),),
            (_call("c9", "hand_over", reason="a transfer over the limit of this desk"),),
            (_text("That is more than I may move. A person takes over now."),),
        ),
    ),
)


class Screen:
    """Prints the conversation, and between its lines what the executor did."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._colour = sys.stdout.isatty()

    def say(self, who: str, text: str) -> None:
        print(self._styled(f"{who:>9}", "1") + f"  {text}")

    def note(self, text: str) -> None:
        if not self._quiet:
            print(self._styled(f"           | {text}", "2"))

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def __call__(self, event: Event) -> None:
        """Listen to the executor."""
        if isinstance(event, DecisionMade):
            decision = event.decision
            self.note(f"{event.call.name}: {decision.effect}, by {decision.rule}")
        elif isinstance(event, CallIgnored):
            self.note(f"{event.call.name}({event.call.arguments_json}): {event.reason}, not run again")
        elif isinstance(event, CallFinished):
            mark = "ok" if event.result.ok else "no"
            self.note(f"{mark} {event.call.name}({event.call.arguments_json}) -> {event.result.for_model()}")


async def play(*, quiet: bool = False) -> None:
    """Play the conversation to its end."""
    screen = Screen(quiet=quiet)
    bank = Bank()
    rail = Executor(TOOLS, policy=POLICY, listeners=[screen])
    definitions = wire.tools(rail.registry)
    print(
        "A recorded conversation at a bank's desk. The model's part is recorded; every call runs through the executor."
    )
    for turn, (said, responses) in enumerate(CONVERSATION, start=1):
        context = ToolContext(session_id="desk-1", customer_id="customer-1", turn=turn, deps=bank)
        print()
        screen.say("customer", said)
        for approval in await rail.approvals.pending(session_id="desk-1"):
            await _answer(rail, screen, approval)
        for output in responses:
            calls = wire.calls({"id": f"resp_{turn}", "output": output}, definitions)
            if calls:
                wire.results(await rail.run_all(calls, context))
            for item in output:
                if item["type"] == "message":
                    screen.say("agent", item["content"][0]["text"])
    print()
    screen.say("bank", f"transfers made: {', '.join(bank.done)}")


async def _answer(rail: Executor, screen: Screen, approval: Approval) -> None:
    """What a conversation does with a customer's yes: it approves exactly what was asked, and nothing else."""
    await rail.approvals.approve(approval.token, by="customer", who="customer-1", reason="said yes")
    screen.note(f"approved by the customer: {approval.tool}({compact_json(approval.arguments)})")
