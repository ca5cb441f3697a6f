"""`handrail policy check`, as a developer and a CI job type it."""

from pathlib import Path

import pytest

from handrail.cli.main import main

TOOLS = '''
from handrail import Executor, ToolFlags, tool

@tool
def refund(order_id: str, amount: int) -> str:
    """Refund."""
    return ""

TOOLS = [refund]
DECLARED = {"pay": ToolFlags(key="invoice_id")}
EXECUTOR = Executor([refund], declared=DECLARED)
OPEN = Executor([refund], fallback=lambda call, context: None)
'''

POLICY = """
rules:
  - deny: refnd
  - ask: refund
    by: operator
    where: {amuont: {above: 5}}
  - allow: pay
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(TOOLS)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "good.yaml").write_text("rules:\n  - deny: refund\n    where: {amount: {above: 5}}\n")
    return tmp_path


def test_rules_that_can_never_apply_are_errors_with_their_file_and_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "check", "policy.yaml", "--tools", "agent.py:TOOLS", "--tools", "agent.py:DECLARED"]) == 1

    assert capsys.readouterr().out.splitlines() == [
        "policy.yaml:3: error: rule 1: unknown tool 'refnd'; did you mean 'refund'?",
        "policy.yaml:4: error: rule 2: unknown argument 'amuont'; did you mean 'amount'?",
        "3 rules, 2 tools: 2 can never apply.",
    ]


def test_an_executor_and_an_agent_file_have_their_tools(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", "policy.yaml", "--tools", "agent.py:EXECUTOR"]) == 1
    assert "2 can never apply" in capsys.readouterr().out
    assert main(["policy", "check", "good.yaml", "--agent", "agent.py"]) == 0
    assert capsys.readouterr().out == "1 rule, 1 tool: all can apply.\n"


def test_for_tools_that_are_not_all_known_they_are_notes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", "policy.yaml", "--tools", "agent.py:OPEN"]) == 2
    shown = capsys.readouterr().out
    assert "policy.yaml:3: note: rule 1: unknown tool 'refnd'" in shown
    assert "were not checked" in shown
    assert main(["policy", "check", "good.yaml", "--tools", "agent.py:OPEN"]) == 0


def test_a_policy_that_cannot_be_read_is_an_error_with_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.yaml").write_text("rules:\n  - deny: pay\n    where: {country: NO}\n")
    assert main(["policy", "check", "bad.yaml"]) == 1
    assert "bad.yaml:3: `NO` would be read as a bool" in capsys.readouterr().err
    assert main(["policy", "check", "policy.yaml"]) == 2
    assert "not checked" in capsys.readouterr().out
    assert main(["policy", "check"]) == 1
    assert "Name a policy file" in capsys.readouterr().err


SOURCES = """
import sys
from handrail.sources import McpServer, OpenApi

SHOP = McpServer("shop", command=[sys.executable, "-S", {server!r}])
GONE = McpServer("gone", command=["/no/such/program"])
ORDERS = OpenApi({{
    "openapi": "3.1.0", "info": {{"title": "Orders", "version": "1"}}, "servers": [{{"url": "https://orders.example"}}],
    "paths": {{"/orders/{{id}}": {{"delete": {{
        "operationId": "cancelOrder", "summary": "Cancel.",
        "parameters": [{{"name": "id", "in": "path", "required": True, "schema": {{"type": "string"}}}}],
    }}}}}},
}})
SOURCES = [SHOP, ORDERS]
"""


def test_the_tools_of_sources_are_listed_and_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Path(__file__).parents[1] / "sources" / "hostile_server.py"
    (folder / "sources.py").write_text(SOURCES.format(server=str(server)))
    (folder / "right.json").write_text('{"rules": [{"allow": "shop__ok"}, {"deny": "cancelOrder"}]}')
    (folder / "wrong.json").write_text('{"rules": [{"deny": "cancelOrdr"}]}')
    for given in (["--agent", "sources.py"], ["--tools", "sources.py:SHOP", "--tools", "sources.py:ORDERS"]):
        assert main(["policy", "check", "right.json", *given]) == 0
        assert "2 rules" in capsys.readouterr().out
        assert main(["policy", "check", "wrong.json", *given]) == 1
        assert "rule 1: unknown tool 'cancelOrdr'; did you mean 'cancelOrder'?" in capsys.readouterr().out

    given = ["--tools", "sources.py:GONE", "--tools", "sources.py:SOURCES"]
    assert main(["policy", "check", "wrong.json", *given]) == 2
    shown = capsys.readouterr().out
    assert "gone is failed: No such file or directory" in shown
    assert "were not checked" in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "bad.json: a policy is an object with `rules`."),
        ('{"rules": [\n}', "bad.json:2: this is not JSON"),
        ('{"rules": [], "rules": []}', "bad.json: the key 'rules' is in an object twice."),
        ('{"rules": [], "defualt": "deny"}', "bad.json: `defualt` is not known here"),
        ('{"rules": [], "default": "ask"}', "bad.json: `default` is one of"),
        ('{"rules": [{"allow": "pay"}, {"deny": 3}]}', "rule 2 of bad.json: name a tool"),
        ('{"rules": [{"allow": "pay", "where": {"amount": {"over": 3}}}]}', "rule 1 of bad.json: "),
        ('{"rules": [{"deny": "pay", "where": {"amount": {"above": NaN}}}]}', "bad.json: `NaN` is not a number"),
        ('{"rules": {"deny": "pay"}}', "bad.json: `rules` is a list of objects."),
        ("[" * 100_000, "bad.json: this is not JSON that can be read"),
    ],
)
def test_a_policy_in_json_has_the_same_rules(
    text: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.json").write_text(text)

    assert main(["policy", "check", "bad.json"]) == 1
    assert says in capsys.readouterr().err
