"""The command line beside the gateway: keys, approvals, why, audit, and the gateway of a desktop client."""

import argparse
import asyncio
import io
import json
import os
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from handrail import Executor, Policy, ToolCall, ToolContext
from handrail.cli.main import main
from handrail.cli.serve import _is_agent, _open_agent, _open_file
from handrail.errors import ConfigError
from handrail.store import open_store
from tests.serve.desk import ROOT, Browser, text_of
from tests.serve.service import open_replica
from tests.tools import pay


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database that the commands find in the environment, with a payment that waits."""
    url = f"sqlite:///{tmp_path}/handrail.db"
    monkeypatch.setenv("HANDRAIL_STORE", url)
    asyncio.run(send_payment(url))
    return url


async def send_payment(url: str, call_id: str = "c-1", turn: int = 0) -> str:
    async with open_store(url, audit_values=True) as store:
        executor = Executor([pay], policy=Policy(asks="operator"), store=store)
        context = ToolContext(session_id="s-1", customer_id="ann\u202e", tenant_id="acme", turn=turn)
        result = await executor.run(ToolCall(id=call_id, name="pay", arguments_json='{"amount": 5}'), context)
    return result.for_model()


def test_a_key_is_created_listed_and_revoked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "--role", "operator", "--tenant", "acme", "--who", "ann"]) == 0
    secret = capsys.readouterr().out.strip()
    assert re.fullmatch(r"hrk_[\w-]{43}", secret)
    assert main(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    assert secret not in listed
    found = re.match(r"(\w+)  operator  ann  acme  created .* UTC  valid", listed)
    assert found is not None
    assert main(["keys", "revoke", found[1]]) == 0
    assert main(["keys", "list", "--tenant", "acme"]) == 0
    assert "revoked 2" in capsys.readouterr().out
    assert main(["keys", "revoke", "nobody"]) == 1
    assert "there is no key 'nobody'" in capsys.readouterr().err


def test_the_first_key_of_a_database_says_which_database_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HANDRAIL_STORE", raising=False)
    monkeypatch.chdir(tmp_path)  # Not where the service runs.
    for is_first in (True, False):
        assert main(["keys", "create", "--role", "operator", "--who", "ann"]) == 0
        told = capsys.readouterr().err
        assert (f"the first key of sqlite:///{tmp_path}/handrail.db; for a service with another" in told) is is_first


async def test_serve_says_of_each_source_what_is_wrong_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("sources: {away: {url: 'http://127.0.0.1:9/mcp', bearer: 'env:NO_SUCH_TOKEN'}}\n")
    async with _open_file(str(file), "http://127.0.0.1", False):
        printed = capsys.readouterr().out
    assert re.fullmatch(r"source away: failed: .*NO_SUCH_TOKEN.* is not set, 0 tools\n", printed)


def test_what_waits_is_listed_shown_approved_and_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["approvals", "list", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    asked = json.loads(line)
    assert (asked["tool"], asked["arguments"], asked["state"]) == ("pay", {"amount": 5}, "pending")
    assert main(["approvals", "list", "--tenant", "other"]) == 0
    assert capsys.readouterr() == ("", "nothing waits\n")
    assert main(["approvals", "show", asked["token"]]) == 0
    assert '"amount": 5' in capsys.readouterr().out
    assert main(["approvals", "approve", asked["token"], "--who", "bob", "--reason", "checked"]) == 0
    assert "runs when its client sends the call again, once" in capsys.readouterr().out
    assert main(["approvals", "approve", asked["token"], "--who", "cyd"]) == 1
    assert "bob was faster" in capsys.readouterr().err
    assert main(["approvals", "deny", asked["token"], "--who", "cyd"]) == 1
    assert asyncio.run(send_payment(url)) == "Paid 5."

    assert main(["why", "s-1", "c-1"]) == 0
    told = capsys.readouterr().out
    assert "pay  done" in told
    assert "approved by bob" in told
    assert "checked" in told
    assert "customer ann\\u202e" in told
    assert len(told.splitlines()) <= 40  # One screen.
    assert main(["why", "s-1", "c-2"]) == 1
    assert "`handrail audit --session SESSION`" in capsys.readouterr().err


def test_who_decides_a_second_time_is_told_that_the_first_reason_stays(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["approvals", "list", "--json"])
    token = json.loads(capsys.readouterr().out)["token"]
    assert main(["approvals", "approve", token, "--who", "bob", "--reason", "checked"]) == 0
    capsys.readouterr()

    assert main(["approvals", "approve", token, "--who", "bob", "--reason", "another"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "pay is approved already, by bob (checked): what was decided first stays." in told.err
    asyncio.run(send_payment(url))
    assert main(["approvals", "approve", token, "--who", "bob"]) == 0
    assert "pay is used already, by bob (checked)" in capsys.readouterr().err


def test_why_names_the_calls_that_end_in_an_id_that_is_not_known(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for known in ("resp_1/call_0", "resp_2/call_0", "resp_2/call_1"):
        asyncio.run(send_payment(url, call_id=known))
    assert main(["why", "s-1", "call_0"]) == 1
    told = capsys.readouterr().err
    assert "'resp_2/call_0' or 'resp_1/call_0'?" in told
    assert "call_1" not in told
    assert main(["why", "s-2", "call_0"]) == 1
    assert "resp_" not in capsys.readouterr().err
    assert main(["why", "s-1", ""]) == 1
    assert "did you mean" not in capsys.readouterr().err


def test_why_names_the_session_of_an_http_call_as_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HANDRAIL_STORE", f"sqlite:///{tmp_path}/handrail.db")

    async def send_call() -> None:
        async with open_store(f"sqlite:///{tmp_path}/handrail.db") as store, open_replica(store) as replica:
            await (await replica.connect("caller", "acme")).call("get_balance", {"account": "a"}, call_id="k")

    asyncio.run(send_call())
    assert main(["why", "s-1", "k"]) == 1
    assert "did you mean the session 'api:acme/s-1'?" in capsys.readouterr().err
    assert main(["why", "api:acme/s-1", "k"]) == 0


@pytest.mark.parametrize(
    "command",
    [["why", "s-1", "\udcff"], ["audit", "--tool", "\udcff"], ["approvals", "deny", "\udcff", "--who", "ann"]],
)
def test_an_argument_that_is_not_utf_8_is_refused(
    url: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 1
    assert capsys.readouterr().err == "handrail: an argument must be UTF-8, got '\\udcff'.\n"


def test_what_a_terminal_has_no_letter_for_is_printed_as_an_escape(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "create", "--role", "viewer", "--who", "zoë"]) == 0
    printed = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert main(["keys", "list"]) == 0
    assert rb"zo\xeb" in printed.getvalue()


def test_a_denial_on_the_command_line_is_told_to_the_call(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["approvals", "list", "--json"])
    token = json.loads(capsys.readouterr().out)["token"]
    assert main(["approvals", "deny", token, "--who", "bob", "--reason", "too much"]) == 0
    assert "the operator said no: too much" in asyncio.run(send_payment(url))
    assert main(["approvals", "approve", token, "--who", "bob", "--arguments", "[1]"]) == 1
    assert "must be a JSON object" in capsys.readouterr().err
    for wrong in ('{"amount": NaN}', "[" * 5_000):
        assert main(["approvals", "approve", token, "--who", "bob", "--arguments", wrong]) == 1
        assert "--arguments must be JSON: " in capsys.readouterr().err


def test_the_audit_says_who_decided_and_why(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["approvals", "list", "--json"])
    token = json.loads(capsys.readouterr().out)["token"]
    main(["approvals", "deny", token, "--who", "bob", "--reason", "too\nmuch"])
    capsys.readouterr()

    assert main(["audit", "--kind", "approval_decided"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert "  approval_decided  pay  denied by bob: too\\nmuch  customer ann" in line
    assert line.endswith(f"  session s-1  approval {token}")
    assert main(["audit", "--kind", "approval_requested"]) == 0
    assert "  pay  the operator is asked  customer ann" in capsys.readouterr().out


def test_the_audit_is_filtered_and_printed_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--customer", "ann\u202e", "--tool", "pay", "--since", "7d", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in rows][-1] == "call_finished"
    assert main(["audit", "--outcome", "approval_required"]) == 0
    shown = capsys.readouterr().out
    assert "call_finished  pay  approval_required" in shown
    assert "\u202e" not in shown
    assert main(["audit", "--tool", "other"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["audit", "--since", "soon"]) == 1
    assert "a duration must be like 90s, 5m, 2h or 7d" in capsys.readouterr().err


def test_the_database_is_that_of_the_gateway_file_here(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HANDRAIL_STORE")
    monkeypatch.setenv("DATABASE", url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gateway.yaml").write_text("store: env:DATABASE\nsources: {}\n")
    assert main(["approvals", "list"]) == 0
    assert "pay" in capsys.readouterr().out
    (tmp_path / "gateway.yaml").write_text("store: [1]\n")
    assert main(["approvals", "list"]) == 1
    assert "gateway.yaml:1: store must be the URL of a database" in capsys.readouterr().err


def test_the_line_of_an_approval_says_why_it_is_asked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["approvals", "list", "--json"])
    token = json.loads(capsys.readouterr().out)["token"]
    main(["approvals", "approve", token, "--who", "bob"])
    asyncio.run(send_payment(url))
    asyncio.run(send_payment(url, call_id="c-2", turn=1))
    capsys.readouterr()
    assert main(["approvals", "list"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.search(r'for operator  {"amount":5}  \(it was already done at .*; it must be wanted once more\)$', line)


async def test_a_desktop_client_has_a_gateway_over_stdio(tmp_path: Path) -> None:
    url, journal = f"sqlite:///{tmp_path}/desktop.db", tmp_path / "journal"
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{deny: server__crash, reason: it crashes}]\n")
    gateway = StdioServerParameters(
        command=sys.executable,
        args=[
            *("-m", "handrail.cli", "mcp", "gateway", "--trusted", "--approval-wait", "0", "--policy", str(policy)),
            *("--store", url, "env", f"SHOP_JOURNAL={journal}", sys.executable, "-m", "tests.sources.shop_server"),
        ],
        cwd=ROOT,
    )
    async with Client(gateway) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "server__refund" in names
        assert "server__crash" not in names
        assert "paid" in text_of(await client.call_tool("server__find_order", {"order_id": 7}))
        waiting = text_of(await client.call_tool("server__refund", {"order_id": 7, "amount": 5}))
        found = re.search(r"handrail approvals approve (\S+) --who NAME --store", waiting)
        assert found is not None, waiting
        async with open_store(url, migrate=False) as store:
            await store.approvals.approve(found[1], by="operator", who="ann")
        done = await client.call_tool("server__refund", {"order_id": 7, "amount": 5})
        assert "refunded 5" in text_of(done)
    assert journal.read_text() == "refund 7\n"


async def test_serve_without_a_file_prints_its_keys_once_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    started: list[asyncio.subprocess.Process] = []

    async def serve() -> tuple[asyncio.subprocess.Process, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "handrail.cli", "serve", "--port", "0"),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        started.append(process)
        assert process.stdout is not None
        printed = ""
        while "caller key" not in printed and "keys: " not in printed:
            line = (await process.stdout.readline()).decode()
            assert line, printed
            printed += line
        return process, printed

    try:
        async with asyncio.timeout(200):
            process, printed = await serve()
            url = re.findall(r"console: (http://127\.0\.0\.1:\d+)/", printed)[0]
            operator, _, caller = re.findall(r"hrk_[\w-]{43}", printed)
            async with Browser(url) as ann:
                # It may be still starting when the address is printed: the socket listens, and answers when it can.
                assert (await ann.sign_in(operator)).status_code == 200
                async with ann.http.stream("GET", "/calls/stream") as stream:  # A page that stays open.
                    assert stream.status_code == 200
                    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {caller}"}, timeout=60)
                    async with http, Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client:
                        assert "310 EUR" in text_of(await client.call_tool("get_balance", {"account": "current"}))
                    process.terminate()
                    assert await process.wait() == 0
            process, printed = await serve()
            assert "hrk_" not in printed
            assert f"3 valid, of sqlite:///{tmp_path}/handrail.db; `handrail keys create` makes another" in printed
            process.terminate()
            await process.wait()
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()


AGENT = """
from handrail import Agent, Guideline, tool
from handrail.guide import GuidelineMatch, Plan, ScriptedJudge, ToolVerdict

@tool(read_only=True)
def get_balance(account: str) -> int:
    '''Look up a balance.'''
    return 5

judge = ScriptedJudge(
    [Plan((GuidelineMatch("g1"),), (ToolVerdict("get_balance", "needs_to_run", {"account": "a"}),))], ["You have 5."]
)
AGENT = Agent(judge=judge, tools=[get_balance], guidelines=[Guideline(condition="a balance", tools=("get_balance",))])
"""


@pytest.mark.parametrize("named", ["agent.py", "agent.py:AGENT", "agent:AGENT"])
async def test_serve_lets_people_talk_to_an_agent(named: str, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    options = argparse.Namespace(
        file=named, store=f"sqlite:///{tmp_path}/a.db", provider=None, model=None, worker=False
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.syspath_prepend(str(tmp_path))
        assert _is_agent(named)
        async with _open_agent(options) as (app, store), app.router.lifespan_context(app):
            _, secret = await store.keys.create(role="caller", who="bot")
            http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://service/v1")
            headers = {"Authorization": f"Bearer {secret}", "Accept": "application/json"}
            answer = await http.post("/sessions/s/turns", json={"message": "how much?"}, headers=headers)
            assert (answer.status_code, answer.json()["text"]) == (200, "You have 5.")


async def test_what_the_example_asks_the_customer_an_operator_is_asked_for_the_same_reason(tmp_path: Path) -> None:
    store_url = f"sqlite:///{tmp_path}/bank.db"
    options = argparse.Namespace(file=None, store=store_url, provider=None, model=None, worker=False)
    async with _open_agent(options) as (app, store), app.router.lifespan_context(app):
        _, secret = await store.keys.create(role="caller", who="bot")
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://service/v1")
        headers = {"Authorization": f"Bearer {secret}"}
        for amount, code in ((120, "approval_required"), (20_000, "permission_denied")):
            body = {"tool": "transfer", "arguments": {"to": "Sophie", "amount": amount}, "session_id": "s"}
            answer = await http.post("/calls", json=body, headers=headers)
            assert answer.json()["error"]["code"] == code
        [question] = await store.approvals.pending()
    assert (question.by, question.question) == ("operator", "money leaves the account")


async def test_serve_wants_an_agent_that_is_one(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("AGENT = 3")
    options = argparse.Namespace(file=f"{tmp_path}/other.py:AGENT", store=None, provider=None, model=None, worker=False)
    with pytest.raises(ConfigError, match="must be an Agent, got int"):
        async with _open_agent(options):
            pass
    assert not _is_agent("gateway.yaml")


SLOW = """
import asyncio
from handrail import Policy, Rule, tool

@tool(key="invoice")
async def pay(invoice: str, seconds: float) -> str:
    '''Pay an invoice.'''
    await asyncio.sleep(seconds)
    return "paid"

TOOLS = [pay]
POLICY = Policy([Rule.allow("pay")])
"""


@pytest.mark.proves("SV-12")
async def test_a_service_that_is_stopped_lets_calls_finish_and_settles_the_others(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    url = f"sqlite:///{tmp_path}/slow.db"
    async with open_store(url) as store:
        _, secret = await store.keys.create(role="caller", who="bot")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "handrail.cli", "serve", "slow.py", "--port", "0", "--grace", "2", "--store", url),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(200):
            assert process.stdout is not None
            address = re.findall(r"http://\S+\d", (await process.stdout.readline()).decode())[0]
            http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, base_url=address, timeout=60)
            async with http, open_store(url) as store:

                async def call(name: str, seconds: float) -> httpx2.Response:
                    body = {"tool": "pay", "arguments": {"invoice": name, "seconds": seconds}}
                    return await http.post("/v1/calls", json={**body, "session_id": "s", "call_id": name})

                short, long = asyncio.create_task(call("short", 0.7)), asyncio.create_task(call("long", 60))
                while len(await store.audit.query(kind="call_started", limit=10)) < 2:
                    await asyncio.sleep(0.02)
                process.terminate()
                with suppress(httpx2.HTTPError):
                    while True:  # Until it takes nothing more, by a new connection each time.
                        async with httpx2.AsyncClient() as newcomer:
                            await newcomer.get(f"{address}/v1/health")
                assert (await short).json()["output"] == "paid"
                await asyncio.gather(long, return_exceptions=True)
                assert await process.wait() == 0
                ends = {row.call_id: row.error for row in await store.audit.query(kind="call_finished", limit=10)}
                assert ends == {"short": None, "long": "outcome_unknown"}
                (doubt,) = await Executor([], store=store).doubts()
                assert doubt.call_id == "long"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(("host", "option"), [("192.0.2.1", "--host"), ("127.0.0.1", "--port")])
def test_an_address_that_cannot_be_used_is_named_with_the_option_to_change(
    host: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"store: sqlite:///{tmp_path / 'other.db'}\nsources: {{}}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(file), "--host", host, "--port", port]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"handrail: cannot listen at {host}:{port}: ")
    assert told.endswith(f". Choose another {option}.\n")
