"""The webhooks that announce a call, checked by the official SDK."""

import asyncio
import json
from typing import Any

import openai
import pytest

from handrail.testing.phone import PhoneSimulator, run_warped, sign_webhook

from .wrong import simulated_api


def collect(webhook: dict[str, Any], **call: Any) -> tuple[list[tuple[Any, bytes]], str]:
    """The requests that a call is announced with, and the secret."""
    requests: list[tuple[Any, bytes]] = []

    async def main() -> str:
        async with PhoneSimulator() as simulator:
            await simulator.ring(
                {"webhook": webhook, "call": call}, lambda headers, body: requests.append((headers, body))
            )
            return simulator.webhook_secret

    return requests, run_warped(main())


def unwrap(request: tuple[Any, bytes], secret: str) -> Any:
    client = openai.OpenAI(api_key="sk-test", webhook_secret=secret)
    headers, body = request
    return client.webhooks.unwrap(body, dict(headers))


def test_a_webhook_is_signed_and_carries_the_sip_headers_in_order() -> None:
    requests, secret = collect({}, id="rtc_9", headers=[["X-Tag", "a"], ["X-Tag", "b"]], to="+33100000009")
    event = unwrap(requests[0], secret)
    assert (event.type, event.data.call_id) == ("realtime.call.incoming", "rtc_9")
    headers = [(header.name, header.value) for header in event.data.sip_headers]
    assert headers[-2:] == [("X-Tag", "a"), ("X-Tag", "b")]
    assert "+33100000009" in dict(headers)["To"]
    assert dict(headers)["Call-ID"]


def test_copies_have_one_id_and_the_live_surface_has_its_own() -> None:
    requests, secret = collect({"copies": 2, "live": "before"}, id="rtc_9")
    events = [unwrap(request, secret) for request in requests]
    assert [event.type for event in events] == ["live.transport.incoming", *["realtime.call.incoming"] * 2]
    assert events[0].data.session_id == "live_9"
    ids = [dict(headers)["webhook-id"] for headers, _ in requests]
    assert (ids[1] == ids[2], ids[0] == ids[1]) == (True, False)


def test_a_rotated_secret_is_accepted_and_wrong_ones_are_not() -> None:
    requests, secret = collect({"signature": "rotated"})
    assert unwrap(requests[0], secret).type == "realtime.call.incoming"
    for webhook in ({"signature": "wrong"}, {"age": 400}, {"age": -400}):
        requests, secret = collect(webhook)
        with pytest.raises(openai.InvalidWebhookSignatureError):
            unwrap(requests[0], secret)
    requests, secret = collect({"signature": "missing"})
    with pytest.raises(ValueError, match="webhook-signature"):
        unwrap(requests[0], secret)


def test_a_body_may_be_huge_and_headers_may_repeat() -> None:
    requests, _ = collect({"padding": 10_000_000, "repeat_headers": True})
    headers, body = requests[0]
    assert len(body) > 10_000_000
    names = [name for name, _ in headers]
    assert [names.count(name) for name in ("webhook-id", "webhook-timestamp", "webhook-signature")] == [2, 2, 2]


def test_a_secret_without_a_prefix_is_taken_as_it_is() -> None:
    signature = sign_webhook(b"{}", "plain", webhook_id="wh_1", timestamp=1)
    assert signature == sign_webhook(b"{}", "whsec_cGxhaW4=", webhook_id="wh_1", timestamp=1)


def test_webhooks_go_to_a_url_with_what_it_answered_written_down() -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        received.append(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async def main() -> list[int | None]:
        async with PhoneSimulator() as simulator:
            async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                await simulator.ring({}, f"http://127.0.0.1:{port}/webhook?x=1")
            await simulator.ring({}, f"http://127.0.0.1:{port}/nobody-listens")
            return [record.status for record in simulator.webhooks]

    assert run_warped(main()) == [204, None]
    assert json.loads(received[0])["type"] == "realtime.call.incoming"


def test_several_calls_are_announced_in_the_order_of_the_seed() -> None:
    async def main(seed: int) -> list[str]:
        async with simulated_api() as (simulator, _):
            await simulator.ring_many([{}] * 8, lambda headers, body: None, seed=seed)
            return [record.call_id for record in simulator.webhooks]

    first = run_warped(main(1))
    assert first != sorted(first)
    assert first == run_warped(main(1))
    assert sorted(first) == sorted(f"rtc_{number}" for number in range(1, 9))


def test_a_call_id_is_used_once() -> None:
    async def main() -> None:
        async with PhoneSimulator() as simulator:
            simulator.add_call({"call": {"id": "rtc_1"}})
            with pytest.raises(ValueError, match="already a call 'rtc_1'"):
                simulator.add_call({"call": {"id": "rtc_1"}})

    run_warped(main())
