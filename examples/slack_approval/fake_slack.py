"""A strict local server that stands for Slack: it checks what it is sent, and clicks, also as an attacker would."""

import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self
from urllib.parse import quote, unquote, urlencode


class FakeSlack:
    """Takes `chat.postMessage` and clicks on the first button: forged, too late, as a stranger, then as an operator."""

    token, secret, operator = "xoxb-test", "signing-secret", "U1"

    def __init__(self, actions_url: str) -> None:
        self.log: list[str] = []
        self._actions_url = actions_url
        self._clicking: Thread | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._build_handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Wait until all clicks are done."""
        assert self._clicking is not None
        self._clicking.join(20)

    def _build_handler(self) -> type[BaseHTTPRequestHandler]:
        slack = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = slack.take(self.path, self.headers.get("Authorization"), body)
                encoded = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            def log_message(self, *_: object) -> None: ...

        return Handler

    def take(self, path: str, authorization: str | None, body: dict[str, Any]) -> dict[str, Any]:
        """What Slack answers to a request."""
        if path.startswith("/response/"):
            self.log.append(f"{unquote(path).removeprefix('/response/')}: {body['text']}")
            return {"ok": True}
        if path != "/api/chat.postMessage":
            return {"ok": False, "error": "unknown_method"}
        if authorization != f"Bearer {self.token}":
            return {"ok": False, "error": "invalid_auth"}
        blocks = body.get("blocks", [])
        texts = [block["text"] for block in blocks if "text" in block]
        if not body.get("text") or any(len(text["text"]) > 3_000 for text in texts):
            return {"ok": False, "error": "invalid_blocks"}
        [buttons] = [block["elements"] for block in blocks if block["type"] == "actions"]
        if any(len(button["value"]) > 2_000 for button in buttons):
            return {"ok": False, "error": "invalid_blocks"}
        self._clicking = Thread(target=self._click_as_everybody, args=(buttons[0],), daemon=True)
        self._clicking.start()
        return {"ok": True, "ts": "1"}

    def _click_as_everybody(self, button: dict[str, Any]) -> None:
        now = int(time.time())
        self.log.append(f"forged: {self._click('forged', button, self.operator, now, secret='guessed')}")
        self.log.append(f"replayed later: {self._click('late', button, self.operator, now - 600)}")
        self._click("a stranger", button, "U666", now)
        self._wait_for("a stranger")
        self._click("an operator", button, self.operator, now)
        self._wait_for("an operator")

    def _wait_for(self, who: str) -> None:
        deadline = time.monotonic() + 10
        while not any(line.startswith(who) for line in self.log) and time.monotonic() < deadline:
            time.sleep(0.005)

    def _click(self, who: str, button: dict[str, Any], user: str, sent_at: int, *, secret: str | None = None) -> int:
        payload = {
            "type": "block_actions",
            "user": {"id": user},
            "actions": [{"action_id": button["action_id"], "value": button["value"]}],
            "response_url": f"{self.url}/response/{quote(who)}",
        }
        body = urlencode({"payload": json.dumps(payload)}).encode()
        signed = f"v0:{sent_at}:".encode() + body
        signature = hmac.new((secret or self.secret).encode(), signed, hashlib.sha256).hexdigest()
        headers = {"X-Slack-Request-Timestamp": str(sent_at), "X-Slack-Signature": f"v0={signature}"}
        try:
            # Slack gives up after three seconds; a busy test machine gets more.
            with urllib.request.urlopen(urllib.request.Request(self._actions_url, body, headers), timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
