"""An agent with guidelines in a real terminal, with a real SDK, against a local server."""

from pathlib import Path

import pytest

from handrail.cli.agent_file import load_agent_file
from handrail.errors import ConfigError
from tests.cli.test_chat import talking
from tests.guide.test_provider_judge import said, wrote

EXAMPLE = Path(__file__).parents[2] / "examples" / "guided_bank.py"
SEND = {"recipient_name": "Sophie Chapman", "amount": 50}


def test_a_guided_conversation_asks_and_is_answered_in_words() -> None:
    script = [
        said("balance", tool="get_balance"),
        wrote("You have 12400 EUR.", "invest"),
        wrote("You have 12400 EUR; you could buy bonds."),
        said("transfer", tool="transfer_money", arguments=SEND),
        wrote("Shall I send 50 EUR to Sophie Chapman?"),
        said("transfer", tool="transfer_money", pending="guided_2_1_1", confirmation="yes"),
        wrote("I sent 50 EUR to Sophie Chapman."),
        said("transfer", tool="transfer_money", arguments={**SEND, "amount": 70}),
        wrote("Shall I send 70 EUR to Sophie Chapman?"),
        wrote("I sent 70 EUR to Sophie Chapman."),
    ]
    with talking(script, str(EXAMPLE)) as (terminal, _):
        terminal.types("How much do I have?")
        terminal.sees("-> get_balance")
        terminal.sees("-> get_investment_options")
        terminal.sees("you could buy bonds.")
        terminal.types("Send 50 to Sophie Chapman")
        terminal.sees("Shall I send 50 EUR to Sophie Chapman?")
        terminal.types("Yes, please.")
        terminal.sees("ok transfer_money: Transferred 50 EUR")
        terminal.sees("I sent 50 EUR")
        terminal.types("/why")
        terminal.sees("because of transfer (The customer wants to send or transfer money")
        terminal.types("/trace")
        terminal.sees("guideline transfer applies")
        terminal.sees("result: Transferred 50 EUR")
        terminal.types("And 70 more")
        terminal.sees("Shall I send 70 EUR")
        terminal.types("/yes")
        terminal.sees("ok transfer_money: Transferred 70 EUR")
        terminal.types("/quit")
        assert terminal.ends() == 0


def test_a_file_has_an_agent_or_tools_and_not_both(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("from handrail import Agent\nAGENT = Agent()\nTOOLS = []\n")
    with pytest.raises(ConfigError, match="defines AGENT, which has its own; remove TOOLS"):
        load_agent_file(file)
    file.write_text("AGENT = 5\n")
    with pytest.raises(ConfigError, match=r"AGENT in .* must be an Agent, got int"):
        load_agent_file(file)
