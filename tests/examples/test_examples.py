"""The examples, run as their docstrings say: without a key they print what docs/examples.md shows."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from handrail.testing.servers import OpenAIServer, text, tool_calls

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "examples.md").read_text("utf-8")
SECTIONS = {name: body for name, _, body in (section.partition("\n") for section in PAGE.split("\n## ")[1:])}
PRINTED = {name: body.split("```text\n")[1].split("```")[0] for name, body in SECTIONS.items() if "```text" in body}
"""What the page says that each example prints."""
PROGRAMS = {
    "guided_returns.py": "guided_returns.py",
    "mail_agent.py": "mail_agent.py",
    "mcp_policy": "mcp_policy/agent.py",
    "openapi_shop": "openapi_shop/agent.py",
    "operations.py": "operations.py",
    "pydantic_ai_agent.py": "pydantic_ai_agent.py",
    "responses_stream.py": "responses_stream.py",
    "slack_approval": "slack_approval/app.py",
}
ELSEWHERE = {"langgraph_agent.py"}
"""Its test is with those of its framework: tests/adapters/test_langchain.py."""


def run_example(program: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    keys = ("OPENAI_", "SLACK_", "DATABASE_URL")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(keys)}
    return subprocess.run(
        [sys.executable, EXAMPLES / program],
        cwd=directory,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        input="y\n" * 5,
    )


def test_every_example_that_the_page_shows_is_run() -> None:
    assert PRINTED.keys() == PROGRAMS.keys() | ELSEWHERE


def test_every_example_stands_in_the_table() -> None:
    shown = set(re.findall(r"^\| \[`([\w./]+)`\]", PAGE, re.MULTILINE))

    assert len(shown) == 11
    assert [name for name in shown if not (EXAMPLES / name).exists()] == []
    present = {f"{path.name}/" if path.is_dir() else path.name for path in EXAMPLES.iterdir()}
    others = {"bank_agent.py", "guided_bank.py", "guided_bank.yaml", "__pycache__/", "notebook.ipynb"}
    assert present - others == shown


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_runs_without_a_key_and_prints_what_the_page_shows(name: str, tmp_path: Path) -> None:
    ended = run_example(PROGRAMS[name], tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == PRINTED[name]
    assert list(tmp_path.iterdir()) == []


PAY = {"invoice_id": "R-7", "amount": 40}
SCRIPTS = {
    "responses_stream.py": [tool_calls(("pay", PAY)), text("Sure?"), tool_calls(("pay", PAY)), text("It is paid.")],
    "pydantic_ai_agent.py": [tool_calls(("pay", PAY)), text("It is paid.")],
    "mcp_policy": [
        tool_calls(("files__publish_report", {"name": "2026-11", "audience": "press"})),
        text("It is paid."),
    ],
    "openapi_shop": [tool_calls(("refund_order", {"id": "A-1", "amount": 30})), text("It is paid.")],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_asks_openai_if_there_is_a_key(name: str, tmp_path: Path) -> None:
    with OpenAIServer(SCRIPTS[name]) as server:
        ended = run_example(PROGRAMS[name], tmp_path, OPENAI_API_KEY="test", OPENAI_BASE_URL=server.url)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "It is paid." in ended.stdout
    assert len(server.requests) == len(SCRIPTS[name])


@pytest.fixture
def load_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], TestClient]:
    """Load the web example anew, as a process that starts does, in a directory with its database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.syspath_prepend(EXAMPLES)

    def load() -> TestClient:
        monkeypatch.delitem(sys.modules, "web_approvals", raising=False)
        return TestClient(import_module("web_approvals").app)

    return load


def test_in_the_web_example_a_refund_runs_after_the_customer_has_said_yes(load_app: Callable[[], TestClient]) -> None:
    with load_app() as client:
        assert "<h1>Refunds</h1>" in client.get("/").text
        asked = client.post("/sessions/s-1/messages", json={"text": "Refund A-1, please."}).json()
        assert asked["stop_reason"] == "approval_required"
        [approval] = asked["approvals"]
        assert approval["arguments"] == {"order_id": "A-1", "amount": 20}

        forged = client.post("/sessions/s-1/decisions", json={"token": "apr_guessed", "is_approved": True})
        assert forged.status_code == 409
        done = client.post("/sessions/s-1/decisions", json={"token": approval["token"], "is_approved": True}).json()
        assert (done["text"], done["approvals"]) == ("Your money is on its way.", [])
        again = client.post("/sessions/s-1/decisions", json={"token": approval["token"], "is_approved": False})
        assert again.status_code == 409


def test_in_the_web_example_a_no_in_another_process_runs_nothing(load_app: Callable[[], TestClient]) -> None:
    with load_app() as client:
        asked = client.post("/sessions/s-1/messages", json={"text": "Refund A-1, please."}).json()
    [approval] = asked["approvals"]

    with load_app() as restarted:
        module = sys.modules["web_approvals"]
        module.provider = module.ScriptedProvider(["As you like."])
        answer = {"token": approval["token"], "is_approved": False}
        refused = restarted.post("/sessions/s-1/decisions", json=answer).json()

    assert refused["text"] == "As you like."
