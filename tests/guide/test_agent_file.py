"""An agent from a file: everything that needs no code can be written; every error names the file and the line."""

from pathlib import Path
from typing import Any

import pytest

from handrail import Agent, ConfigError
from handrail.guide import Draft
from tests.guide.kit import Bank, get_balance, needs, open_session, plan, scripted, transfer_money

FILE = """
instructions: You work for a bank.
agent_id: desk
locale: fr
guidelines:
  - id: balance
    condition: Customer asks for their balance
    tools: [get_balance]
    criticality: high
  - id: polite
    action: Be polite
    always: true
    track: true
  - id: other
    condition: Customer asks for more
relationships:
  - [balance, takes_priority_over, other]
journeys:
  - id: open
    title: Open an account
    condition: Customer wants an account
    states:
      - {name: ask, action: Ask for the name}
      - {name: check, tools: [get_balance]}
    transitions:
      - {from: ask, to: check, condition: they said it}
    guidelines:
      - {id: why, condition: asks why, action: Explain}
variables: {name: Jerry, limits: [1, 2]}
terms:
  nest egg: the savings account
  card: {description: a debit card, synonyms: [plastic]}
parameters:
  transfer_money:
    recipient_name: {display_name: recipient, source: customer}
    amount: {display: masked, precedence: 1}
replies:
  - Hello {name}.
  - {id: balance, text: "You have {get_balance}."}
replies_mode: strict
"""


def load(tmp_path: Path, text: str, judge: Any = None) -> Agent:
    file = tmp_path / "agent.yaml"
    file.write_bytes(text.encode())
    return Agent.from_file(file, tools=[get_balance, transfer_money], judge=judge or scripted())


async def test_an_agent_is_read_from_a_file(tmp_path: Path) -> None:
    answer = plan(["balance", "other"], needs("get_balance", {"account": "a"}))
    judge = scripted([answer, plan(["open", "why"])], [Draft("?", template="balance"), Draft("?", template="t1")])
    agent = load(tmp_path, FILE, judge)
    bank = Bank()
    session = open_session(agent, bank)
    first, second = await session.send("How much is in a?"), await session.send("Why?")

    assert (agent.agent_id, agent.instructions, agent.locale) == ("desk", "You work for a bank.", "fr")
    assert (bank.reads, first.text, second.text) == (["a"], "You have 20000 EUR.", "Hello Jerry.")
    followed = [[guideline.id for guideline in request.guidelines] for request in judge.reply_requests]
    assert followed == [["balance", "polite"], ["open", "why"]]
    assert judge.plan_requests[0].variables == {"name": "Jerry", "limits": [1, 2]}
    assert judge.plan_requests[0].terms["card"] == "a debit card (also called plastic)"
    assert [guideline.id for guideline in judge.plan_requests[0].guidelines][3:] == [
        "open",
        "open.ask",
        "open.check",
        "why",
    ]


async def test_options_of_parameters_can_be_written(tmp_path: Path) -> None:
    judge = scripted([plan(["g1"], needs("transfer_money", {"recipient_name": "Sophie", "amount": 12345678}))], ["Ok."])
    text = "guidelines: [{condition: wants to send, tools: [transfer_money]}]\n" + FILE[FILE.index("parameters:") :]
    agent = load(tmp_path, text.replace("replies_mode: strict", "variables: {name: Jerry}"), judge)
    result = await open_session(agent).send("12345678 to Sophie")
    assert "(recipient: Sophie; amount: •••• 5678)" in result.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "agent.yaml:1: the file is empty."),
        ("# nothing\n", "agent.yaml:1: the file is empty."),
        ("[1, 2]", "agent.yaml:1: the file: Input should be"),
        ("a\0b: 1", "agent.yaml:1: this is not YAML"),
        ("guidelines: [", "agent.yaml:1: this is not YAML"),
        ("\n\nguidline: []", "agent.yaml:3: guidline: there is no key 'guidline'; did you mean 'guidelines'?"),
        (
            "guidelines:\n  - condition: a\n    tool: b",
            "agent.yaml:3: guidelines.0.tool: there is no key 'tool'; did you mean 'tools'?",
        ),
        ("guidelines:\n- condition: a\n  criticality: urgent", "agent.yaml:3: guidelines.0.criticality: Input should"),
        ("guidelines:\n- condition: a\n- condition: b\n  tools: [payy]", "agent.yaml:3: unknown tool 'payy'"),
        ("guidelines:\n- {id: a, condition: a}\n- {id: a, condition: b}", "agent.yaml:3: two guidelines have the id"),
        ("guidelines:\n- action: a", "agent.yaml:2: condition must not be empty"),
        ("relationships:\n- [a, likes, b]", "agent.yaml:2: relationships.0.1: Input should be 'entails'"),
        ("relationships:\n- [a, entails]", "agent.yaml:2: relationships.0.2: Field required"),
        ("relationships:\n- [a, entails, b]", "agent.yaml:2: unknown guideline 'a'"),
        (
            "guidelines: [{id: a, condition: a}, {id: b, condition: b}]\n"
            "relationships:\n- [a, entails, b]\n- [b, entails, a]",
            "agent.yaml:4: 'b' entails 'a' would make a cycle",
        ),
        ("a: &x [1]\nb: *x", "agent.yaml:2: aliases are not supported"),
        ("terms: {a: b}\nterms: {c: d}", "agent.yaml:2: the key 'terms' is here twice"),
        ("terms:\n  a: 5", "agent.yaml:2: terms.a"),
        (
            "variables:\n  day: 2030-01-01",
            "agent.yaml:2: `2030-01-01` would be read as a timestamp; write it in quotes",
        ),
        ("variables:\n  answer: no", "agent.yaml:2: `no` would be read as a bool"),
        ("variables:\n  at: 12:30", "agent.yaml:2: `12:30` would be read as a int"),
        (
            'variables:\n  data: !!binary "aGk="',
            "agent.yaml:2: variables.data must be a text, a number, true, false or",
        ),
        ("variables:\n  x: !!python/object:os.system {}", "agent.yaml:2: "),
        ("variables:\n  x: .nan", "agent.yaml:2: "),
        ("parameters:\n  pay:\n    amount: {}", "agent.yaml:3: unknown tool 'pay'"),
        ("parameters:\n  transfer_money:\n    sum: {}", "agent.yaml:3: options of 'transfer_money': unknown parameter"),
        (
            "parameters:\n  transfer_money:\n    amount: {shown: true}",
            "agent.yaml:3: parameters.transfer_money.amount.",
        ),
        ("replies:\n- Hi.\n- '{get_balanse}'", "agent.yaml:3: the template 't2' has an unknown field 'get_balanse'"),
        ("replies_mode: loose", "agent.yaml:1: replies_mode: Input should be 'strict' or 'fluid'"),
        ("journeys:\n- title: a\n  condition: b", "agent.yaml:2: journeys.0.states: Field required"),
        (
            "journeys:\n- title: a\n  condition: b\n  states: [{name: x}]\n  transitions:\n  - {from: x, to: y}",
            "agent.yaml:6: unknown state 'y' of the journey 'a'",
        ),
        ("journeys:\n- title: a\n  condition: b\n  states:\n  - {name: x}\n  - {name: x}", "agent.yaml:6: two guidel"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_the_line(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert told in str(caught.value)
    assert not str(caught.value).endswith(("?.", ".."))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere.yaml: the file cannot be read"):
        Agent.from_file("nowhere.yaml")
