"""`handrail doubts`, as an operator types it."""

import asyncio
import re
from pathlib import Path

import pytest

from handrail import Executor, Policy, Rule, tool
from handrail.cli.main import main
from handrail.store import open_store
from tests.execute.helpers import at, call, code_of


@tool
async def pay(amount: int) -> str:
    """Pay."""
    raise ConnectionError("lost")


def test_a_doubt_is_listed_resolved_once_and_then_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'handrail.db'}"

    async def run() -> str:
        async with open_store(url) as store:
            executor = Executor([pay], policy=Policy([Rule.allow("pay")]), ledger=store.ledger)
            result = await executor.run(call("pay", "c-1", amount=5), at())
            return code_of(result) or result.for_model()

    assert asyncio.run(run()) == "outcome_unknown"
    assert main(["doubts", "list", "--store", url]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"pay  session s-1  call c-1  key \S+  {\"amount\":5}$", listed, re.MULTILINE)
    version = listed.split("version ")[1].strip()
    resolve = ["doubts", "resolve", "--store", url, "--session", "s-1", "--call", "c-1", "--happened", "yes"]
    assert main([*resolve, "--who", "ann", "--reason", "receipt 7", "--expected", version]) == 0
    assert "ann: receipt 7" in capsys.readouterr().out

    assert main([*resolve, "--who", "bob"]) == 1
    assert "is not in doubt: it is committed" in capsys.readouterr().err
    assert main(["doubts", "list", "--store", url]) == 0
    assert capsys.readouterr().out == ""
    assert "receipt 7" in asyncio.run(run())


@pytest.mark.parametrize("command", [["doubts", "list"], ["doctor"]])
def test_a_database_that_does_not_exist_is_not_created(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--store", f"sqlite:///{tmp_path / 'nope.db'}"]) == 1

    shown = capsys.readouterr()
    assert f"there is no database {tmp_path / 'nope.db'}." in shown.out + shown.err
    assert list(tmp_path.iterdir()) == []
