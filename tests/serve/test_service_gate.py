"""What every request passes: lengths, times, rates, headers, ids; and nothing secret in any answer or log."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, Policy, Rule, tool
from handrail.errors import ConfigError
from handrail.serve import ApiLimits, build_app
from handrail.store import SqlStore, open_store
from tests.serve.service import Client, open_replica

BALANCE = {"tool": "get_balance", "arguments": {"account": "a"}, "session_id": "s"}


async def send_raw(app: Any, secret: str, chunks: list[bytes], *, hang: bool = False) -> tuple[int, dict[str, Any]]:
    """A request whose body comes in pieces, and perhaps never ends."""
    headers = [(b"authorization", f"Bearer {secret}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/calls", "raw_path": b"/v1/calls"}
    scope |= {"query_string": b"", "headers": headers, "root_path": "", "scheme": "http", "client": ("a", 1)}
    waiting, sent = list(chunks), list[dict[str, Any]]()

    async def receive() -> dict[str, Any]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting) or hang}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({**scope, "state": {}}, receive, send)
    return sent[0]["status"], json.loads(b"".join(item.get("body", b"") for item in sent[1:]))


@pytest.mark.proves("SV-06")
async def test_a_body_that_is_too_long_is_refused_while_it_arrives(store: SqlStore) -> None:
    async with open_replica(store, api_limits=ApiLimits(max_body_bytes=1_000)) as replica:
        caller = await replica.connect("caller")
        answer = await caller.request("POST", "/calls", json={**BALANCE, "arguments": {"account": "x" * 2_000}})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "invalid_arguments")

        status, body = await send_raw(replica.app, caller.secret or "", [b" " * 400] * 10, hang=True)
        assert (status, body["error"]["code"]) == (413, "invalid_arguments")


@pytest.mark.proves("SV-06")
async def test_a_body_that_never_ends_is_not_waited_for(store: SqlStore) -> None:
    async with open_replica(store, api_limits=ApiLimits(body_timeout=0.05)) as replica:
        caller = await replica.connect("caller")
        status, body = await send_raw(replica.app, caller.secret or "", [b"{"], hang=True)
        assert (status, body["error"]["retryable"]) == (408, True)


@pytest.mark.proves("SV-06")
async def test_each_key_has_a_rate_of_its_own(store: SqlStore) -> None:
    async with open_replica(store, api_limits=ApiLimits(requests_per_second=0.001, burst=3)) as replica:
        one, other = await replica.connect("caller"), await replica.connect("caller")
        statuses = [(await one.request("GET", "/tools")).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        refused = await one.request("GET", "/tools")
        assert (refused.json()["error"]["code"], int(refused.headers["retry-after"]) > 0) == ("rate_limited", True)
        assert (await other.request("GET", "/tools")).status_code == 200


@pytest.mark.proves("SV-06")
async def test_a_request_that_takes_too_long_is_answered_and_its_call_goes_on(store: SqlStore) -> None:
    release, done = asyncio.Event(), asyncio.Event()

    @tool
    async def pay_slowly(invoice: str) -> str:
        """Pay, after a while."""
        await release.wait()
        done.set()
        return "paid"

    executor = Executor([pay_slowly], policy=Policy([Rule.allow("pay_slowly")]), store=store)
    app = build_app(executor, store=store, api_limits=ApiLimits(request_timeout=0.3))
    _, secret = await store.keys.create(role="caller", who="bot", tenant_id="acme")
    caller = Client(app, secret)
    body = {"tool": "pay_slowly", "arguments": {"invoice": "i"}, "session_id": "s", "call_id": "c"}

    late = await caller.request("POST", "/calls", json=body)
    assert (late.status_code, late.json()["error"]["code"]) == (503, "unavailable")
    known = await caller.get("/calls/result", session_id="s", call_id="c")
    assert known["error"]["code"] == "in_progress"
    release.set()
    await asyncio.wait_for(done.wait(), 10)
    async with asyncio.timeout(10):
        while (known := await caller.get("/calls/result", session_id="s", call_id="c"))["error"]:
            await asyncio.sleep(0.01)
    assert known["output"] == "paid"


@pytest.mark.proves("SV-08")
async def test_the_id_of_a_request_is_answered_and_audited(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller, viewer = await replica.connect("caller"), await replica.connect("viewer")
        answer = await caller.request("POST", "/calls", json=BALANCE, headers={"X-Request-ID": "trace-7"})
        assert answer.headers["x-request-id"] == "trace-7"
        for wrong in ("", "a b", "x" * 200, "ü".encode(), "<script>"):
            answer = await caller.request("GET", "/tools", headers={"X-Request-ID": wrong})
            assert answer.headers["x-request-id"].startswith("req-")

        await store.audit.flush(timeout=10)
        rows = (await viewer.get("/audit", kind="call_finished"))["items"]
        assert [row["response_id"] for row in rows] == ["trace-7"]

        admin = await replica.connect("admin")
        await admin.post("/keys", {"role": "viewer", "who": "eve"}, status=201, **{"X-Request-ID": "trace-8"})
        await store.audit.flush(timeout=10)
        (row,) = (await viewer.get("/audit", kind="key_created_over_http"))["items"]
        assert (row["detail"]["request_id"], row["detail"]["who"]) == ("trace-8", "admin-of-acme")


@pytest.mark.proves("SV-07")
async def test_no_answer_lets_another_site_in(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller = await replica.connect("caller")
        for method, path in (("GET", "/tools"), ("OPTIONS", "/calls"), ("GET", "/nothing"), ("GET", "/health")):
            answer = await caller.request(method, path, headers={"Origin": "https://evil.example"})
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert "default-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.proves("SV-07")
async def test_no_secret_is_in_an_answer_or_in_a_log(store: SqlStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_replica(store, tenants=store.tenants) as replica:
        admin = await replica.connect("admin")
        header = {"name": "crm", "url": "https://crm.example/mcp", "headers": {"X-Token": "a-literal-secret"}}
        config = {"tenant_id": "acme", "mcp_servers": [header]}
        assert (await admin.request("PUT", "/tenants/acme", json={"config": config})).status_code == 200
        created = await admin.post("/keys", {"role": "caller", "who": "bot"}, status=201)
        texts = [
            (await admin.request("GET", path)).text
            for path in ("/tenants/acme", "/tenants", "/keys", "/audit", "/tenants/acme/history", "/openapi.json")
        ]
        await admin.request("PUT", "/tenants/acme", json={"config": {**config, "numbers": ["a-literal-secret"]}})
        await store.audit.flush(timeout=10)
        texts += [caplog.text, json.dumps(await admin.get("/audit", limit=500))]
        for text in texts:
            assert "a-literal-secret" not in text
            assert created["secret"] not in text
            assert (admin.secret or "?") not in text


@pytest.mark.parametrize("path", ["/v1/tools", "/mcp"])
async def test_of_two_keys_in_one_request_the_first_counts(store: SqlStore, path: str) -> None:
    async with open_replica(store) as replica:
        caller = await replica.connect("caller")
        caller.http.headers.pop("authorization")
        for secrets, status in ((("hrk_none", caller.secret), 401), ((caller.secret, "hrk_none"), None)):
            headers = [("Authorization", f"Bearer {secret}") for secret in secrets]
            answer = await caller.http.get(path, headers=headers)
            assert (answer.status_code == 401) is (status == 401), answer.text


async def test_a_database_that_is_away_is_said_and_nothing_else(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/away.db") as store, open_replica(store) as replica:
        viewer = await replica.connect("viewer")
        ready = await viewer.get("/ready")
        assert ready == {"ready": True, "database": True}
        await store.aclose()
        for name in ("away.db", "away.db-wal", "away.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / "away.db").mkdir()
        assert (await viewer.request("GET", "/ready")).status_code == 503
        answer = await viewer.request("GET", "/audit")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert str(tmp_path) not in answer.text
        assert (await viewer.get("/health")) == {"status": "ok"}


@pytest.mark.proves("SV-06")
@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"[" * 100_000, b'{"tool": "\xed\xa0\x80"}', b"null", b'{"a":', b"NaN"]
)
async def test_a_body_that_is_no_json_says_so(store: SqlStore, body: bytes) -> None:
    async with open_replica(store) as replica:
        caller, admin = await replica.connect("caller"), await replica.connect("admin")
        for client, path in ((caller, "/calls"), (caller, "/explain"), (admin, "/keys"), (admin, "/erase")):
            answer = await client.request("POST", path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (400, 422), answer.text
            assert answer.json()["error"]["code"] == "invalid_arguments"


async def test_texts_that_no_database_stores_are_answered(store: SqlStore) -> None:
    async with open_replica(store) as replica:
        caller = await replica.connect("caller")
        for text in ("\0", "\ud800", "\u202e", "x" * 200):
            body = json.dumps({"tool": "get_balance", "arguments": {"account": text}, "session_id": text})
            answer = await caller.request("POST", "/calls", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (200, 400, 422), answer.text


@pytest.mark.parametrize("wrong", [{"burst": 0}, {"max_body_bytes": -1}, {"request_timeout": float("nan")}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be"):
        ApiLimits(**wrong)
