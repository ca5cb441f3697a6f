"""The file of a gateway: what it describes, what is wrong with it, and what changes while it serves."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from handrail import Executor, Policy, Rule, ToolContext
from handrail.cli.main import main
from handrail.errors import ConfigError
from handrail.serve.gateway import PolicyWatch, load_gateway_policy, open_gateway, read_stamp
from handrail.serve.gateway_config import load_gateway_config
from handrail.sources import mcp_app
from handrail.sources.pins import read_pins, write_pins
from handrail.store import SqlStore
from tests.clocks import eventually
from tests.serve.desk import open_file_desk, text_of, write_shop
from tests.sources.bank_server import balance
from tests.sources.serving import bind, listening
from tests.tools import pay

CONTEXT = ToolContext(session_id="s")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "gateway.yaml:1: the file is empty"),
        ("- 1", "gateway.yaml:1: a gateway is a mapping"),
        ("store: sqlite:///x.db", "gateway.yaml:1: sources: Field required"),
        ("sources: {}", "sources: Dictionary should have at least 1 item"),
        (
            "sources:\n  shop:\n    urll: https://a.example",
            "gateway.yaml:3: sources.shop.urll: unknown field; did you mean",
        ),
        ("sources:\n  shop: {url: 7}", "gateway.yaml:2: sources.shop.url: Input should be a valid string"),
        (
            "sources: {a: {url: x}}\napproval_wait: 60",
            "gateway.yaml:2: approval_wait: Input should be less than or equal",
        ),
        ("sources: {a: {url: x}}\nnotify: [{url: x, on: [lunch]}]", "gateway.yaml:2: notify.0.on.0: Input should be"),
        ("sources: {a: {openapi: x, command: [y]}}", "sources.a.command: unknown field"),
    ],
)
@pytest.mark.proves("GW-12")
def test_an_error_in_the_file_names_the_line_and_the_field(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_gateway_config(tmp_path / "gateway.yaml")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sources:\n  crm: {url: a.example}\n", "gateway.yaml:2: sources.crm: url must be an http or https URL"),
        (
            "sources:\n  a: {url: 'https://a.example'}\n  b: {url: 'https://b.example', command: [b]}\n",
            "gateway.yaml:3: sources.b: The MCP server 'b' needs either command",
        ),
        ("sources:\n  a b: {command: [a]}\n", "gateway.yaml:2: sources.a b: name must be 1 to 32 of"),
        ("sources:\n  a: {openapi: a.json, base_url: a}\n", "gateway.yaml:2: sources.a: base_url must"),
        ("sources: {a: {command: [a]}}\nstore: a.db\n", "gateway.yaml:2: store: url must be a database URL"),
        ("store: env:NO_SUCH_NAME\nsources: {a: {command: [a]}}\n", "gateway.yaml:1: store: store refers to the"),
    ],
)
@pytest.mark.proves("GW-12")
async def test_an_error_that_a_value_makes_where_it_is_used_names_the_line_and_the_field(
    text: str, problem: str, tmp_path: Path
) -> None:
    if "store" not in text:
        text += f"store: sqlite:///{tmp_path / 'h.db'}\n"
    (tmp_path / "gateway.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        async with open_gateway(tmp_path / "gateway.yaml"):
            pass
    assert problem in str(caught.value)


@pytest.mark.parametrize("store", ["", "store: sqlite:///handrail.db\n", "store: env:DATABASE\n"])
@pytest.mark.proves("GW-12")
def test_the_store_is_beside_the_file_wherever_the_gateway_is_started(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HANDRAIL_STORE", raising=False)
    monkeypatch.setenv("DATABASE", "sqlite:///handrail.db")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/gateway.yaml").write_text(store + f"sources: {{shop: {write_shop(tmp_path / 'journal')}}}")
    monkeypatch.chdir(tmp_path)

    async def start() -> None:
        async with open_gateway("conf/gateway.yaml") as gateway:
            await gateway.store.keys.create(role="caller", who="bot")

    asyncio.run(start())
    assert [file.parent.name for file in tmp_path.rglob("handrail.db")] == ["conf"]
    assert main(["keys", "list", "--store", "conf/gateway.yaml"]) == 0
    assert "bot" in capsys.readouterr().out


@pytest.mark.proves("GW-12")
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("sources: {shop: {url: 'https://a.example/mcp', bearer: s3cr3t-token}}")
    config = load_gateway_config(tmp_path / "gateway.yaml")
    with pytest.raises(ConfigError, match="bearer of the MCP server 'shop' must be a reference") as caught:
        config.build_sources(tmp_path)
    assert "s3cr3t" not in str(caught.value)


API: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "crm", "version": "1"},
    "paths": {
        "/notes": {"post": {"operationId": "add_note", "responses": {"200": {"description": "done"}}}},
        "/people": {"get": {"operationId": "list_people", "responses": {"200": {"description": "them"}}}},
    },
}


@pytest.mark.proves("GW-01")
async def test_several_sources_are_one_gateway_and_one_that_is_down_appears_later(tmp_path: Path) -> None:
    listener = bind()  # Nobody answers there yet.
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    text = f"""
store: STORE
sources:
  shop: {write_shop(tmp_path / "journal", trusted=True)}
  bank: {{url: "{url}", trusted: true}}
  crm: {{openapi: crm.json, base_url: "https://crm.example"}}
"""
    (tmp_path / "crm.json").write_text(json.dumps(API))
    async with (
        open_file_desk(tmp_path, text) as desk,
        desk.connect_client() as client,
        desk.sign_in("viewer") as ann,
    ):
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "shop__refund" in names
        assert "add_note" in names
        assert not any(name.startswith("bank__") for name in names)
        assert "The source bank is reconnecting" in await ann.read("/decide")
        assert desk.gateway is not None
        appeared = asyncio.Event()
        desk.gateway.sources.subscribe(appeared.set)
        async with listening(mcp_app(Executor([balance]), host="127.0.0.1"), listener=listener):
            async with asyncio.timeout(120):
                await appeared.wait()
            assert "bank__balance" in [tool.name for tool in (await client.list_tools()).tools]
            assert "The source bank" not in await ann.read("/decide")
            assert "120" in text_of(await client.call_tool("bank__balance", {"account": "a"}))


@pytest.mark.proves("GW-09")
async def test_a_changed_definition_is_held_and_the_pages_say_so(tmp_path: Path) -> None:
    pins, journal = tmp_path / "pins.json", tmp_path / "journal"
    text = f"store: STORE\nsources: {{shop: {write_shop(journal, trusted=True, pins='pins.json')}}}"
    async with open_file_desk(tmp_path, text.replace(', "pins": "pins.json"', "")) as desk:
        assert desk.gateway is not None
        opened: Any = desk.gateway.sources._open["shop"]  # As `handrail mcp pin` writes them.
        write_pins(pins, "shop", opened.definitions)
    pinned = {name: dict(one) for name, one in read_pins(pins, "shop").items()}
    pinned["refund"]["description"] = "Give a little money back."
    write_pins(pins, "shop", pinned)
    async with open_file_desk(tmp_path, text) as desk, desk.connect_client() as client, desk.sign_in() as ann:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "shop__find_order" in names
        assert "shop__refund" not in names
        page = await ann.read("/decide")
        assert "shop: the tool refund is changed and is held until somebody accepts it" in page
        assert '- "description": "Give a little money back."' in page
        assert "Held, its definition is changed: shop__refund" in await ann.read("/tools")
        own = await ann.read("/tools/shop__refund")
        assert "It is held until somebody accepts it: handrail mcp accept" in own
        assert own.count('- "description": "Give a little money back."') == 2
        assert "What differs" not in (await ann.get("/tools/shop__find_order")).text.partition("<h1>")[2]


async def test_rules_that_are_saved_while_a_gateway_connects_to_its_sources_are_applied(tmp_path: Path) -> None:
    others = ["rules: [{deny: shop__refund}]"]

    async def save_other_rules(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if others:
            (tmp_path / "policy.yaml").write_text(others.pop())
        writer.close()

    listener = bind()
    text = f"""
store: STORE
sources:
  shop: {write_shop(tmp_path / "journal")}
  bank: {{url: "http://127.0.0.1:{listener.getsockname()[1]}/mcp"}}
policy: policy.yaml
"""
    async with (
        await asyncio.start_server(save_other_rules, sock=listener),
        open_file_desk(tmp_path, text, policy_yaml="rules: [{allow: shop__refund}]") as desk,
    ):
        assert desk.gateway is not None
        executor = desk.gateway.executor
        await eventually(lambda: executor.is_denied("shop__refund", CONTEXT))


@pytest.mark.proves("GW-10")
async def test_a_broken_policy_file_changes_nothing_and_a_good_one_counts_from_the_next_call_on(
    tmp_path: Path, store: SqlStore
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rules: [{deny: pay}]\n")
    executor = Executor([pay], policy=load_gateway_policy(file), store=store)
    watch = PolicyWatch(executor, file, read_stamp(file))
    for broken in (
        "rules: [{deny: pay, wen: 1}]\n",
        "rules: [{deny: payy}]\n",
        "",
        "\x00",
        "rules: [",
        '["\\Uffffffff"]',
    ):
        file.write_text(broken)
        await watch.check()
        (problem,) = watch.list_problems()
        assert "the rules before it are in force" in problem
        assert executor.is_denied("pay", CONTEXT)
    file.unlink()
    await watch.check()
    assert watch.list_problems()
    file.write_text("rules: [{allow: pay}]\ndefault: deny\n")
    await watch.check()
    assert watch.list_problems() == []
    assert not executor.is_denied("pay", CONTEXT)


class RefusingOnce(Executor):
    """An executor of the host's own, with a bug that the first rules meet."""

    refused = False

    def replace_policy(self, policy: Policy) -> None:
        if not self.refused:
            self.refused = True
            raise RuntimeError("nobody expects this")
        super().replace_policy(policy)


async def test_a_policy_file_is_watched_on_after_an_exception_that_nobody_expects(
    tmp_path: Path, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handrail.serve.gateway._POLICY_SECONDS", 0.001)
    file = tmp_path / "policy.yaml"
    file.write_text("rules: [{allow: pay}]\n")
    executor = RefusingOnce([pay], policy=load_gateway_policy(file), store=store)
    watch = PolicyWatch(executor, file, read_stamp(file))
    watching = asyncio.create_task(watch.run())
    file.write_text("rules: [{deny: pay, reason: first}]\n")
    await eventually(watch.list_problems)
    assert "RuntimeError: nobody expects this" in watch.list_problems()[0]
    file.write_text("rules: [{deny: pay, reason: the second}]\n")
    await eventually(lambda: executor.is_denied("pay", CONTEXT) or watching.done())
    assert watch.list_problems() == []
    watching.cancel()


@pytest.mark.proves("GW-11")
async def test_with_a_policy_file_the_operator_is_asked_where_no_rule_applies(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: [{deny: other}]\n")
    decision = load_gateway_policy(tmp_path / "policy.yaml").decide(pay, {"amount": 5}, CONTEXT)
    assert (decision.action, decision.by) == ("ask", "operator")


@pytest.mark.parametrize(
    ("rules", "is_denied"),
    [
        ([Rule.deny("pay")], True),
        ([Rule.deny("*"), Rule.allow("pay")], True),
        ([Rule.deny("pay", where={"amount": {"above": 5}})], False),
        ([Rule.deny("pay", tenant="other")], False),
        ([Rule.deny("pay", tenant="acme")], True),
        ([Rule.deny("pay", agent="bot")], False),
        ([Rule.allow("pay")], False),
        ([], False),
    ],
)
async def test_a_tool_is_denied_if_no_call_of_it_could_run(rules: list[Rule], is_denied: bool) -> None:
    executor = Executor([pay], policy=Policy(rules))
    assert executor.is_denied("pay", ToolContext(session_id="s", tenant_id="acme")) is is_denied


@pytest.mark.proves("GW-02")
async def test_only_the_keys_of_callers_call_and_a_revoked_one_does_not(tmp_path: Path) -> None:
    text = f"store: STORE\nsources: {{shop: {write_shop(tmp_path / 'journal')}}}"
    async with open_file_desk(tmp_path, text) as desk, httpx2.AsyncClient(base_url=desk.url) as http:

        async def post(secret: str) -> httpx2.Response:
            headers = {"Authorization": f"Bearer {secret}", "Accept": "application/json, text/event-stream"}
            return await http.post("/mcp", headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})

        for secret in ("x", "hrk_wrong", "x" * 5_000):
            assert (await post(secret)).status_code == 401
        assert "cannot call tools" in (await post(await desk.create_key("operator"))).text
        key, secret = await desk.store.keys.create(role="caller", who="bot")
        assert (await post(secret)).status_code not in (401, 403)
        await desk.store.keys.revoke(key.id)
        async with asyncio.timeout(60):  # It is believed for a second at most.
            while (await post(secret)).status_code != 401:
                await asyncio.sleep(0.1)
