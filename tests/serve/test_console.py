"""The pages: who may see and decide what, and that nothing on them is more than text."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import unescape
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import insert, literal_column
from starlette.applications import Starlette
from starlette.routing import Mount

from handrail import Executor, Policy, Provenance, Rule, ToolCall, ToolContext, tool
from handrail.errors import ConfigError
from handrail.execute import Timeouts
from handrail.serve import build_app
from handrail.serve.access import COOKIE
from handrail.serve.audit_feed import AuditFeed
from handrail.serve.call_report import explain_past_call
from handrail.store import SqlStore, open_store
from handrail.store.tables import audit
from handrail.tenants import TenantConfig, ToolBuilder
from tests.serve.desk import Browser, Desk, open_desk, text_of, to_text
from tests.sources.serving import listening
from tests.tools import pay

MORE = ("/calls", "/calls/stream", "/call", "/tools", "/tools/pay", "/policy", "/sessions", "/sessions/timeline?id=s")
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE handrail_keys; --",
    "{{ 7 * 7 }}{% for x in y %}",
    "pay \u202e0001 EUR\u202c",
    "\x00\x07\x1b[2J\x7f\x85",
    "a\u200bb\ufeffc\u2028d",
    "\ud800 half",
    "javascript:alert(1)",
    "x" * 5_000_000,
]


@tool
async def note(text: str, extra: dict[str, Any] | None = None) -> str:
    """Note a text."""
    return text


async def ask(store: SqlStore, executor: Executor, call_id: str = "c-1", **given: Any) -> str:
    """Send a call that waits; the token of its question."""
    values = {"session_id": "s-1", "customer_id": "cus", "tenant_id": None, **given.pop("context", {})}
    call = ToolCall(id=call_id, name=given.pop("name", "pay"), arguments_json=json.dumps(given or {"amount": 5}))
    result = await executor.run(call, ToolContext(**values))
    assert result.approval is not None, result
    return result.approval.token


@pytest.fixture
async def executor(store: SqlStore) -> Executor:
    return Executor([pay, note], policy=Policy(asks="operator"), store=store)


@pytest.mark.proves("GW-13")
async def test_nobody_sees_a_page_without_a_key(store: SqlStore, executor: Executor) -> None:
    async with open_desk(executor, store) as desk, Browser(desk.url) as stranger:
        for path in (
            "/",
            "/decide",
            "/decide/history",
            "/decide/apr_x",
            "/doubts",
            "/calls",
            "/calls/stream",
            "/call",
            *MORE,
        ):
            answer = await stranger.get(path)
            assert answer.url.path == "/login", path
            assert "Sign in" in answer.text
        for path in ("/decide/apr_x/approve", "/doubts/resolve", "/policy/test", "/logout"):
            assert (await stranger.http.post(path, data={})).status_code == 403
        assert (await stranger.sign_in("hrk_wrong")).status_code == 403
        caller = await stranger.sign_in(await desk.create_key("caller"))
        assert "This key calls tools and cannot sign in" in caller.text
        for forged in ("", "x", "a.b.c.d", "id.9999999999.n.0" + "0" * 63):
            stranger.http.cookies.clear()
            stranger.http.cookies.set("handrail_session", forged)
            assert (await stranger.get("/decide")).url.path == "/login"


async def test_signing_in_leads_back_to_the_page_and_to_no_other_host(store: SqlStore, executor: Executor) -> None:
    async with open_desk(executor, store) as desk, Browser(desk.url) as ann:
        secret = await desk.create_key("viewer")
        answer = await ann.http.post("/login", data={"key": secret, "next": "/calls?tool=pay"})
        assert str(answer.url).endswith("/calls?tool=pay")
        (cookie,) = answer.history[0].headers.get_list("set-cookie")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert secret not in cookie
        for elsewhere in ("https://evil.example/", "//evil.example", "/\\evil.example"):
            answer = await ann.http.post("/login", data={"key": secret, "next": elsewhere})
            assert answer.url.path == "/decide"


@pytest.mark.proves("GW-15")
async def test_a_form_of_another_page_or_session_changes_nothing(store: SqlStore, executor: Executor) -> None:
    token = await ask(store, executor)
    async with open_desk(executor, store) as desk, desk.sign_in() as ann, desk.sign_in(who="bob") as bob:
        for data in ({}, {"form_token": "x"}, {"form_token": await bob.read_token()}):
            answer = await ann.http.post(f"/decide/{token}/approve", data=data)
            assert (answer.status_code, "not of your session" in answer.text) == (403, True)
        assert (await store.approvals.pending())[0].token == token


@pytest.mark.proves("GW-13")
async def test_a_viewer_sees_and_changes_nothing(store: SqlStore, executor: Executor) -> None:
    token = await ask(store, executor)
    async with open_desk(executor, store) as desk, desk.sign_in("viewer", "vic") as vic:
        page = (await vic.get("/decide")).text
        assert "pay" in page
        assert "Approve" not in page
        assert "An operator decides about this call; your key is that of a viewer." in page
        for answer in ("approve", "deny"):
            assert (await vic.answer(token, answer)).status_code == 403
        data = {"form_token": await vic.read_token(), "session_id": "s-1", "call_id": "c-1", "happened": "yes"}
        assert (await vic.http.post("/doubts/resolve", data=data)).status_code == 403
        assert (await store.approvals.pending())[0].token == token


@pytest.mark.parametrize("signature", ["é", "\x80", "0" * 64, ""])
async def test_a_cookie_that_is_none_of_ours_is_no_session(signature: str, store: SqlStore, executor: Executor) -> None:
    async with open_desk(executor, store) as desk, httpx2.AsyncClient(base_url=desk.url) as stranger:
        cookie = f"{COOKIE}=key.99999999999.mark.{signature}".encode()
        answer = await stranger.get("/decide", headers=[(b"cookie", cookie)])
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fdecide")


async def test_a_revoked_key_ends_its_sessions(store: SqlStore, executor: Executor) -> None:
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        (key,) = await store.keys.list()
        await store.keys.revoke(key.id)
        async with asyncio.timeout(60):
            while (await ann.get("/decide")).url.path != "/login":
                await asyncio.sleep(0.1)


@pytest.mark.proves("GW-13")
async def test_every_page_shows_the_rows_of_the_keys_tenant_only(store: SqlStore, executor: Executor) -> None:
    tokens = {
        tenant: await ask(store, executor, f"c-{tenant}", context={"tenant_id": tenant, "session_id": f"s-{tenant}"})
        for tenant in ("acme", "other")
    }
    await store.audit.flush(timeout=60)
    async with open_desk(executor, store) as desk, desk.sign_in("operator", "ann", "acme") as ann:
        for path in ("/decide", "/decide/history", "/calls", "/calls?tenant=other", "/calls?waiting=0s&tenant=other"):
            page = (await ann.get(path)).text
            assert "s-acme" in page or "acme" in page
            assert "s-other" not in page, path
            assert tokens["other"] not in page, path
        assert (await ann.get(f"/decide/{tokens['acme']}")).status_code == 200
        assert (await ann.get(f"/decide/{tokens['other']}")).status_code == 404
        assert (await ann.get(f"/decide/history?before={tokens['other']}")).status_code == 200
        assert (await ann.get("/call?session=s-acme&call=c-acme")).status_code == 200
        assert (await ann.get("/call?session=s-other&call=c-other")).status_code == 404
        for answer in ("approve", "deny"):
            assert (await ann.answer(tokens["other"], answer)).status_code == 404
    assert {approval.token for approval in await store.approvals.pending()} == set(tokens.values())


@pytest.mark.proves("GW-14")
async def test_who_decides_is_the_keys_holder_and_the_second_is_told_who_was_faster(
    store: SqlStore, executor: Executor
) -> None:
    token = await ask(store, executor)
    async with open_desk(executor, store) as desk, desk.sign_in(who="ann") as ann, desk.sign_in(who="bob") as bob:
        first = await ann.answer(token, "approve", reason="fine", who="mallory")
        assert "approved by ann" in to_text(first.text)
        assert "runs when its client sends the call again, once" in first.text
        assert "ann was faster and has approved this call already" in (await bob.answer(token, "approve")).text
        assert "ann was faster and has approved this call already" in (await bob.answer(token, "deny")).text
        assert "You have approved this call already" in (await ann.answer(token, "approve")).text  # Another tab.
        assert "ann" in await bob.read("/decide/history?who=ann")
    decided = await store.approvals.get(token)
    assert decided is not None
    assert (decided.who, decided.reason, decided.state) == ("ann", "fine", "approved")


async def test_changed_arguments_are_validated_as_those_of_a_model(store: SqlStore, executor: Executor) -> None:
    token = await ask(store, executor)
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        for wrong, problem in (
            ('{"amount": "much"}', "amount"),
            ("[1]", "must be a JSON object"),
            ("{", "not JSON"),
            ('{"amount": NaN}', "not a number that JSON has"),
            ("[" * 100_000, "not JSON"),
        ):
            answer = await ann.answer(token, "approve", arguments=wrong)
            assert problem in to_text(answer.text), wrong
        assert (await store.approvals.pending())[0].changed_arguments is None
        await ann.answer(token, "approve", arguments='{"amount": 3}')
    call = ToolCall(id="c-1", name="pay", arguments_json='{"amount": 5}')
    result = await executor.run(call, ToolContext(session_id="s-1", customer_id="cus"))
    assert result.output == "Paid 3."


async def test_what_an_approver_typed_is_kept_when_it_is_refused(store: SqlStore, executor: Executor) -> None:
    token = await ask(store, executor)
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        assert "<details open>" not in (await ann.get(f"/decide/{token}")).text
        typed = '{"amount":\r\n "</textarea><script>alert(1)"}'
        refused = (await ann.answer(token, "approve", arguments=typed, reason="half of it")).text
        kept = refused.split("<details open>", 1)[1].split("<textarea", 1)[1].split(">", 1)[1].split("</textarea>")[0]
        assert unescape(kept) == typed.replace("\r\n", "\n")
        assert 'value="half of it"' in refused
        done = (await ann.answer(token, "approve", arguments='{"amount": 3}', reason="half of it")).text
        assert "approved by ann" in to_text(done)


@pytest.mark.parametrize("customer", ["cus", None])
async def test_a_question_shows_what_was_decided_before_for_its_customer_and_nothing_that_still_waits(
    customer: str | None, store: SqlStore, executor: Executor
) -> None:
    context = {"customer_id": customer}
    first = await ask(store, executor, "c-1", amount=1, context=context)
    second = await ask(store, executor, "c-2", amount=2, context=context)
    other = await ask(store, executor, "c-3", amount=3, context={"customer_id": "other", "session_id": "s-2"})
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        assert "Nothing was decided about this tool for this" in await ann.read(f"/decide/{second}")
        await ann.answer(first, "deny", reason="not ours")
        await ann.answer(other, "deny", reason="not theirs")
        page = await ann.read(f"/decide/{second}")
    assert "ago : denied by ann: not ours" in page
    assert "not theirs" not in page


async def test_arguments_that_are_sent_back_unchanged_are_no_change(store: SqlStore, executor: Executor) -> None:
    token = await ask(store, executor, name="note", text="\u202eabc\x00 \U000e0041 \\u202e \x85", extra={"a": 1.0})
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        page = (await ann.get(f"/decide/{token}")).text
        shown = page.split("<textarea", 1)[1].split(">", 1)[1].split("</textarea>")[0].replace("&#34;", '"')
        assert "\\u202eabc\\u0000" in shown
        await ann.answer(token, "approve", arguments=shown)
    decided = await store.approvals.get(token)
    assert decided is not None
    assert (decided.state, decided.changed_arguments) == ("approved", None)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.proves("GW-15")
async def test_hostile_texts_are_text_on_every_page(text: str, store: SqlStore, executor: Executor) -> None:
    name = text[:200].replace("\ud800", "\ufffd").replace("\0", "")  # Ids are what a database can store.
    context = {"session_id": "s-1", "customer_id": name}
    token = await ask(store, executor, name="note", context=context, text=name if "\ud800" in text else text[:900_000])
    await executor.run(ToolCall(id=name, name=f"no_{text[:200]}", arguments_json=name), ToolContext(session_id="s-2"))
    async with open_desk(executor, store) as desk, desk.sign_in(who="ann") as ann:
        await store.audit.flush(timeout=60)
        await ann.answer(token, "deny", reason=text.replace("\ud800", "?")[:100_000])
        await store.audit.flush(timeout=60)
        paths = ["/decide", f"/decide/{token}", "/decide/history", "/doubts", "/calls", "/call?session=s-1&call=c-1"]
        paths.append(f"/call?{httpx2.QueryParams(session='s-2', call=name)}")
        paths += ["/tools", "/sessions", "/sessions/timeline?id=s-1", "/policy", "/tools/note"]
        paths += [f"/calls?{httpx2.QueryParams({field: name})}" for field in ("tool", "customer", "waiting", "outcome")]
        for path in paths:
            page = (await ann.get(path)).content.decode()
            lowered = page.lower()
            assert "<script>alert" not in lowered, path
            assert "<img" not in lowered, path
            assert 'href="javascript' not in lowered, path
            # The fields of a filter have what was typed into them.
            for hidden in "\x00" if path.startswith("/calls?") else "\u202e\x00\x07\x1b\u200b\u2028":
                assert hidden not in page, path
            assert len(page) < 3_000_000, path


async def test_arguments_too_long_for_the_list_are_decided_where_they_are_shown_whole(
    store: SqlStore, executor: Executor
) -> None:
    token = await ask(store, executor, name="note", text="x" * 10_000 + "the end")
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        listed, alone = (await ann.get("/decide")).text, (await ann.get(f"/decide/{token}")).text
    assert "the end" not in listed
    assert ">Approve<" not in listed
    assert "the end" in alone
    assert ">Approve<" in alone


async def test_whoever_decides_sees_where_a_value_comes_from_and_so_does_why(store: SqlStore) -> None:
    rule = Rule.allow("note", where={"text": {"from": ["customer"]}})
    executor = Executor([note], policy=Policy([rule], asks="operator"), store=store)
    provenance = Provenance()
    provenance.add_quoted("wire it to EVIL\u200b now")
    token = await ask(store, executor, name="note", text="EVIL\u200b", context={"provenance": provenance})

    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        page = to_text((await ann.get("/decide")).text)
    sentence = "not from customer; first seen in a text that the customer pasted"
    assert sentence in page
    assert "EVIL\\u200b" in page
    report = await explain_past_call(store, session_id="s-1", call_id="c-1")
    assert sentence in str(report)
    assert token


async def test_a_doubt_is_resolved_by_the_keys_holder(tmp_path: Path) -> None:
    @tool(timeout=0.05)
    async def wire(amount: int) -> str:
        """Wire money."""
        await asyncio.sleep(60)
        return "done"

    async with open_store(f"sqlite:///{tmp_path}/doubts.db") as store:
        executor = Executor([wire], policy=Policy([Rule.allow("*")]), store=store, timeouts=Timeouts(lease_grace=0))
        for call_id, tenant in (("c-1", "acme"), ("c-2", "other")):
            call = ToolCall(id=call_id, name="wire", arguments_json=f'{{"amount": {call_id[2:]}}}')
            await executor.run(call, ToolContext(session_id="s", tenant_id=tenant, customer_id="cus"))
        doubts = {doubt.call_id: doubt for doubt in await executor.doubts()}
        async with open_desk(executor, store) as desk, desk.sign_in("operator", "ann", "acme") as ann:
            page = await ann.read("/doubts")
            assert doubts["c-1"].idempotency_key in page
            assert doubts["c-2"].idempotency_key not in page
            form_token = await ann.read_token()

            async def resolve(**fields: str) -> str:
                data = {"form_token": form_token, "session_id": "s", "reason": "the statement", **fields}
                return to_text((await ann.http.post("/doubts/resolve", data=data)).text)

            assert "There is no such call" in await resolve(call_id="c-2", happened="yes")
            assert "Say whether it happened" in await resolve(call_id="c-1")
            assert "expected must be the version" in await resolve(call_id="c-1", happened="yes", expected="old")
            version = doubts["c-1"].version
            said = await resolve(call_id="c-1", happened="yes", expected=version, who="mallory")
            assert "took effect, as a person found out (ann: the statement)" in said
            assert "Nothing is in doubt" in said
            assert "not in doubt: it is committed" in await resolve(call_id="c-1", happened="no", expected=version)
        assert [doubt.call_id for doubt in await executor.doubts()] == ["c-2"]


async def test_calls_are_filtered_by_the_address_and_paged(store: SqlStore, executor: Executor) -> None:
    context = ToolContext(session_id="s-1", customer_id="cus")
    for number in range(60):
        await executor.run(ToolCall(id=f"c-{number}", name="missing"), context)
    await ask(store, executor, "waits")
    await store.audit.flush(timeout=60)
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        assert "pay" in await ann.read("/calls?tool=pay&customer=cus&outcome=approval_required")
        assert "No call matches" in await ann.read("/calls?tool=pay&outcome=ok")
        page = (await ann.get("/calls?tool=missing")).text
        assert page.count("<tr data-ref") == 50
        assert 'value="missing"' in page
        older = page.split('<p><a href="')[1].split('"')[0].replace("&amp;", "&")
        assert (await ann.get(older)).text.count("<tr data-ref") == 10
        assert "pay" in await ann.read("/calls?waiting=0s")
        assert "No call has been waiting that long" in await ann.read("/calls?waiting=2h")
        assert "a duration must be like" in await ann.read("/calls?waiting=soon")
        assert "call=c-" in (await ann.get("/calls?before=nonsense")).text


async def test_an_open_page_gets_calls_as_they_end_those_of_its_tenant_and_its_filters(
    store: SqlStore, executor: Executor
) -> None:
    async with (
        asyncio.timeout(60),
        open_desk(executor, store) as desk,
        desk.sign_in("viewer", "vic", "acme") as vic,
        vic.http.stream("GET", "/calls/stream?tool=missing") as stream,
    ):
        lines = stream.aiter_lines()
        assert await anext(lines) == ": connected"
        for tenant, name in (("other", "missing"), ("acme", "also_missing"), ("acme", "missing")):
            context = ToolContext(session_id=f"s-{tenant}-{name}", tenant_id=tenant)
            await executor.run(ToolCall(id="c", name=name), context)
        text = ""
        async for line in lines:
            text += line
            if "</tr>" in line:
                break
    assert "s-acme-missing" in text
    assert "s-other" not in text
    assert "also_missing" not in text


async def test_one_tenant_cannot_have_all_open_pages(
    store: SqlStore, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handrail.serve.audit_feed.MAX_STREAMS_PER_TENANT", 1)
    async with (
        asyncio.timeout(60),
        open_desk(executor, store) as desk,
        desk.sign_in("viewer", "vic", "acme") as vic,
        desk.sign_in("viewer", "eve", "globex") as eve,
        desk.sign_in("viewer", "ann") as ann,
    ):
        async with vic.http.stream("GET", "/calls/stream") as stream:
            assert await anext(stream.aiter_lines()) == ": connected"
            assert (await vic.get("/calls/stream")).status_code == 503
            for other in (eve, ann, ann):
                async with other.http.stream("GET", "/calls/stream") as another:
                    assert another.status_code == 200
        while True:  # The server notices that the page was left.
            async with vic.http.stream("GET", "/calls/stream") as again:
                if again.status_code == 200:
                    break


async def test_two_hundred_open_pages_read_the_database_once_per_interval(store: SqlStore, executor: Executor) -> None:
    reads = 0
    query = store.audit.query

    async def count(**given: Any) -> Any:
        nonlocal reads
        reads += 1
        return await query(**given)

    store.audit.query = count  # type: ignore[method-assign]
    limits = httpx2.Limits(max_connections=None)
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        http = httpx2.AsyncClient(base_url=desk.url, cookies=ann.http.cookies, limits=limits, timeout=100)
        async with http, asyncio.timeout(200):

            async def watch() -> str:
                async with http.stream("GET", "/calls/stream") as stream:
                    ready.release()
                    async for line in stream.aiter_lines():
                        if "missing" in line:
                            return line
                return ""

            ready = asyncio.Semaphore(0)
            watching = [asyncio.create_task(watch()) for _ in range(200)]
            for _ in watching:
                await ready.acquire()
            began, before = time.monotonic(), reads
            await executor.run(ToolCall(id="c", name="missing"), ToolContext(session_id="s"))
            seen = await asyncio.gather(*watching)
            rounds = time.monotonic() - began
    assert all("missing" in line for line in seen)
    assert reads - before <= rounds + 5


async def test_a_database_that_goes_away_is_an_answer_and_not_a_crash(store: SqlStore, executor: Executor) -> None:
    token = await ask(store, executor)
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        form_token = await ann.read_token()
        file = Path(store._database.url.database or "")
        hidden = file.rename(file.with_suffix(".away"))
        for path in ("/decide", "/doubts", "/calls", f"/decide/{token}"):
            answer = await ann.get(path)
            assert (answer.status_code, "does not answer" in answer.text) == (503, True), path
        answer = await ann.http.post(f"/decide/{token}/approve", data={"form_token": form_token})
        assert answer.status_code == 503
        assert "Whether your last action was recorded is not known" in answer.text
        hidden.rename(file)
        assert "pay" in await ann.read("/decide")


async def test_no_page_loads_or_runs_anything_that_is_not_ours(store: SqlStore, executor: Executor) -> None:
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        for path in ("/login", "/decide", "/doubts", "/calls", "/static/console.js", "/nowhere"):
            answer = await ann.get(path)
            assert answer.headers["content-security-policy"].startswith("default-src 'self';")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert " style=" not in answer.text
            if "/static/" not in path:
                assert answer.headers["cache-control"] == "no-store"
                assert "http://" not in answer.text
                assert "https://" not in answer.text
        script = (await ann.get("/static/console.js")).text
        assert len(script.splitlines()) < 100


async def test_a_form_that_is_too_long_is_refused(store: SqlStore, executor: Executor) -> None:
    token = await ask(store, executor)
    async with open_desk(executor, store) as desk, desk.sign_in() as ann:
        answer = await ann.http.post(f"/decide/{token}/approve", content=b"reason=" + b"x" * 9_000_000)
        assert answer.status_code == 413
        fields = "&".join(f"f{number}=1" for number in range(1_000))
        assert (await ann.http.post(f"/decide/{token}/approve", content=fields)).status_code == 413
        escaped = f"form_token={await ann.read_token()}&answer=" + "%41" * 50_000
        answer = await ann.http.post(f"/decide/{token}/approve", content=escaped)
        assert "approved by ann" in answer.text


@pytest.mark.parametrize("tenant_id", ["acme", None])
async def test_the_tools_and_the_rules_of_a_question_are_those_of_its_tenant(
    tenant_id: str | None, store: SqlStore
) -> None:
    def build_refund(cfg: TenantConfig) -> Any:
        @tool
        async def refund(amount: int) -> str:
            """Give money back."""
            return f"refunded {amount}"

        return refund

    builder = ToolBuilder()
    builder.register(build_refund)
    await store.tenants.put(TenantConfig(tenant_id="acme", policy=({"ask": "refund", "by": "operator"},)))
    executor = Executor([pay], store=store)
    async with (
        open_desk(executor, store, tenants=store.tenants, tools=builder) as desk,
        desk.connect_client(await desk.create_key("caller", "bot", "acme")) as client,
        desk.sign_in("operator", tenant_id=tenant_id) as ann,
    ):
        for amount in (5, 6):
            await client.call_tool("refund", {"amount": amount})
        first, second = sorted(await store.approvals.pending(), key=lambda approval: approval.arguments["amount"])
        wrong = await ann.answer(first.token, "approve", arguments='{"amount": "all"}')
        assert "not among the tools" not in wrong.text
        assert "amount" in to_text(wrong.text)
        assert "approved by ann" in (await ann.answer(first.token, "approve", arguments='{"amount": 4}')).text
        assert "refunded 4" in text_of(await client.call_tool("refund", {"amount": 5}))
        secret = await desk.create_key("operator", "bob", tenant_id)
        async with httpx2.AsyncClient(base_url=f"{desk.url}/v1", headers={"Authorization": f"Bearer {secret}"}) as bob:
            answer = await bob.post(f"/approvals/{second.token}/approve", json={"arguments": {"amount": 3}})
            assert answer.status_code == 200, answer.text
            await store.audit.flush(timeout=60)
            params = {"session_id": first.session_id, "call_id": first.call_id or ""}
            why = (await bob.get("/calls/why", params=params)).text
            page = await ann.read(f"/call?session={first.session_id}&call={first.call_id}")
            assert "tenant:acme" in why.partition("the rules of now")[2]
            assert "tenant:acme" in page.partition("the rules of now")[2]


async def test_what_a_stranger_sends_to_sign_in_is_short(store: SqlStore, executor: Executor) -> None:
    async with open_desk(executor, store) as desk, Browser(desk.url) as stranger:
        answer = await stranger.http.post("/login", content=b"key=" + b"%41" * 10_000)
        assert (answer.status_code, "too long" in answer.text) == (413, True)


@pytest.mark.parametrize("ending", ["leaves", "says nothing more"])
async def test_a_stranger_who_begins_a_form_holds_nothing_and_leaves_no_error(
    ending: str, store: SqlStore, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handrail.serve.console._FORM_SECONDS", 0.05)
    messages: list[Any] = [{"type": "http.request", "body": b"key=hrk", "more_body": True}]
    messages += [{"type": "http.disconnect"}] if ending == "leaves" else []
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    app = build_app(executor, store=store)
    scope = {"type": "http", "method": "POST", "path": "/login", "query_string": b"", "headers": []}
    async with asyncio.timeout(30):
        await app(scope, receive, send)
    assert sent[0]["status"] == 413


async def test_the_app_works_below_a_path_of_another_app(store: SqlStore, executor: Executor) -> None:
    token = await ask(store, executor)
    app = build_app(executor, store=store, approval_wait=0)

    @asynccontextmanager
    async def lifespan(outer: Starlette) -> AsyncGenerator[None]:
        async with app.router.lifespan_context(app):
            yield

    outer = Starlette(routes=[Mount("/desk", app=app)], lifespan=lifespan)
    async with listening(outer) as url, Browser(url) as ann:
        desk = Desk(f"{url}/desk", store)
        secret = await desk.create_key("operator", "ann")
        answer = await ann.http.post("/desk/login", data={"key": secret, "next": ""})
        assert answer.url.path == "/desk/decide"
        assert f'action="/desk/decide/{token}/approve"' in answer.text
        assert (await ann.get("/desk/static/console.js")).status_code == 200
        assert (await ann.get("/desk/")).url.path == "/desk/decide"
        assert (await ann.get("/desk/calls")).status_code == 200
        async with desk.connect_client() as client:
            assert "waits for an operator" in text_of(await client.call_tool("pay", {"amount": 5}))


async def test_the_store_is_the_executors_own(store: SqlStore) -> None:
    with pytest.raises(ConfigError, match="store must be the store of the executor"):
        build_app(Executor([pay]), store=store)


async def test_open_pages_go_on_after_a_row_of_the_audit_that_nobody_can_read(store: SqlStore) -> None:
    feed = AuditFeed(store, interval=0.02)
    rows = feed.stream(lambda row: True, tenant_id=None)
    waiting = asyncio.ensure_future(anext(rows))
    broken = insert(audit).values(writer="w", number=1, at=time.time(), kind="call_finished", session_id="s")
    await store._database.write(broken.values(detail=literal_column("'{'")), {})
    executor = Executor([pay], policy=Policy(asks="operator"), store=store)
    async with asyncio.timeout(20):
        for number in count():  # The broken row is among the newest for a moment.
            await ask(store, executor, f"c-{number}")
            done, _ = await asyncio.wait([waiting], timeout=0.02)
            if done:
                break
    row = await waiting
    assert row is not None
    assert (row.kind, row.tool) == ("call_finished", "pay")
    await rows.aclose()
    await feed.aclose()
