"""Webhook requests: what is refused, what is a duplicate, what rings."""

import base64
import json
import time
from typing import Any

import pytest
from openai import OpenAI

from handrail.phone.webhooks import Deduplicator, Webhook, read_webhook
from handrail.testing.phone import sign_webhook

SECRET = "whsec_" + base64.b64encode(b"a secret of the tests").decode()
CLIENT = OpenAI(api_key="sk-test", webhook_secret=SECRET)


def request(
    event: Any, *, age: float = 0, id: str = "wh_1", secret: str = SECRET
) -> tuple[list[tuple[str, str]], bytes]:
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    timestamp = int(time.time() - age)
    signature = sign_webhook(body, secret, webhook_id=id, timestamp=timestamp)
    headers = [("Webhook-Id", id), ("webhook-timestamp", str(timestamp)), ("WEBHOOK-SIGNATURE", signature)]
    return headers, body


def incoming(call_id: Any = "rtc_1", **headers: str) -> dict[str, Any]:
    sip = {
        "From": "<sip:+33600000001@carrier.example>",
        "To": "<sip:+33100000000@sip.example>",
        "Call-ID": "abc",
        **headers,
    }
    data = {"call_id": call_id, "sip_headers": [{"name": name, "value": value} for name, value in sip.items()]}
    return {"type": "realtime.call.incoming", "data": data}


def look(headers: Any, body: bytes, seen: Deduplicator | None = None, now: float = 0.0) -> Webhook:
    verify = lambda body, headers: CLIENT.webhooks.unwrap(body, headers)  # noqa: E731
    return read_webhook(headers, body, verify=verify, seen=seen or Deduplicator(), now=now)


@pytest.mark.parametrize("as_mapping", [True, False])
def test_a_signed_request_rings(as_mapping: bool) -> None:
    headers, body = request(incoming())

    found = look(dict(headers) if as_mapping else headers, body)

    assert (found.outcome, found.response.status) == ("incoming", 200)
    assert found.call is not None
    assert (found.call.session_id, found.call.sip_call_id) == ("rtc_1", "abc")
    assert (found.call.caller, found.call.dialled) == ("+33600000001", ("+33100000000",))


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"secret": "whsec_" + base64.b64encode(b"another").decode()}, 401, "signature"),
        ({"age": 600}, 401, "signature"),
        ({"age": -600}, 401, "signature"),
    ],
)
def test_a_wrong_signature_and_an_old_one_are_refused(change: Any, status: int, reason: str) -> None:
    found = look(*request(incoming(), **change))

    assert (found.outcome, found.response.status, found.call) == ("refused", status, None)
    assert reason in found.response.body


def test_a_body_that_was_changed_or_is_too_large_or_headers_that_repeat_are_refused() -> None:
    headers, body = request(incoming())

    assert look(headers, body.replace(b"rtc_1", b"rtc_2")).response.status == 401
    assert look([*headers, ("webhook-id", "wh_2")], body).response.status == 400
    assert look([*headers, ("x-other", "1"), ("x-other", "2")], body).response.status == 200
    assert look(headers[:-1], body).response.status == 400
    assert look({}, b"").response.status == 400
    assert look(headers, b"x" * 10_000_000).response.status == 413


@pytest.mark.parametrize("body", [b"[]", b"{", b"7", b"\xff", b'{"type": "x"', b"null"])
def test_a_signed_body_that_is_no_object_is_refused(body: bytes) -> None:
    found = look(*request(body))

    assert found.outcome == "refused"
    assert found.response.status in (400, 401)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "live.transport.incoming", "data": {"session_id": "live_1"}},
        {"type": "response.completed", "data": {"id": "resp_1"}},
        {"type": None},
        {"type": "realtime.call.incoming"},
        {"type": "realtime.call.incoming", "data": []},
        incoming(call_id=None),
        incoming(call_id="../../etc/passwd"),
        incoming(call_id="x" * 1000),
    ],
)
def test_what_is_signed_and_says_nothing_is_answered_200_and_ignored(event: Any) -> None:
    found = look(*request(event))

    assert (found.outcome, found.response.status, found.call) == ("ignored", 200, None)


def test_a_request_that_comes_again_is_a_duplicate_for_an_hour() -> None:
    seen = Deduplicator(window=3600)
    headers, body = request(incoming())

    assert look(headers, body, seen, now=0).outcome == "incoming"
    assert look(headers, body, seen, now=10).outcome == "duplicate"
    assert look(*request(incoming(), id="wh_2"), seen, now=20).outcome == "duplicate"
    assert look(*request(incoming("rtc_2"), id="wh_3"), seen, now=30).outcome == "incoming"


def test_the_memory_of_requests_is_bounded() -> None:
    seen = Deduplicator(window=1e9, max_ids=10)

    assert all(seen.add(str(number), now=number) for number in range(1000))
    assert len(seen._seen) <= 11


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ('"Ann \\"the boss\\"" <sip:+33100000000;phone-context=fr@carrier.example>;tag=1', "+33100000000"),
        ("<sip:0033100000000@carrier.example>", "+33100000000"),
        ("<sip:33100000000@carrier.example>", "+33100000000"),
        ("tel:+33-1-00-00-00-00", "+33100000000"),
        ("+33100000000", "+33100000000"),
        ("sip:anonymous@anonymous.invalid", None),
        ("<sip:proj_abc@sip.api.example>", None),
        ("<sip:" + "9" * 5000, None),
        ("", None),
    ],
)
def test_a_dialled_number_is_read_from_what_carriers_send(value: str, number: str | None) -> None:
    call = look(*request(incoming(To=value))).call

    assert call is not None
    assert call.dialled == ((number,) if number else ())
