"""`handrail verify`, as a CI job runs it: in a process of its own, against an executor in a file."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from handrail import Executor, build_tool, tool
from handrail.cli.main import main
from handrail.cli.verify.command import check_executor, check_tool
from handrail.cli.verify.faults import FAULT_NAMES, change_arguments, make_arguments
from handrail.execute import Timeouts
from handrail.store import open_store
from tests.postgres import PostgresServer
from tests.postgres import postgres as postgres

SHOP = '''
from pathlib import Path

from handrail import Executor, Policy, Rule, tool


def ran(*_):
    Path("ran").touch()
    raise SystemError("the real function")


def find_payment(arguments, context):
    ran()


@tool(read_only=True)
def look_up(invoice_id: str) -> str:
    """Look an invoice up."""
    ran()


@tool(key="invoice_id", verify=find_payment, permission_check=ran, timeout=60)
def pay(invoice_id: str, amount: int) -> str:
    """Pay an invoice."""
    ran()


@tool
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    ran()


TOOLS = [look_up, pay, send_mail]
RULES = [Rule.ask("pay", by="operator"), Rule.ask("send_mail", by="customer")]
stored = Executor(TOOLS, policy=Policy(RULES), store="sqlite:///shop.db")
in_memory = Executor(TOOLS, policy=Policy([Rule.allow("pay"), Rule.ask("send_mail", by="customer")]))
observing = Executor(TOOLS, policy=Policy(RULES), store="sqlite:///shop.db", mode="observe")
'''


def run_verify(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "shop.py").write_text(SHOP)
    return subprocess.run(
        [sys.executable, "-m", "handrail.cli", "verify", *arguments],
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def count_rows(directory: Path) -> dict[str, int]:
    connection = sqlite3.connect(directory / "shop.db")
    try:
        tables = ("ledger", "approvals", "audit")
        return {name: connection.execute(f"SELECT count(*) FROM handrail_{name}").fetchone()[0] for name in tables}
    finally:
        connection.close()


def test_every_guarantee_holds_for_a_payment_with_a_key_and_a_way_to_find_out(tmp_path: Path) -> None:
    ended = run_verify(tmp_path, "shop.py:stored", "--tool", "pay", "--accept", "encryption", "--junit", "report.xml")

    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert ended.stdout.startswith("shop.py:stored: 1 consequential tool; no handler of theirs is run.\n")
    assert ended.stdout.endswith("\n18 of 18 guarantees hold or are accepted.\n")
    assert "FAILS" not in ended.stdout
    assert "not tried" not in ended.stdout
    assert count_rows(tmp_path) == {"ledger": 0, "approvals": 0, "audit": 0}
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert suite.attrib == {"name": "handrail verify", "tests": "18", "failures": "0", "skipped": "1"}
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"shop.py", "shop.db", "report.xml"}


def test_in_memory_a_second_process_pays_again_and_the_report_says_so(tmp_path: Path) -> None:
    ended = run_verify(tmp_path, "shop.py:in_memory", "--tool", "pay", "--junit", "report.xml")

    assert (ended.returncode, ended.stderr) == (1, "")
    lines = ended.stdout.splitlines()
    twice = lines.index("  FAILS     a call that is delivered twice takes effect once")
    assert lines[twice + 1].strip() == "it took place 2 times; the results were ok, ok"
    assert "  FAILS     other processes know what was done, and it survives a restart" in lines
    assert re.search(r"; these fail: store, audit, encryption, delivered_twice:pay, .*two_processes:pay", lines[-1])
    assert not (tmp_path / "ran").exists()
    cases = ElementTree.parse(tmp_path / "report.xml").getroot().findall("testcase")
    failed = {case.attrib["name"] for case in cases if case.find("failure") is not None}
    assert "two processes with one call take effect once" in failed


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("encryptoin", "'encryption'"),
        ("recovery:pya", "'recovery:pay'"),
        ("store:pay", None),
        ("kiled_after", "'killed_after'"),
    ],
)
def test_what_is_no_guarantee_cannot_be_accepted(name: str, meant: str | None, tmp_path: Path) -> None:
    ended = run_verify(tmp_path, "shop.py:in_memory", "--accept", name)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"handrail: there is no guarantee '{name}'")
    assert meant is None or ended.stderr.endswith(f"; did you mean {meant}?\n")


def test_a_report_that_could_not_be_written_is_refused_before_anything_is_tried(tmp_path: Path) -> None:
    ended = run_verify(tmp_path, "shop.py:in_memory", "--junit", "nowhere/report.xml")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "handrail: the directory of --junit must exist: nowhere\n"


@pytest.mark.slow
def test_a_policy_that_only_observes_lets_changed_arguments_run_and_the_report_says_so(tmp_path: Path) -> None:
    ended = run_verify(tmp_path, "shop.py:observing", "--tool", "send_mail", "--accept", "key:send_mail")

    assert (ended.returncode, ended.stderr) == (1, "")
    assert "  FAILS     arguments that change after the approval do not run" in ended.stdout
    assert "  FAILS     the policy decides, and does not only observe" in ended.stdout
    assert "  FAILS     after a crash, nobody has to look what happened" in ended.stdout
    assert "  accepted  two calls for the same effect are recognised" in ended.stdout
    assert not (tmp_path / "ran").exists()
    assert count_rows(tmp_path) == {"ledger": 0, "approvals": 0, "audit": 0}


@pytest.mark.slow
@pytest.mark.postgres
async def test_every_guarantee_holds_on_postgres_too(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.new_database(is_empty=True)

    ended = run_verify(
        tmp_path, "shop.py:in_memory", "--store", url, "--migrate", "--tool", "pay", "--accept", "encryption"
    )

    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert "FAILS" not in ended.stdout
    async with open_store(url) as store:
        assert await store.approvals.history() == []
        assert await store.audit.query() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["shop.py:stored", "--tool", "payy"], "there is no tool 'payy'; did you mean 'pay'?"),
        (["shop.py:stored", "--tool", "look_up"], "'look_up' is read-only"),
        (["shop.py:RULES"], "must be an Executor, got list"),
    ],
)
def test_what_cannot_be_verified_is_an_error_that_says_why(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)

    assert main(["verify", *arguments]) == 1

    shown = capsys.readouterr()
    assert shown.err.startswith("handrail: ")
    assert says in shown.err


def test_a_database_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    ended = run_verify(tmp_path, "shop.py:stored", "--store", "sqlite:///missing.db")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("handrail: there is no database")
    assert not (tmp_path / "missing.db").exists()


def test_what_the_configuration_does_not_guarantee_is_found_without_a_process() -> None:
    @tool
    def send(to: str, text: str) -> str:
        """Send."""
        return ""

    @tool(key="to", verify=lambda arguments, context: None)
    def book(to: str, text: str) -> str:
        """Book."""
        return ""

    timeouts = Timeouts(lease=0.5, lease_grace=0, approval=900, repeat_window=60)
    executor = Executor([send, book], timeouts=timeouts, mode={"book": "observe"})

    shared = check_executor(executor, is_shared=True, is_encrypted=True, is_audited=True)
    assert [item.name for item in shared if item.is_failed] == ["lease", "repeat_window"]
    assert [item.name for item in check_tool(executor, executor.registry.get("send")) if item.is_failed] == [
        "key",
        "recovery",
    ]
    assert [item.name for item in check_tool(executor, executor.registry.get("book")) if item.is_failed] == [
        "takeover",
        "policy",
    ]
    plain = check_executor(Executor([send]), is_shared=False, is_encrypted=False, is_audited=False)
    assert [item.name for item in plain if item.is_failed] == ["store", "audit", "encryption"]


@pytest.mark.parametrize(
    "properties",
    [
        {"amount": {"type": "integer", "minimum": 5}},
        {"amount": {"type": "number", "exclusiveMinimum": 5, "maximum": 7}},
        {"when": {"type": "string", "format": "date"}, "to": {"type": "string", "minLength": 9, "maxLength": 12}},
        {"kind": {"enum": ["a", "b"]}, "fixed": {"const": 3}, "maybe": {"type": ["integer", "null"]}},
        {"either": {"anyOf": [{"type": "object", "required": ["x"], "properties": {"x": {"type": "boolean"}}}]}},
        {"lines": {"type": "array", "minItems": 2, "items": {"$ref": "#/$defs/line"}}},
        {},
    ],
)
def test_arguments_are_made_that_the_tool_accepts(properties: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "$defs": {"line": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}},
    }
    subject = build_tool({"name": "subject", "input_schema": schema, "execute": lambda arguments, context: None})

    arguments = make_arguments(subject)

    assert arguments is not None
    assert arguments.keys() == properties.keys()
    changed = change_arguments(subject, arguments)
    assert changed is None or json.dumps(changed) != json.dumps(arguments)


def test_an_example_is_used_where_the_schema_does_not_say_enough() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "^[A-Z]-[0-9]+$"}},
        "required": ["id"],
    }
    options = {"name": "subject", "input_schema": schema, "execute": lambda arguments, context: None}

    assert make_arguments(build_tool(options)) is None
    assert make_arguments(build_tool({**options, "examples": [{"id": "A-7"}]})) == {"id": "A-7"}


def test_the_page_has_a_row_for_everything_that_is_checked() -> None:
    page = (Path(__file__).parents[2] / "docs" / "verify.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `") and "--" not in line]
    shown = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    executor = Executor(
        [build_tool({"name": "send", "input_schema": schema, "execute": lambda arguments, context: None})]
    )

    checked = [item.name for item in check_executor(executor, is_shared=True, is_encrypted=True, is_audited=True)]
    checked += [item.name for item in check_tool(executor, executor.registry.get("send"))]

    assert shown == [*checked, *FAULT_NAMES]
