"""What the answer of a server, or its absence, means for the call."""

import asyncio
import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from handrail import Executor, MediaPart, Policy, Rule, ToolCall, ToolContext, ToolResult
from handrail.execute import RetryPolicy
from handrail.sources import OpenApi
from tests.sources.api_server import ApiServer, Reply, Request, serving

SHOP = Path(__file__).parents[1] / "documents" / "shop.yaml"
ALLOWED = Policy([Rule.allow("*")])
ORDER = {"customer": "ann", "lines": [{"article": "pen", "count": 1}]}


def shop(server: ApiServer, **options: Any) -> OpenApi:
    return OpenApi(SHOP, base_url=server.url, allow_private=True, **options)


async def run(api: OpenApi, name: str, arguments: dict[str, Any], **options: Any) -> ToolResult:
    context = ToolContext(session_id="s-1", turn=1, secrets={"shop": "tok-123456"})
    async with Executor(api.tools(), policy=ALLOWED, **options) as executor:
        return await executor.run(ToolCall(id="c-1", name=name, arguments_json=json.dumps(arguments)), context)


def failure(result: ToolResult) -> tuple[str, bool]:
    assert result.error is not None, result.output
    return result.error.code, result.error.retryable


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, ("tool_execution_failed", False)),
        (404, ("tool_execution_failed", False)),
        (408, ("tool_execution_failed", True)),
        (429, ("rate_limited", True)),
        (500, ("outcome_unknown", False)),
        (501, ("unavailable", True)),
        (503, ("outcome_unknown", False)),
    ],
)
async def test_an_error_of_an_effect_says_what_can_be_known(status: int, expected: tuple[str, bool]) -> None:
    with serving(lambda request: Reply(status=status, body={"why": "full"})) as server:
        result = await run(shop(server), "cancelOrder", {"id": "o-1"})

    assert failure(result) == expected
    assert len(server.requests) == 1
    if status < 500:
        assert '"why": "full"' in result.for_model().replace("\\", "")


@pytest.mark.parametrize(
    ("status", "code"), [(500, "unavailable"), (503, "unavailable"), (404, "tool_execution_failed")]
)
async def test_a_read_that_fails_can_be_tried_again_if_it_is_the_servers_fault(status: int, code: str) -> None:
    with serving(lambda request: Reply(status=status)) as server:
        result = await run(shop(server), "getOrder", {"id": "o-1"})

    assert failure(result) == (code, status >= 500)


async def test_an_effect_whose_connection_dies_after_the_request_is_of_unknown_outcome() -> None:
    with serving(lambda request: Reply(cut=True)) as server:
        effect = await run(
            shop(server), "cancelOrder", {"id": "o-1"}, retry=RetryPolicy(max_attempts=3, initial_delay=0)
        )
        asked = len(server.requests)
        read = await run(shop(server), "getOrder", {"id": "o-1"})

    assert failure(effect) == ("outcome_unknown", False)
    assert asked == 1
    assert failure(read) == ("unavailable", True)


async def test_an_effect_that_could_not_even_be_sent_did_not_happen() -> None:
    with serving(lambda request: None) as server:
        api = shop(server)
    result = await run(api, "cancelOrder", {"id": "o-1"})

    assert failure(result) == ("unavailable", True)


async def test_a_declared_idempotency_key_is_the_calls_and_makes_retries_safe() -> None:
    answers = iter([Reply(status=503), Reply(status=201, body={"number": "o-1"})])
    with serving(lambda request: next(answers)) as server:
        result = await run(shop(server), "createOrder", ORDER, retry=RetryPolicy(max_attempts=2, initial_delay=0))

    first, second = (request.headers["idempotency-key"] for request in server.requests)
    assert result.output == {"number": "o-1"}
    assert first == second
    assert "Idempotency-Key" not in str(shop(server).tools()[1].input_schema)


async def test_a_redirect_on_the_same_host_is_followed_and_no_other() -> None:
    def answer(request: Request) -> Reply:
        if request.path == "/orders/moved":
            return Reply(status=302, headers={"Location": "/orders/new"})
        if request.path == "/orders/away":
            return Reply(status=302, headers={"Location": f"{other.url}/orders/stolen"})
        if request.path == "/orders/renamed":  # The same server, under another name.
            return Reply(status=302, headers={"Location": f"{server.url.replace('127.0.0.1', 'localhost')}/orders/new"})
        return Reply(body={"id": request.path})

    with serving(lambda request: None) as other, serving(answer) as server:
        followed = await run(shop(server, bearer="secret:shop"), "getOrder", {"id": "moved"})
        refused = await run(shop(server, bearer="secret:shop"), "getOrder", {"id": "away"})
        renamed = await run(shop(server, bearer="secret:shop"), "getOrder", {"id": "renamed"})

    assert followed.output == {"id": "/orders/new"}
    assert failure(refused)[0] == failure(renamed)[0] == "unavailable"
    assert other.requests == []
    assert [request.path.rpartition("/")[2] for request in server.requests] == ["moved", "new", "away", "renamed"]


@pytest.mark.parametrize(
    ("status", "code", "asked"),
    [(307, None, ["DELETE", "DELETE"]), (303, None, ["DELETE"]), (302, "outcome_unknown", ["DELETE"])],
)
async def test_a_redirected_effect_is_sent_again_only_where_the_server_says_that_it_did_nothing(
    status: int, code: str | None, asked: list[str]
) -> None:
    def answer(request: Request) -> Reply:
        moved = request.path == "/orders/moved"
        return Reply(status=status, headers={"Location": "/orders/new"}) if moved else Reply(body={"ok": 1})

    with serving(answer) as server:
        result = await run(shop(server), "cancelOrder", {"id": "moved"})

    assert (None if result.error is None else result.error.code) == code
    assert [request.method for request in server.requests] == asked


@pytest.mark.parametrize(
    "location", ["http://[::1", "http://x:y/", "//evil.example/x", "/\u00fc", "http://127.0.0.1:1/"]
)
async def test_an_odd_redirect_is_refused(location: str) -> None:
    headers = {"Location": location.encode().decode("latin-1")}
    with serving(lambda request: Reply(status=307, headers=headers)) as server:
        read = await run(shop(server), "getOrder", {"id": "o-1"})
        effect = await run(shop(server), "cancelOrder", {"id": "o-1"})

    assert failure(read)[0] == failure(effect)[0] == "unavailable"
    assert len(server.requests) == 2


async def test_a_response_that_is_too_large_is_refused_and_what_was_done_is_not() -> None:
    def answer(request: Request) -> Reply:
        if request.headers.get("accept-encoding") == "gzip" and request.path == "/orders/zip":
            return Reply(body=gzip.compress(b"0" * 5_000_000), headers={"Content-Encoding": "gzip"})
        return Reply(body="x" * 200_000)

    with serving(answer) as server:
        api = shop(server, max_response_bytes=100_000)
        read = await run(api, "getOrder", {"id": "o-1"})
        bomb = await run(api, "getOrder", {"id": "zip"})
        effect = await run(api, "cancelOrder", {"id": "o-1"})

    assert "larger than 100,000 bytes" in read.for_model()
    assert "larger than 100,000 bytes" in bomb.for_model()
    assert effect.ok
    assert len(effect.for_model()) < 200


async def test_every_kind_of_result_has_a_form_for_the_model() -> None:
    replies = {
        "json": Reply(body=[1, {"a": None}]),
        "text": Reply(body="grüße"),
        "empty": Reply(status=204),
        "binary": Reply(body=b"\x00\x01", headers={"Content-Type": "image/png"}),
        "lie": Reply(body=b"<html>", headers={"Content-Type": "application/json"}),
        "latin": Reply(body="grün".encode("latin-1"), headers={"Content-Type": "text/plain; charset=ISO-8859-1"}),
        "odd": Reply(body=b"abc", headers={"Content-Type": "text/plain; charset=punycode"}),
        "zip": Reply(
            body=gzip.compress(b'{"z": 1}'), headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
        ),
    }
    with serving(lambda request: replies[request.path.rpartition("/")[2]]) as server:
        api = shop(server)
        results = {name: await run(api, "getOrder", {"id": name}) for name in replies}
        outputs = {name: result.output for name, result in results.items()}
        head = (await run(api, "orderExists", {"id": "json"})).output

    assert outputs == {
        "json": [1, {"a": None}],
        "text": "grüße",
        "empty": {"status": 204},
        "binary": {"status": 200},
        "lie": "<html>",
        "latin": "grün",
        "odd": "abc",
        "zip": {"z": 1},
    }
    assert results["binary"].media == (MediaPart(mime_type="image/png", data=b"\x00\x01"),)
    assert all(result.media == () for name, result in results.items() if name != "binary")
    assert (head["status"], head["headers"]["content-type"]) == (200, "application/json")


async def test_credentials_never_reach_the_model_even_if_the_server_repeats_them() -> None:
    def answer(request: Request) -> Reply:
        status = 401 if request.path == "/orders/no" else 200
        return Reply(status=status, body={"you_sent": request.headers["authorization"]})

    with serving(answer) as server:
        api = shop(server, bearer="secret:shop")
        ok = await run(api, "getOrder", {"id": "yes"})
        refused = await run(api, "getOrder", {"id": "no"})

    for result in (ok, refused):
        assert "[redacted]" in result.for_model()
        assert "tok-123456" not in result.for_model()


async def test_missing_credentials_stop_the_call_before_anything_is_sent() -> None:
    with serving(lambda request: None) as server:
        result = await run(shop(server, bearer="env:HANDRAIL_NO_SUCH_TOKEN"), "cancelOrder", {"id": "o-1"})
        public = await run(shop(server, bearer="env:HANDRAIL_NO_SUCH_TOKEN"), "listStock", {})

    assert failure(result) == ("unavailable", False)
    assert public.ok
    assert [request.path for request in server.requests] == ["/stock"]
    assert "authorization" not in server.last.headers


async def test_the_connections_close_with_the_executor_and_open_again_for_another() -> None:
    with serving(lambda request: {"ok": 1}) as server:
        api = shop(server)
        context = ToolContext(session_id="s-1")
        for _ in range(2):
            async with Executor(api.tools()) as executor:
                for number in range(3):
                    call = ToolCall(id=f"c-{number}", name="getOrder", arguments_json='{"id": "o-1"}')
                    assert (await executor.run(call, context)).ok

    assert len(server.requests) == 6
    assert server.connections == 2


async def test_a_server_that_never_answers_leaves_an_effect_unknown_and_ends_a_read() -> None:
    release = threading.Event()
    with serving(lambda request: release.wait(10) and None) as server:
        api = shop(server, timeout=0.3)
        read = await run(api, "getOrder", {"id": "o-1"})
        effect = await run(api, "cancelOrder", {"id": "o-1"})
        release.set()

    assert failure(read)[0] in ("tool_timeout", "unavailable")
    assert failure(effect) == ("outcome_unknown", False)


async def test_closing_one_executor_does_not_break_the_call_of_another() -> None:
    arrived, release = threading.Event(), threading.Event()

    def answer(request: Request) -> Any:
        arrived.set()
        release.wait(10)
        return {"ok": 1}

    with serving(answer) as server:
        api = shop(server)
        running = asyncio.create_task(run(api, "cancelOrder", {"id": "o-1"}))
        await asyncio.to_thread(arrived.wait, 10)
        await Executor(api.tools()).aclose()
        release.set()
        result = await running

    assert result.output == {"ok": 1}
