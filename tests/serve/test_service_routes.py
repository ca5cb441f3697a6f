"""The routes one by one: what they do, and what they say when something is wrong."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from sqlalchemy import update

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolRegistry, tool
from handrail.phone import PhoneGateway, WebhookResponse
from handrail.serve import build_app
from handrail.serve.tenant_retention import Retention
from handrail.store import SqlStore
from handrail.store.tables import tenants
from handrail.tenants import Section, TenantConfig, TenantDirectory, ToolBuilder
from tests.serve.service import PARROT, Client, close_account, get_balance, open_replica, paid, pay


@pytest.fixture(autouse=True)
def _revisions_apply_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handrail.serve.tenant_pools._CACHED_SECONDS", 0.0)


async def test_a_refused_call_is_a_result_with_the_librarys_code_and_text(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller = await replica.connect("caller")
        results = [
            await caller.call("nothing"),
            await caller.call("pay", {"invoice": "i"}),
            await caller.call("pay", [1]),
            await caller.call("pay", {"invoice": "i", "amount": 1}),
        ]
        codes = ["tool_not_found", "invalid_arguments", "tool_args_parse_error", "approval_required"]
        assert [result["error"]["code"] for result in results] == codes
        for result in results:
            assert json.loads(result["text"])["message"] == result["error"]["message"]


async def test_the_text_of_the_arguments_reaches_the_tool_as_it_was_sent(store: SqlStore) -> None:
    @tool(read_only=True)
    async def echo(number: int) -> str:
        """Say a number."""
        return str(number)

    executor = Executor([echo], store=store)
    _, secret = await store.keys.create(role="caller", who="bot", tenant_id="acme")
    caller = Client(build_app(executor, store=store), secret)
    body = b'{"tool": "echo", "session_id": "s", "arguments": {"number": 123456789012345678901234567890}}'
    answer = await caller.request("POST", "/calls", content=body)
    assert answer.json()["output"] == "123456789012345678901234567890"


async def test_a_submitted_call_is_looked_up_by_its_ids(store: SqlStore) -> None:
    release = asyncio.Event()

    @tool
    async def work(job: str) -> str:
        """Work for a while."""
        await release.wait()
        return f"done: {job}"

    executor = Executor([work], policy=Policy([Rule.allow("work")]), store=store, scope="session")
    _, secret = await store.keys.create(role="caller", who="bot", tenant_id="acme")
    caller = Client(build_app(executor, store=store), secret)
    body = {"tool": "work", "arguments": {"job": "a"}, "session_id": "s", "call_id": "c"}
    accepted = await caller.post("/calls/submit", body, status=202)
    assert (accepted["session_id"], accepted["call_id"]) == ("api:acme/s", "c")
    release.set()
    async with asyncio.timeout(10):
        while (known := await caller.get("/calls/result", session_id="s", call_id="c"))["error"]:
            await asyncio.sleep(0.01)
    assert known["output"] == "done: a"
    refused = await caller.post("/calls/submit", {"tool": "nothing", "session_id": "s"})
    assert refused["error"]["code"] == "tool_not_found"


async def test_a_call_that_waits_is_not_in_the_ledger_and_whoever_looks_it_up_is_told_why(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller = await replica.connect("caller")
        waiting = await caller.call("pay", {"invoice": "i", "amount": 1}, call_id="c")
        assert waiting["error"]["code"] == "approval_required"
        missing = await caller.get("/calls/result", 404, session_id="s-1", call_id="c")
        assert "no such call in the ledger. A call that was refused, that waits" in missing["error"]["message"]


async def test_a_durable_call_is_stored_by_one_replica_and_run_by_the_worker_of_another(store: SqlStore) -> None:
    done: list[str] = []

    @tool(key="invoice", idempotent=True, durable=True)
    async def settle(invoice: str) -> str:
        """Settle an invoice."""
        done.append(invoice)
        return f"settled {invoice}"

    policy = Policy([Rule.ask("settle", by="operator", where={"invoice": {"equals": "large"}}), Rule.allow("settle")])
    first = Executor([settle], policy=policy, store=store, scope="session")
    second = Executor([settle], policy=policy, store=store, scope="session")
    app, working = build_app(first, store=store), build_app(second, store=store, worker=True)
    roles = ("caller", "operator")
    secrets = [(await store.keys.create(role=role, who=role, tenant_id="acme"))[1] for role in roles]
    caller, operator = (Client(app, secret) for secret in secrets)
    other = Client(app, (await store.keys.create(role="caller", who="eve", tenant_id="globex"))[1])

    def body(invoice: str) -> dict[str, Any]:
        return {"tool": "settle", "arguments": {"invoice": invoice}, "session_id": "s", "call_id": invoice}

    queued = await caller.post("/calls/submit", body("small"), status=202)
    assert (queued["state"], done) == ("queued", [])
    known = await caller.get("/calls/result", session_id="s", call_id="small")
    assert known["error"]["code"] == "in_progress"
    assert await other.get("/calls/result", 404, session_id="api:acme/s", call_id="small")
    asked = await caller.post("/calls/submit", body("large"))
    await operator.post(f"/approvals/{asked['approval']['token']}/approve")
    await caller.post("/calls/submit", body("unwanted"), status=202)
    assert await caller.post("/calls/cancel", {"session_id": "s", "call_id": "unwanted"}) == {"cancelled": True}
    async with asyncio.timeout(30), working.router.lifespan_context(working):
        for invoice in ("small", "large"):
            result = await caller.get("/calls/result", session_id="s", call_id=invoice, wait=20)
            assert result["output"] == f"settled {invoice}"
    assert sorted(done) == ["large", "small"]
    await first.aclose()
    await second.aclose()


async def test_a_call_that_runs_here_is_cancelled(store: SqlStore) -> None:
    started = asyncio.Event()

    @tool(read_only=True)
    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    executor = Executor([wait], store=store)
    _, secret = await store.keys.create(role="caller", who="bot", tenant_id="acme")
    caller = Client(build_app(executor, store=store), secret)
    waiting = asyncio.create_task(caller.call("wait", call_id="c"))
    await asyncio.wait_for(started.wait(), 10)
    assert await caller.post("/calls/cancel", {"session_id": "s-1", "call_id": "c"}) == {"cancelled": True}
    assert (await waiting)["error"]["code"] == "cancelled"
    assert await caller.post("/calls/cancel", {"session_id": "s-1", "call_id": "c"}) == {"cancelled": False}


@pytest.mark.proves("SV-03")
async def test_a_caller_passes_on_what_the_customer_says_and_never_what_an_operator_is_asked(store: SqlStore) -> None:
    @tool
    async def transfer(amount: int) -> str:
        """Transfer money."""
        return f"sent {amount}"

    policy = Policy([Rule.ask("transfer", by="customer", where={"amount": {"below": 100}})], asks="operator")
    executor = Executor([transfer], policy=policy, store=store, scope="session")
    app = build_app(executor, store=store)
    secrets = [(await store.keys.create(role=role, who=role, tenant_id="acme"))[1] for role in ("caller", "operator")]
    caller, operator = (Client(app, secret) for secret in secrets)

    small = await caller.call("transfer", {"amount": 5}, call_id="c-1", customer_id="ann", turn=1)
    assert small["approval"]["by"] == "customer"
    token = small["approval"]["token"]
    refused = await operator.post(f"/approvals/{token}/approve", status=409)
    assert refused["error"]["code"] == "approval_error"
    assert [item["token"] for item in (await caller.get("/approvals", session_id="s-1"))["items"]] == [token]
    decided = await caller.post(f"/approvals/{token}/approve")
    assert (decided["state"], decided["who"]) == ("approved", "ann")
    same_turn = await caller.call("transfer", {"amount": 5}, call_id="c-1", customer_id="ann", turn=1)
    assert same_turn["error"]["code"] == "approval_required"
    later = await caller.call("transfer", {"amount": 5}, call_id="c-1", customer_id="ann", turn=2)
    assert later["output"] == "sent 5"

    large = await caller.call("transfer", {"amount": 500}, call_id="c-2", customer_id="ann", turn=2)
    refused = await caller.post(f"/approvals/{large['approval']['token']}/approve", status=409)
    assert refused["error"]["code"] == "approval_error"


async def test_an_operator_changes_denies_and_is_told_who_was_faster(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller = await replica.connect("caller")
        ann, bob = await replica.connect("operator", who="ann"), await replica.connect("operator", who="bob")
        asked = await caller.call("pay", {"invoice": "i", "amount": 900}, call_id="c")
        path = f"/approvals/{asked['approval']['token']}"
        wrong = await ann.post(f"{path}/approve", {"arguments": {"invoice": "i"}}, status=422)
        assert wrong["error"]["code"] == "invalid_arguments"
        changed = await ann.post(f"{path}/approve", {"arguments": {"invoice": "i", "amount": 9}, "reason": "less"})
        assert (changed["changed_arguments"], changed["who"]) == ({"invoice": "i", "amount": 9}, "ann")
        late = await bob.post(f"{path}/deny", status=409)
        assert late["error"]["code"] == "approval_error"
        assert (await caller.call("pay", {"invoice": "i", "amount": 900}, call_id="c"))["ok"]
        assert paid == [("i", 9)]

        asked = await caller.call("pay", {"invoice": "j", "amount": 1}, call_id="d")
        await bob.post(f"/approvals/{asked['approval']['token']}/deny", {"reason": "not ours"})
        denied = await caller.call("pay", {"invoice": "j", "amount": 1}, call_id="d")
        assert denied["error"]["code"] == "permission_denied"
        assert "not ours" in denied["text"]
        history = (await ann.get("/approvals/history", who="bob"))["items"]
        assert [(message["state"], message["reason"]) for message in history] == [("denied", "not ours")]


async def test_approvals_come_in_pages(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller, viewer = await replica.connect("caller"), await replica.connect("viewer")
        for number in range(5):
            await caller.call("pay", {"invoice": f"i-{number}", "amount": 1}, call_id=f"c-{number}")
        for path, step in (("/approvals", "after"), ("/approvals/history", "before")):
            seen, cursor = set[str](), None
            while True:
                page = await viewer.get(path, limit=2, **({} if cursor is None else {step: cursor}))
                assert not seen & {item["token"] for item in page["items"]}
                seen |= {item["token"] for item in page["items"]}
                if (cursor := page["next"]) is None:
                    break
            assert len(seen) == 5


async def test_a_doubt_is_listed_explained_and_resolved(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller, operator = await replica.connect("caller"), await replica.connect("operator", who="ann")
        result = await caller.call("close_account", {"account": "a"}, call_id="c")
        assert result["error"]["code"] == "outcome_unknown"
        (doubt,) = (await operator.get("/doubts"))["items"]
        assert (bool(doubt["owner"]), doubt["attempts"]) == (True, 0)
        body = {"session_id": doubt["session_id"], "call_id": "c", "happened": True, "reason": "seen at the bank"}
        stale = await operator.post("/doubts/resolve", {**body, "expected": "another"}, status=409)
        assert stale["error"]["code"] == "config_error"
        resolved = await operator.post("/doubts/resolve", {**body, "expected": doubt["version"]})
        assert resolved["ok"]
        assert (await operator.get("/doubts"))["items"] == []
        assert (await caller.get("/calls/result", session_id="s-1", call_id="c"))["ok"]
        await store.audit.flush(timeout=10)
        why = await operator.get("/calls/why", session_id=doubt["session_id"], call_id="c")
        assert "ann" in json.dumps(why)


async def test_the_audit_is_read_in_pages_and_as_lines_without_a_gap(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller, viewer = await replica.connect("caller"), await replica.connect("viewer")
        for number in range(7):
            await caller.call("get_balance", {"account": f"a-{number}"}, call_id=f"c-{number}")
        await store.audit.flush(timeout=10)
        seen, before = list[str](), None
        while True:
            page = await viewer.get(
                "/audit", kind="call_finished", limit=3, **({} if before is None else {"before": before})
            )
            seen = [row["call_id"] for row in page["items"]] + seen
            if (before := page["before"]) is None:
                break
        assert seen == [f"c-{number}" for number in range(7)]
        answer = await viewer.request("GET", "/audit/export")
        rows = [json.loads(line) for line in answer.text.splitlines()]
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert [row["call_id"] for row in rows if row["kind"] == "call_finished"] == seen[::-1]
        assert not {"writer", "number"} & {name for row in rows for name in row}
        for wrong in ({"before": "x"}, {"before": "nan:1"}, {"limit": 0}, {"since": -1}, {"tool_name": "pay"}):
            assert (await viewer.request("GET", "/audit", params=wrong)).status_code == 422


async def test_an_export_ends_when_its_key_is_revoked(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handrail.serve.api.audit_and_erasure.EXPORT_PAGE", 1)
    monkeypatch.setattr("handrail.serve.access._CACHED_SECONDS", 0.0)
    async with open_replica(store) as replica:
        caller, viewer = await replica.connect("caller"), await replica.connect("viewer")
        for number in range(4):
            await caller.call("get_balance", {"account": "a"}, call_id=f"c-{number}")
        await store.audit.flush(timeout=10)
        (key,) = [item for item in await store.keys.list() if item.role == "viewer"]
        find, looks = replica.store.keys.find, 0

        async def revoke_after_two(secret: str) -> Any:
            nonlocal looks
            looks += 1
            if looks == 3:
                await store.keys.revoke(key.id)
            return await find(secret)

        monkeypatch.setattr(replica.store.keys, "find", revoke_after_two)
        lines = (await viewer.request("GET", "/audit/export")).text.splitlines()
        assert json.loads(lines[-1])["error"]["code"] == "permission_denied"
        assert len(lines) == 2


async def test_tools_in_the_form_of_each_provider(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller = await replica.connect("caller")
        tools = {item["name"]: item for item in (await caller.get("/tools"))["items"]}
        assert sorted(tools) == ["close_account", "get_balance", "pay"]
        assert (tools["pay"]["has_key"], tools["pay"]["read_only"], tools["get_balance"]["read_only"]) == (
            True,
            False,
            True,
        )
        for name in ("openai_responses", "openai_chat", "openai_realtime", "anthropic", "gemini", "mcp"):
            definitions = await caller.get(f"/tools/definitions/{name}")
            assert "get_balance" in json.dumps(definitions["tools"])
        await caller.get("/tools/definitions/unknown", 422)
        await caller.get("/tools/unknown", 404)


async def test_definitions_are_made_in_a_thread_so_that_calls_go_on(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()
    render = ToolRegistry.to_gemini_tools

    def note(registry: ToolRegistry) -> Any:
        threads.add(threading.current_thread())
        return render(registry)

    monkeypatch.setattr(ToolRegistry, "to_gemini_tools", note)
    async with open_replica(store) as replica:
        definitions = await (await replica.connect("caller")).get("/tools/definitions/gemini")
    assert "get_balance" in json.dumps(definitions["tools"])
    assert threads
    assert threading.main_thread() not in threads


async def test_a_tool_that_is_denied_in_any_case_is_not_listed(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        replica.executor.replace_policy(Policy([Rule.deny("close_account")]))
        caller = await replica.connect("caller")
        assert "close_account" not in json.dumps(await caller.get("/tools/definitions/mcp"))
        assert [item["name"] for item in (await caller.get("/tools"))["items"]] == ["get_balance", "pay"]


async def test_explain_says_which_rule_would_decide_and_runs_nothing(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller = await replica.connect("caller")
        body = {"tool": "pay", "arguments": {"invoice": "i", "amount": 1}, "session_id": "s"}
        found = await caller.post("/explain", body)
        assert (found["decision"]["action"], found["decision"]["by"], paid) == ("ask", "operator", [])


class Loyalty(Section):
    level: int = 1


def build_loyalty(cfg: TenantConfig) -> Any:
    @tool(read_only=True)
    def get_points() -> int:
        """The points of the customer."""
        return cfg.features.loyalty.level * 10

    return get_points


@pytest.mark.proves("SV-09", "SV-10")
async def test_a_tenants_configuration_adds_tools_and_rules_and_is_rolled_back(store: SqlStore) -> None:
    builder = ToolBuilder()
    builder.register(build_loyalty, feature=("loyalty", Loyalty))
    async with open_replica(store, tenants=store.tenants, tools=builder) as replica:
        acme, other = await replica.connect("caller", "acme"), await replica.connect("caller", "globex")
        admin = await replica.connect("admin", "acme", who="ann")

        async def put(config: dict[str, Any], **params: Any) -> httpx2.Response:
            body = {"config": {"tenant_id": "acme", **config}}
            return await admin.request("PUT", "/tenants/acme", json=body, params=params)

        first = await put({"features": {"loyalty": {"level": 2}}})
        assert first.json()["revision"] == 1
        assert (await acme.call("get_points"))["output"] == 20
        rule = {"deny": "pay", "where": {"amount": {"above": 10}}, "reason": "too much"}
        assert (await put({"policy": [rule]}, revision=1)).json()["revision"] == 2
        assert (await put({"policy": [rule]}, revision=1)).status_code == 409
        denied = await acme.call("pay", {"invoice": "i", "amount": 11})
        assert (denied["error"]["code"], denied["decision"]["source"]) == ("permission_denied", "tenant:acme")
        allowed = await other.call("pay", {"invoice": "i", "amount": 11})
        assert allowed["error"]["code"] == "approval_required"

        for wrong, problem in (({"policy": [{"deny": "payy"}]}, "did you mean 'pay'?"), ({"locale": 5}, "locale")):
            checked = await admin.post("/tenants/validate", {"config": {"tenant_id": "acme", **wrong}})
            assert (checked["valid"], problem in checked["problems"][0]) == (False, True)
            assert (await put(wrong)).status_code == 422
        assert (await admin.post("/tenants/validate", {"config": {"tenant_id": "acme"}}))["valid"]

        await admin.post("/tenants/acme/rollback", {"revision": 1})
        history = (await admin.get("/tenants/acme/history"))["items"]
        assert [(message["revision"], message["who"]) for message in history] == [(3, "ann"), (2, "ann"), (1, "ann")]
        assert history[0]["version"] == history[2]["version"]
        assert (await acme.call("get_points"))["output"] == 20
        await admin.post("/tenants/acme/rollback", {"revision": 99}, 404)


@pytest.mark.proves("SV-09")
async def test_a_revision_that_cannot_be_built_leaves_the_one_before_and_is_named(store: SqlStore) -> None:
    async with open_replica(store, tenants=store.tenants) as replica:
        caller, admin = await replica.connect("caller"), await replica.connect("admin")
        good = TenantConfig(tenant_id="acme", policy=({"deny": "close_account"},))
        await store.tenants.put(good, who="ann")
        assert (await caller.call("close_account", {"account": "a"}))["error"]["code"] == "permission_denied"
        # Saved by another program, with rules for tools that are not here.
        await store.tenants.put(TenantConfig(tenant_id="acme", policy=({"deny": "gone"},)), who="eve")
        assert (await caller.call("close_account", {"account": "a"}))["error"]["code"] == "permission_denied"
        shown = await admin.get("/tenants/acme")
        assert (shown["revision"], "gone" in shown["problem"]) == (2, True)
        await admin.post("/tenants/acme/rollback", {"revision": 1})
        await caller.call("get_balance", {"account": "a"})
        assert (await admin.get("/tenants/acme"))["problem"] is None


async def test_a_tenant_whose_saved_configuration_is_not_valid_any_more_is_listed_and_can_be_turned_off(
    store: SqlStore,
) -> None:
    async with open_replica(store, tenants=store.tenants) as replica:
        host, own = await replica.connect("admin", None), await replica.connect("admin", "acme")
        await store.tenants.put(TenantConfig(tenant_id="acme"))
        await store.tenants.put(TenantConfig(tenant_id="abel"))
        old = update(tenants).where(tenants.c.tenant_id == "acme")
        await store._database.write(old.values(config=b'{"tenant_id": "acme", "gone": 1}'), {})

        listed = (await host.get("/tenants"))["items"]
        assert [(item["tenant_id"], item["enabled"]) for item in listed] == [("abel", True), ("acme", None)]
        assert "gone" in listed[1]["problem"]
        assert (await own.get("/tenants"))["items"] == listed[1:]

        assert (await host.request("DELETE", "/tenants/acme")).status_code == 204
        assert [item["tenant_id"] for item in (await host.get("/tenants"))["items"]] == ["abel"]


async def test_a_saved_configuration_that_is_not_valid_any_more_is_shown_with_what_is_wrong_and_without_secrets(
    store: SqlStore,
) -> None:
    async with open_replica(store, tenants=store.tenants) as replica:
        admin, other = await replica.connect("admin"), await replica.connect("admin", "globex")
        await store.tenants.put(TenantConfig(tenant_id="acme", locale="fr"))
        source = {"name": "crm", "url": "https://crm.example/mcp", "headers": {"A": "s3cret", "B": "env:CRM"}}
        written = {"tenant_id": "acme", "gone": 1, "mcp_servers": [{**source, "cookies": {"C": "s3cret"}}]}
        await store._database.write(update(tenants).values(config=json.dumps(written).encode()), {})

        shown = await admin.get("/tenants/acme")
        assert (shown["revision"], "gone" in shown["problem"]) == (1, True)
        hidden = {"headers": {"A": "[redacted]", "B": "env:CRM"}, "cookies": {"C": "[redacted]"}}
        assert shown["config"] == {**written, "mcp_servers": [{**source, **hidden}]}
        assert await admin.get("/tenants/acme", revision=1) == shown
        await other.get("/tenants/acme", 404)
        await admin.get("/tenants/acme", 404, revision=2)
        repaired = {"config": {"tenant_id": "acme", "locale": "fr"}}
        assert (await admin.request("PUT", "/tenants/acme?revision=1", json=repaired)).status_code == 200
        assert (await admin.get("/tenants/acme"))["problem"] is None


async def test_a_tenant_whose_only_revision_cannot_be_built_calls_nothing(store: SqlStore) -> None:
    async with open_replica(store, tenants=store.tenants) as replica:
        caller = await replica.connect("caller")
        await store.tenants.put(TenantConfig(tenant_id="acme", policy=({"deny": "gone"},)), who="eve")
        body = {"tool": "get_balance", "arguments": {"account": "a"}, "session_id": "s"}
        problem = (await caller.post("/calls", body, status=503))["error"]
        assert (problem["code"], problem["retryable"]) == ("unavailable", True)
        assert "configuration of the tenant 'acme' cannot be used now. Nothing was done" in problem["message"]
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=replica.app), base_url="http://s") as browser:
            viewer = await replica.connect("viewer")
            await browser.post("/login", data={"key": viewer.secret})
            page = await browser.get("/tools")
            assert (page.status_code, "cannot be used now" in page.text) == (503, True)


async def call_pay(caller: Client, invoice: str) -> str | None:
    """The code of the error, or None."""
    result = await caller.call("pay", {"invoice": invoice, "amount": 1})
    return None if result["error"] is None else result["error"]["code"]


async def test_what_the_operator_denies_is_denied_also_to_a_tenant_whose_newest_revision_cannot_be_built(
    store: SqlStore,
) -> None:
    async with open_replica(store, tenants=store.tenants) as replica:
        replica.executor.replace_policy(Policy([Rule.allow("pay")]))
        caller, admin = await replica.connect("caller"), await replica.connect("admin")
        own = {"deny": ["pay", "close_account"], "where": {"amount": {"above": 10}}}
        await store.tenants.put(TenantConfig(tenant_id="acme", policy=[own]))
        assert await call_pay(caller, "i-1") is None
        await store.tenants.put(TenantConfig(tenant_id="acme", policy=[{"deny": "gone"}]))
        assert await call_pay(caller, "i-2") is None
        replica.executor.replace_policy(Policy([Rule.deny("pay")]))
        assert await call_pay(caller, "i-3") == "permission_denied"
        assert "gone" in (await admin.get("/tenants/acme"))["problem"]
        # The rules that serve concern a tool that is not there any more; what is left of them is in force.
        replica.executor.replace_policy(Policy([Rule.allow("pay")]))
        replica.executor.replace_tools([get_balance, pay])
        assert await call_pay(caller, "i-4") is None
        refused = await caller.call("pay", {"invoice": "i-5", "amount": 11})
        assert refused["decision"]["source"] == "tenant:acme"
        assert [invoice for invoice, _ in paid] == ["i-1", "i-2", "i-4"]


async def test_a_tenant_whose_rules_cannot_be_joined_with_those_of_now_calls_nothing(store: SqlStore) -> None:
    @tool(name="pay", key="invoice")
    async def pay_anything(invoice: str) -> str:
        """Pay an invoice, all of it."""
        return "paid"

    async with open_replica(store, tenants=store.tenants) as replica:
        replica.executor.replace_policy(Policy([Rule.allow("pay")]))
        caller = await replica.connect("caller")
        own = {"deny": "pay", "where": {"amount": {"above": 10}}}
        await store.tenants.put(TenantConfig(tenant_id="acme", policy=[own]))
        assert await call_pay(caller, "i-1") is None
        replica.executor.replace_tools([pay_anything])  # Without the amount that the tenant's rule is about.
        body = {"tool": "pay", "arguments": {"invoice": "i-2"}, "session_id": "s"}
        for _ in range(2):
            assert (await caller.post("/calls", body, status=503))["error"]["code"] == "unavailable"
        replica.executor.replace_tools([get_balance, pay, close_account])
        assert await call_pay(caller, "i-3") is None


async def test_a_tenant_that_is_turned_off_calls_nothing(store: SqlStore) -> None:
    async with open_replica(store, tenants=store.tenants) as replica:
        caller = await replica.connect("caller")
        await store.tenants.put(TenantConfig(tenant_id="acme", enabled=False))
        body = {"tool": "get_balance", "arguments": {"account": "a"}, "session_id": "s"}
        refused = await caller.post("/calls", body, status=403)
        assert refused["error"]["message"] == "This tenant is not enabled."


@pytest.mark.proves("SV-09")
async def test_a_tenant_that_was_removed_calls_nothing_until_it_is_saved_again(store: SqlStore) -> None:
    denying = TenantConfig(tenant_id="acme", policy=[{"deny": "close_account"}])
    async with open_replica(store, tenants=store.tenants, agent=PARROT) as replica:
        caller, admin = await replica.connect("caller"), await replica.connect("admin")
        await store.tenants.put(denying)
        body = {"tool": "close_account", "arguments": {"account": "a"}, "session_id": "s"}
        assert (await caller.post("/calls", body))["error"]["code"] == "permission_denied"

        assert (await admin.request("DELETE", "/tenants/acme")).status_code == 204
        for path in ("/calls", "/calls/submit", "/explain"):
            refused = await caller.post(path, body, status=403)
            assert refused["error"]["message"] == "This tenant is not enabled."
        await caller.post("/sessions/s/turns", {"message": "hi"}, status=403)
        assert (await caller.request("GET", "/tools")).status_code == 403
        never_saved = await replica.connect("caller", "globex")
        assert (await never_saved.call("get_balance", {"account": "a"}))["output"]

        await store.tenants.put(denying)
        assert (await caller.post("/calls", body))["error"]["code"] == "permission_denied"


async def test_a_tenant_is_turned_off_also_by_a_revision_that_cannot_be_built(store: SqlStore) -> None:
    async with open_replica(store, tenants=store.tenants) as replica:
        caller = await replica.connect("caller")
        await store.tenants.put(TenantConfig(tenant_id="acme"))
        await caller.call("get_balance", {"account": "a"})
        await store.tenants.put(TenantConfig(tenant_id="acme", enabled=False, policy=[{"deny": "gone"}]))
        body = {"tool": "get_balance", "arguments": {"account": "a"}, "session_id": "s"}
        await caller.post("/calls", body, status=403)


@pytest.mark.proves("SV-09", "DU-07")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"enabled": False}, "This tenant is not enabled."),
        ({"policy": [{"deny": "settle", "reason": "no more of these"}]}, "no more of these"),
        (None, "This tenant is not enabled."),
    ],
)
async def test_a_stored_call_is_under_the_rules_that_its_tenant_has_when_it_runs(
    store: SqlStore, change: dict[str, Any] | None, reason: str
) -> None:
    done: list[str] = []

    @tool(key="invoice", idempotent=True, durable=True)
    async def settle(invoice: str) -> str:
        """Settle an invoice."""
        done.append(invoice)
        return f"settled {invoice}"

    policy = Policy([Rule.ask("settle", by="operator", where={"invoice": {"equals": "large"}}), Rule.allow("settle")])
    executor = Executor([settle], policy=policy, store=store, scope="session")
    app = build_app(executor, store=store, tenants=store.tenants)
    working = build_app(executor, store=store, tenants=store.tenants, worker=True)
    clients: dict[str, Client] = {}
    for tenant in ("acme", "globex"):
        await store.tenants.put(TenantConfig(tenant_id=tenant))
        clients[tenant] = Client(app, (await store.keys.create(role="caller", who="bot", tenant_id=tenant))[1])
    operator = Client(app, (await store.keys.create(role="operator", who="ann", tenant_id="acme"))[1])

    def body(invoice: str) -> dict[str, Any]:
        return {"tool": "settle", "arguments": {"invoice": invoice}, "session_id": "s", "call_id": invoice}

    asked = await clients["acme"].post("/calls/submit", body("large"))
    await clients["acme"].post("/calls/submit", body("small"), status=202)
    await clients["globex"].post("/calls/submit", body("other"), status=202)
    if change is None:
        await store.tenants.remove("acme")
    else:
        await store.tenants.put(TenantConfig(tenant_id="acme", **change))
    await operator.post(f"/approvals/{asked['approval']['token']}/approve")
    async with asyncio.timeout(30), working.router.lifespan_context(working):
        for invoice in ("small", "large"):
            result = await clients["acme"].get("/calls/result", session_id="s", call_id=invoice, wait=20)
            assert (result["error"]["code"], reason in result["text"]) == ("permission_denied", True), result
        result = await clients["globex"].get("/calls/result", session_id="s", call_id="other", wait=20)
        assert result["output"] == "settled other"
    assert done == ["other"]
    await executor.aclose()


async def test_a_call_is_explained_however_long_its_session_is_named(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller, viewer = await replica.connect("caller"), await replica.connect("viewer")
        result = await caller.call("pay", {"invoice": "i", "amount": 1}, session="s" * 200, call_id="c")
        why = await viewer.get("/calls/why", session_id=result["session_id"], call_id="c")
        assert (why["session_id"], why["tool"]) == (result["session_id"], "pay")


async def test_a_session_is_the_same_with_and_without_its_tenant_whatever_its_characters_are(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller = await replica.connect("caller")
        names = [
            (await caller.call("get_balance", {"account": "a"}, session=f"{prefix}a\0b"))["session_id"]
            for prefix in ("", "api:acme/")
        ]
        assert names == ["api:acme/a\N{REPLACEMENT CHARACTER}b"] * 2


@pytest.mark.proves("SV-11")
async def test_one_customer_is_erased_over_http(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller, other = await replica.connect("caller", "acme"), await replica.connect("caller", "globex")
        admin, viewer = await replica.connect("admin", who="dpo"), await replica.connect("viewer")
        for client in (caller, other):
            await client.call("pay", {"invoice": "i", "amount": 1}, call_id="c", customer_id="ann")
        await store.audit.flush(timeout=10)
        done = await admin.post("/erase", {"customer_id": "ann"})
        assert (done["approvals"], done["audit_rows"] > 0, done["open_calls"]) == (1, True, 0)
        assert "ann" not in json.dumps((await viewer.get("/approvals/history"))["items"])
        theirs = await replica.connect("viewer", "globex")
        assert [item["customer_id"] for item in (await theirs.get("/approvals"))["items"]] == ["ann"]
        (row,) = (await viewer.get("/audit", kind="customer_erased"))["items"]
        assert row["detail"]["who"] == "dpo"


@pytest.mark.proves("SV-11")
async def test_what_a_tenant_does_not_keep_is_deleted_and_nothing_of_others(store: SqlStore) -> None:
    async with open_replica(store, tenants=store.tenants) as replica:
        await store.tenants.put(TenantConfig(tenant_id="acme", retention_days=30))
        await store.tenants.put(TenantConfig(tenant_id="globex"))
        viewers = {tenant: await replica.connect("viewer", tenant) for tenant in ("acme", "globex")}
        for tenant in viewers:
            await (await replica.connect("caller", tenant)).call("pay", {"invoice": "i", "amount": 1}, call_id="c")
        await store.audit.flush(timeout=10)
        retention = Retention(store, store.tenants)
        assert await retention.apply() == 0
        assert await retention.apply(now=time.time() + 31 * 86_400) > 0
        await store.audit.flush(timeout=10)
        kinds = {tenant: {row["kind"] for row in (await one.get("/audit"))["items"]} for tenant, one in viewers.items()}
        assert kinds["acme"] == {"audit_purged"}
        assert "approval_requested" in kinds["globex"]
        assert "audit_purged" not in kinds["globex"]
        assert [len((await viewer.get("/approvals"))["items"]) for viewer in viewers.values()] == [0, 1]


@pytest.mark.parametrize("is_removed", [True, False])
async def test_what_a_tenant_does_not_keep_is_deleted_also_when_it_has_left_or_another_cannot_be_read(
    store: SqlStore, is_removed: bool
) -> None:
    async with open_replica(store, tenants=store.tenants) as replica:
        await store.tenants.put(TenantConfig(tenant_id="acme", retention_days=30))
        caller, viewer = await replica.connect("caller"), await replica.connect("viewer")
        await caller.call("pay", {"invoice": "i", "amount": 1}, call_id="c")
        if is_removed:
            await store.tenants.remove("acme")
        else:  # As a newer release has saved it.
            await store.tenants.put(TenantConfig(tenant_id="other"))
            broken = update(tenants).where(tenants.c.tenant_id == "other").values(config=b'{"retention_days": "x"}')
            await store._database.write(broken, {})
        assert await Retention(store, store.tenants).apply(now=time.time() + 31 * 86_400) > 0
        assert (await viewer.get("/approvals"))["items"] == []


class BrokenAtFirst(TenantDirectory):
    """Tenants whose first list meets an exception that nobody expects."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.was_listed = asyncio.Event()

    async def list(self) -> list[TenantConfig]:
        self.looks += 1
        if self.looks == 1:
            raise RuntimeError("the host's own directory has a bug")
        self.was_listed.set()
        return await super().list()


async def test_retention_goes_on_after_an_exception_that_nobody_expects(store: SqlStore) -> None:
    kept = BrokenAtFirst()
    retaining = asyncio.create_task(Retention(store, kept, interval=0).run())
    looking = asyncio.create_task(kept.was_listed.wait())
    await asyncio.wait([retaining, looking], return_when=asyncio.FIRST_COMPLETED)
    assert not retaining.done()
    retaining.cancel()


async def test_a_tenant_whose_days_cannot_be_counted_keeps_no_other_from_being_deleted(store: SqlStore) -> None:
    async with open_replica(store, tenants=store.tenants) as replica:
        for tenant_id in ("acme", "globex"):
            await store.tenants.put(TenantConfig(tenant_id=tenant_id, retention_days=30))
        written = b'{"tenant_id": "acme", "retention_days": 1%s}' % (b"0" * 400)
        await store._database.write(update(tenants).where(tenants.c.tenant_id == "acme").values(config=written), {})
        caller, viewer = await replica.connect("caller", "globex"), await replica.connect("viewer", "globex")
        await caller.call("pay", {"invoice": "i", "amount": 1}, call_id="c")
        assert await Retention(store, store.tenants).apply(now=time.time() + 31 * 86_400) > 0
        assert (await viewer.get("/approvals"))["items"] == []


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_erasing_a_customer_deletes_the_recordings_of_the_phone(
    store: SqlStore, tmp_path: Path, is_recorded: bool
) -> None:
    folder = tmp_path / "calls"
    client = AsyncOpenAI(api_key="sk-test", webhook_secret="whsec_" + "a" * 24)
    phone = PhoneGateway(client=client, tenants=store.tenants, store=store, recordings=folder)
    async with open_replica(store, phone=phone) as replica:
        context = ToolContext(session_id="call-1", tenant_id="acme", customer_id="ann")
        await replica.executor.run(ToolCall(id="c", name="close_account", arguments_json='{"account": "a"}'), context)
        if is_recorded:
            folder.mkdir()
            (folder / "call-1.jsonl").write_text("what ann said")
            (folder / "call-2.jsonl").write_text("another's")
        admin = await replica.connect("admin")
        assert (await admin.post("/erase", {"customer_id": "ann"}))["recordings"] == is_recorded
        assert [file.name for file in folder.glob("*")] == ["call-2.jsonl"] * is_recorded
    await client.close()


class Phone:
    """A gateway that notes what it gets."""

    def __init__(self) -> None:
        self.taken: list[tuple[dict[str, str], bytes]] = []

    async def handle_webhook(self, headers: Any, body: bytes) -> WebhookResponse:
        self.taken.append((dict(headers), body))
        return WebhookResponse(status=200 if body == b"call" else 401, body="looked at")


async def test_a_webhook_of_the_phone_needs_no_key_and_reaches_the_gateway_as_it_is(store: SqlStore) -> None:
    phone = Phone()
    async with open_replica(store, phone=phone) as replica:
        nobody = Client(replica.app, None)
        for body, status in ((b"call", 200), (b"other", 401)):
            answer = await nobody.request("POST", "/phone/webhook", content=body, headers={"webhook-id": "w-1"})
            assert (answer.status_code, answer.text) == (status, "looked at")
        assert [(headers["webhook-id"], body) for headers, body in phone.taken] == [("w-1", b"call"), ("w-1", b"other")]


async def test_without_a_phone_and_metrics_there_are_no_such_routes(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        viewer = await replica.connect("viewer", None)
        assert (await viewer.request("GET", "/metrics")).status_code == 404
        assert (await viewer.request("POST", "/phone/webhook")).status_code == 404
