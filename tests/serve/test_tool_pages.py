"""The pages of tools, of rules to try, and of sessions."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.store import SqlStore
from handrail.tenants import TenantConfig
from tests.serve.desk import open_desk
from tests.serve.service import close_account, get_balance, pay

HOSTILE = "<script>alert(1)</script>\u202e"


async def record_calls(executor: Executor, store: SqlStore, tenant_id: str | None, session_id: str) -> None:
    context = ToolContext(session_id=session_id, tenant_id=tenant_id, customer_id=f"customer-of-{tenant_id}")
    for id, name, arguments in (
        ("c-1", "get_balance", '{"account": "a"}'),
        ("c-2", "pay", f'{{"invoice": "i-{tenant_id}", "amount": 900}}'),
        ("c-3", "close_account", '{"account": "a"}'),
    ):
        await executor.run(ToolCall(id=id, name=name, arguments_json=arguments), context)
    await store.audit.flush(timeout=10)


def build_executor(store: SqlStore) -> Executor:
    policy = Policy([Rule.allow("pay"), Rule.allow("close_account", reason="it is a test")])
    return Executor([get_balance, pay, close_account], policy=policy, store=store, scope="session")


async def test_rules_that_somebody_tries_hold_nobody_up(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    checked: list[bool] = []
    compile, check = Policy.compile, Policy.find_problems

    def note_compiled(policy: Policy, tool: Any, *given: Any, **options: Any) -> Any:
        compiled.append(tool.name)
        return compile(policy, tool, *given, **options)

    def note_checked(policy: Policy, *given: Any, **options: Any) -> Any:
        checked.append(threading.current_thread() is threading.main_thread())
        return check(policy, *given, **options)

    executor = build_executor(store)
    await record_calls(executor, store, "acme", "s-1")
    never = [replace(get_balance, name=f"never_called_{number}") for number in range(20)]
    executor.replace_tools([get_balance, pay, close_account, *never])
    async with open_desk(executor, store) as desk, desk.sign_in("viewer", tenant_id="acme") as ann:
        form = {"form_token": await ann.read_token(), "rules": "rules: [{deny: '*'}]"}
        monkeypatch.setattr(Policy, "compile", note_compiled)
        monkeypatch.setattr(Policy, "find_problems", note_checked)
        assert "would change" in (await ann.http.post("/policy/test", data=form)).text
    assert checked == [False]
    assert sorted(compiled) == ["close_account", "get_balance", "pay"]


async def test_the_tools_are_shown_with_their_flags_their_health_and_their_rules(store: SqlStore) -> None:
    executor = build_executor(store)
    await record_calls(executor, store, "acme", "s-1")
    async with open_desk(executor, store) as desk, desk.sign_in("viewer", tenant_id="acme") as ann:
        listed = await ann.read("/tools")
        assert "pay consequential key local 1 100 %" in listed
        assert "close_account consequential local 1 0 %" in listed
        page = await ann.read("/tools/pay")
        for text in ("Pay an invoice.", "with a key", "allow('pay')", "circuit breaker closed", "1 calls, 100 %"):
            assert text in page
        for name in ("openai_responses", "anthropic", "gemini", "mcp"):
            assert name in page
        assert (await ann.get("/tools/nothing")).status_code == 404


async def test_other_rules_are_tried_on_the_recorded_calls_of_the_holders_tenant(store: SqlStore) -> None:
    executor = build_executor(store)
    for tenant in ("acme", "globex"):
        await record_calls(executor, store, tenant, f"s-{tenant}")
    async with open_desk(executor, store) as desk, desk.sign_in("viewer", tenant_id="acme") as ann:
        assert "allow('pay')" in await ann.read("/policy")
        form = {"form_token": await ann.read_token(), "rules": "rules:\n  - {deny: pay, reason: too much}\n"}
        tried = (await ann.http.post("/policy/test", data=form)).text
        assert "would change" in tried
        assert "i-acme" in tried
        assert "too much" in tried
        assert "i-globex" not in tried
        for wrong in ("rules: [{deny: payy}]", "rules: [", HOSTILE, ""):
            answer = await ann.http.post("/policy/test", data={**form, "rules": wrong})
            assert (answer.status_code, "<script>alert" in answer.text) == (200, False)
            assert 'role="alert"' in answer.text
        long = await ann.http.post("/policy/test", data={**form, "rules": "#" * 50_001})
        assert "The rules must have at most 50,000 characters, got 50,001." in long.text
        without = await ann.http.post("/policy/test", data={"rules": "rules: []"})
        assert without.status_code == 403
    assert executor.policy.rules[0].action == "allow"


async def test_sessions_are_listed_and_one_is_a_timeline(store: SqlStore) -> None:
    executor = build_executor(store)
    for tenant in ("acme", "globex"):
        await record_calls(executor, store, tenant, f"s-{tenant}-{HOSTILE}")
    async with open_desk(executor, store) as desk, desk.sign_in("viewer", tenant_id="acme") as ann:
        html = (await ann.get("/sessions")).text
        assert "s-acme" in html
        assert "s-globex" not in html
        assert "<script>alert" not in html
        page = await ann.http.get("/sessions/timeline", params={"id": f"s-acme-{HOSTILE}"})
        assert (page.status_code, "outcome_unknown" in page.text, "\u202e" in page.text) == (200, True, False)
        assert (await ann.http.get("/sessions/timeline", params={"id": f"s-globex-{HOSTILE}"})).status_code == 404
        assert (await ann.get("/sessions/timeline")).status_code == 404


async def test_a_call_that_waits_or_is_in_doubt_has_not_failed_and_a_timeline_says_who_decided(store: SqlStore) -> None:
    policy = Policy([Rule.ask("pay", by="operator"), Rule.allow("close_account")])
    executor = Executor([get_balance, pay, close_account], policy=policy, store=store)
    await record_calls(executor, store, "acme", "s-1")
    [question] = await store.approvals.pending()
    await store.approvals.deny(question.token, by="operator", who="bob", reason="too much")
    await store.audit.flush(timeout=10)
    async with open_desk(executor, store) as desk, desk.sign_in("viewer", tenant_id="acme") as ann:
        assert "3 0 customer-of-acme" in await ann.read("/sessions")
        timeline = (await ann.get("/sessions/timeline?id=s-1")).text
    for code in ("approval_required", "outcome_unknown"):
        assert f'<span class="badge pending">{code}</span>' in timeline
    for said in ("the operator is asked", "denied by bob: too much"):
        assert f'<a href="/decide/{question.token}">{said}</a>' in timeline


async def test_a_revision_that_does_not_serve_is_said_on_the_page_of_the_tenant_only(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handrail.serve.tenant_pools._CACHED_SECONDS", 0.0)
    executor = build_executor(store)
    await store.tenants.put(TenantConfig(tenant_id="acme"))
    async with open_desk(executor, store, tenants=store.tenants) as desk:
        async with desk.sign_in("viewer", tenant_id="acme") as ann:
            assert "cannot be used" not in await ann.read("/tools")
            await store.tenants.put(TenantConfig(tenant_id="acme", policy=({"deny": "gone"},)))
            assert "cannot be used, and the one before serves" in await ann.read("/tools")
        async with desk.sign_in("viewer", who="eve", tenant_id="globex") as eve:
            assert "acme" not in await eve.read("/tools")


async def test_a_tool_with_a_hostile_description_is_shown_as_text(store: SqlStore) -> None:
    @tool(read_only=True, description=HOSTILE)
    def strange() -> str:
        return ""

    async with open_desk(Executor([strange], store=store), store) as desk, desk.sign_in() as ann:
        html = (await ann.get("/tools/strange")).text
        assert "<script>alert" not in html
        assert "\u202e" not in html
