"""`handrail tools` and `handrail policy test`: for people, and for scripts."""

import asyncio
import json
from pathlib import Path

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext
from handrail.cli.main import main
from handrail.store import open_store
from tests.serve.service import close_account, get_balance, pay

TOOLS = ["--tools", "tests.serve.service:get_balance", "--tools", "tests.serve.service:pay"]


def test_tools_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "list", *TOOLS]) == 0
    shown = capsys.readouterr()
    assert "pay  consequential, key  local  Pay an invoice." in shown.out
    assert shown.err == "2 tools\n"
    assert main(["tools", "list", "--json", *TOOLS]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["get_balance", "pay"]
    assert main(["tools", "show", "pay", "--format", "anthropic", *TOOLS]) == 0
    assert json.loads(capsys.readouterr().out)[0]["input_schema"]["required"] == ["invoice", "amount"]
    assert main(["tools", "show", "payy", *TOOLS]) == 1
    assert "`pay`" in capsys.readouterr().err
    assert main(["tools", "list"]) == 1
    assert "Name the tools" in capsys.readouterr().err


def test_a_tool_is_called_under_the_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "call", "get_balance", '{"account": "a"}', *TOOLS]) == 0
    assert json.loads(capsys.readouterr().out)["balance"] == 5
    assert main(["tools", "call", "pay", '{"invoice": "i", "amount": 1}', "--json", *TOOLS]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "approval_required"
    assert main(["tools", "call", "pay", "{", *TOOLS]) == 1
    assert "tool_args_parse_error" in capsys.readouterr().out
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{allow: pay}]\n")
    url = f"sqlite:///{tmp_path}/calls.db"
    command = ["tools", "call", "pay", '{"invoice": "i", "amount": 1}', "--policy", str(policy), "--store", url]
    for _ in range(2):
        assert main([*command, *TOOLS]) == 0
        assert "paid 1" in capsys.readouterr().out


def test_what_a_tool_returns_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "page.py"
    file.write_text(
        "from handrail import tool\n"
        "@tool(read_only=True)\n"
        "async def read_page() -> str:\n"
        "    'Read a page of somebody else.'\n"
        "    return 'first\\nsecond \\x1b]0;title\\x07\\u202eend'\n"
    )
    for option in ([], ["--json"]):
        assert main(["tools", "call", "read_page", "{}", "--tools", f"{file}:read_page", *option]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert (len(lines), all(line.isprintable() for line in lines)) == (1 if option else 2, True)


def test_lint_names_what_a_model_or_an_operator_would_miss(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "lint", "--tools", "tests.serve.service:close_account"]) == 1
    out = capsys.readouterr().out
    for text in ("has no key", "has no timeout", "an operator has to find out"):
        assert text in out
    assert main(["tools", "lint", "--json", "--tools", "tests.serve.service:get_balance"]) == 0
    assert capsys.readouterr().out == ""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with three calls: a small payment, a large one, and a read."""
    address = f"sqlite:///{tmp_path}/recorded.db"

    async def record(*, values: bool) -> None:
        async with open_store(address, audit_values=values) as store:
            policy = Policy([Rule.allow("pay")])
            executor = Executor([get_balance, pay, close_account], policy=policy, store=store, scope="session")
            context = ToolContext(session_id="s", tenant_id="acme")
            for number, (name, arguments) in enumerate(
                [("pay", {"invoice": "i", "amount": 5}), ("pay", {"invoice": "j", "amount": 900})]
            ):
                call = ToolCall(id=f"{values}-{number}", name=name, arguments_json=json.dumps(arguments))
                await executor.run(call, context)
            read = ToolCall(id=f"{values}-r", name="get_balance", arguments_json='{"account": "a"}')
            await executor.run(read, context)

    asyncio.run(record(values=True))
    return address


def test_recorded_calls_are_decided_again_and_what_changes_is_said(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "new.yaml"
    policy.write_text("rules:\n  - {allow: pay, where: {amount: {below: 100}}}\n  - {ask: pay, by: operator}\n")
    command = ["policy", "test", str(policy), "--store", url, *TOOLS]
    policy.write_text("rules:\n  - {deny: pay, where: {amount: {above: 100}}, reason: too much}\n  - {allow: pay}\n")
    assert main(command) == 1
    shown = capsys.readouterr()
    assert "pay  allow -> deny  session s  call True-1" in shown.out
    assert "too much" in shown.out
    assert "True-0" not in shown.out
    assert shown.err == "3 calls decided again, 1 would change\n"
    assert main([*command, "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["before"], json.loads(line)["after"]) == ("allow", "deny")
    assert main([*command, "--tenant", "globex"]) == 2
    policy.write_text("rules: [{allow: pay}]\n")
    assert main(command) == 0


def test_without_recorded_values_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"sqlite:///{tmp_path}/bare.db"

    async def record() -> None:
        async with open_store(address) as store:
            executor = Executor([pay], policy=Policy([Rule.allow("pay")]), store=store, scope="session")
            call = ToolCall(id="c", name="pay", arguments_json='{"invoice": "i", "amount": 5}')
            await executor.run(call, ToolContext(session_id="s"))

    asyncio.run(record())
    policy = tmp_path / "new.yaml"
    policy.write_text("rules: [{deny: pay}]\n")
    assert main(["policy", "test", str(policy), "--store", address, *TOOLS]) == 2
    assert "audit_values" in capsys.readouterr().err
