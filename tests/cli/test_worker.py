"""`handrail worker` runs the calls that another process has stored, until it is told to end."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.cli.main import main
from handrail.store import open_store

SHOP = """
from handrail import Executor, Policy, Rule, ToolContext, tool

@tool(durable=True)
async def pay(invoice: str, context: ToolContext) -> str:
    "Pay an invoice."
    return f"paid {invoice} with {context.deps}"

def build(store):
    return Executor([pay], policy=Policy([Rule.allow("pay")]), store=store)

def make_context(item):
    return ToolContext(session_id=item.session_id, deps="the bank")
"""


EXECUTOR = """
executor = Executor([pay], policy=Policy([Rule.allow("pay")]), store="sqlite:///development.db")
"""
IN_MEMORY = """
from handrail.execute import MemoryWork
executor = Executor([pay], policy=Policy([Rule.allow("pay")]), work=MemoryWork())
"""
OWN = """
from handrail.store import open_store
executor = Executor([pay], policy=Policy([Rule.allow("pay")]), store=open_store("sqlite:///h.db"))
"""


@pytest.mark.proves("DU-11")
@pytest.mark.parametrize(
    ("text", "name", "has_store"),
    [
        pytest.param("", "build", True, id="a function of the store"),
        pytest.param(EXECUTOR, "executor", True, id="an executor with another URL"),
        pytest.param(IN_MEMORY, "executor", True, marks=pytest.mark.slow, id="an executor in memory"),
        pytest.param(OWN, "executor", True, id="an executor with this very store"),
        pytest.param(OWN, "executor", False, marks=pytest.mark.slow, id="an executor with its own store"),
    ],
)
async def test_a_worker_runs_what_was_stored_and_ends_when_it_is_told(
    tmp_path: Path, text: str, name: str, has_store: bool
) -> None:
    (tmp_path / "shop.py").write_text(SHOP + text)
    url = f"sqlite:///{tmp_path / 'h.db'}"

    @tool(durable=True)
    async def pay(invoice: str, context: ToolContext[object]) -> str:
        """Pay an invoice."""
        return "not here"

    async with open_store(url) as store:
        executor = Executor([pay], policy=Policy([Rule.allow("pay")]), store=store)
        call = ToolCall(id="c-1", name="pay", arguments_json='{"invoice": "R-1"}')
        assert await executor.submit(call, ToolContext(session_id="s-1", customer_id="ann", turn=1)) is None
        command = ("-m", "handrail.cli", "worker", f"shop:{name}", "--context", "shop:make_context")
        environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2] / 'src'}:{tmp_path}"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            *(("--store", url) if has_store else ()),
            cwd=tmp_path,
            env=environment,
            stdout=PIPE,
        )
        try:
            result = await executor.wait(session_id="s-1", call_id="c-1", timeout=60)
            assert result.output == "paid R-1 with the bank"
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30) == 0
        finally:
            if process.returncode is None:
                process.kill()
    assert not (tmp_path / "development.db").exists()


def test_a_store_beside_the_executors_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop_3.py").write_text(SHOP + OWN)
    monkeypatch.chdir(tmp_path)

    assert main(["worker", "shop_3.py:executor", "--store", "sqlite:///other.db"]) == 1

    said = capsys.readouterr().err
    assert "shop_3.py:executor was built with another store than --store" in said
    assert not (tmp_path / "other.db").exists()


def test_a_function_needs_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop_4.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)

    assert main(["worker", "shop_4.py:build"]) == 1
    assert "shop_4.py:build must be an Executor, or a function of a store, with --store URL" in capsys.readouterr().err


def test_what_is_no_executor_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop_2.py").write_text("executor = 5\n")
    monkeypatch.chdir(tmp_path)

    assert main(["worker", "shop_2.py:executor"]) == 1
    assert "shop_2.py:executor must be an Executor" in capsys.readouterr().err


def test_a_context_that_is_no_function_is_refused_before_a_call_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop_5.py").write_text(SHOP + EXECUTOR + "context = ToolContext(session_id='s-1')\n")
    monkeypatch.chdir(tmp_path)

    assert main(["worker", "shop_5.py:executor", "--context", "shop_5.py:context"]) == 1

    said = capsys.readouterr()
    assert "context must be a function of a WorkItem that returns a ToolContext, got ToolContext" in said.err
    assert "takes calls" not in said.out
