"""The webhooks that announce a call: signed as the API signs them, or wrong as the script asks for it."""

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .script import Script

HeaderPairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery:
    """One webhook request."""

    headers: HeaderPairs
    body: bytes
    type: str


def sign_webhook(body: bytes, secret: str, *, webhook_id: str, timestamp: int) -> str:
    """The value of the header `webhook-signature` for a body."""
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def build_deliveries(script: Script, *, call_id: str, secret: str, timestamp: int) -> list[WebhookDelivery]:
    """The webhook requests of a call, in the order in which they are sent."""
    plan = script.webhook
    incoming = _build(script, secret, timestamp, call_id, "realtime.call.incoming", {"call_id": call_id})
    deliveries = [incoming] * plan.copies
    if plan.live is not None:
        session = {"type": "sip", "session_id": call_id.replace("rtc_", "live_", 1)}
        live = _build(script, secret, timestamp, f"{call_id}_live", "live.transport.incoming", session)
        deliveries = [live, *deliveries] if plan.live == "before" else [*deliveries, live]
    return deliveries


def _build(script: Script, secret: str, now: int, name: str, kind: str, data: dict[str, Any]) -> WebhookDelivery:
    plan, call = script.webhook, script.call
    sip = [
        ("From", f"<sip:{call.from_}@carrier.example>"),
        ("To", f"<sip:{call.to}@sip.api.openai.com>"),
        ("Call-ID", f"sip-{name.removesuffix('_live')}@carrier.example"),
        *call.headers,
    ]
    data = {**data, "sip_headers": [{"name": header, "value": value} for header, value in sip]}
    if call.media_security is not None:
        data["sip_media_security"] = call.media_security
    event: dict[str, Any] = {"object": "event", "id": f"evt_{name}", "type": kind, "created_at": now, "data": data}
    if plan.padding:
        event["padding"] = "x" * plan.padding
    body = json.dumps(event, ensure_ascii=False).encode()
    webhook_id, timestamp = f"wh_{name}", now - int(plan.age)
    valid = sign_webhook(body, secret, webhook_id=webhook_id, timestamp=timestamp)
    wrong = sign_webhook(body, "another secret", webhook_id=webhook_id, timestamp=timestamp)
    signature = {"valid": valid, "wrong": wrong, "missing": None, "rotated": f"{wrong} {valid}"}[plan.signature]
    headers = [("content-type", "application/json"), ("webhook-id", webhook_id), ("webhook-timestamp", str(timestamp))]
    if signature is not None:
        headers.append(("webhook-signature", signature))
    if plan.repeat_headers:
        repeated = [(header, "repeated") for header, _ in headers if header.startswith("webhook-")]
        headers = [*repeated, *headers]
    return WebhookDelivery(headers=headers, body=body, type=kind)
