"""Approvals as Slack messages with two buttons. Who may decide is a list of Slack users, and every click is checked.

    python examples/slack_approval/app.py                  # a strict local server stands for Slack
    SLACK_BOT_TOKEN=xoxb-… SLACK_SIGNING_SECRET=… SLACK_CHANNEL=C… SLACK_OPERATORS=U…,U… \\
        python examples/slack_approval/app.py              # with Slack: its interactivity URL is …/slack/actions

Needs `pip install 'handrail[openapi]' fastapi uvicorn`.
"""

import asyncio
import hashlib
import hmac
import json
import os
import time
from typing import Any
from urllib.parse import parse_qs

import httpx2
import uvicorn
from fake_slack import FakeSlack
from fastapi import BackgroundTasks, FastAPI, HTTPException, Request

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, tool
from handrail.core import Approval
from handrail.errors import ApprovalError

MAX_CHARS = 2_900
"""Slack refuses longer texts, and an operator must see all that will run."""


@tool(key="invoice_id", timeout=10)
async def pay(invoice_id: str, amount: int) -> str:
    """Pay an invoice."""
    return f"Paid {amount} EUR for {invoice_id}."


executor = Executor([pay], policy=Policy([Rule.ask("pay", by="operator")]))  # In production: store="postgresql://…"
app = FastAPI()


class Slack:
    """Sends questions to a channel, and knows whose answers count."""

    def __init__(self, *, url: str, token: str, secret: str, channel: str, operators: set[str]) -> None:
        self.secret, self.operators = secret.encode(), operators
        self._token, self._channel = token, channel
        self.client = httpx2.AsyncClient(base_url=url, timeout=10)

    async def ask(self, approval: Approval) -> None:
        """Post the question. A call with arguments that do not fit is decided elsewhere."""
        arguments = json.dumps(dict(approval.arguments), indent=1, ensure_ascii=False)
        fits = len(arguments) <= MAX_CHARS
        shown = arguments if fits else "The arguments are too long for Slack: decide with `handrail approvals`."
        buttons = [
            {"type": "button", "action_id": name, "value": approval.token, "text": to_plain_text(name.title())}
            for name in ("approve", "deny")
        ]
        body = {
            "channel": self._channel,
            "text": f"{approval.tool} needs an approval",
            # Plain text: what a model or a customer wrote cannot become a link or a mention.
            "blocks": [
                {"type": "header", "text": to_plain_text(f"{approval.tool}: {approval.question}"[:150])},
                {"type": "section", "text": to_plain_text(shown)},
                *([{"type": "actions", "elements": buttons}] if fits else []),
            ],
        }
        headers = {"Authorization": f"Bearer {self._token}"}
        response = await self.client.post("/api/chat.postMessage", json=body, headers=headers)
        if not (answer := response.raise_for_status().json())["ok"]:
            raise RuntimeError(f"Slack did not take the question: {answer['error']}")

    def check_signature(self, headers: Any, body: bytes) -> None:
        """Refuse what Slack did not sign in the last five minutes."""
        sent_at, signature = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
        if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > 300:
            raise HTTPException(401, "too old")
        expected = "v0=" + hmac.new(self.secret, f"v0:{sent_at}:".encode() + body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise HTTPException(401, "not signed by Slack")


def to_plain_text(text: str) -> dict[str, Any]:
    """A text without markup."""
    return {"type": "plain_text", "text": text, "emoji": False}


@app.post("/slack/actions")
async def post_action(request: Request, tasks: BackgroundTasks) -> dict[str, Any]:
    """A click. Slack wants an answer within three seconds: the message is updated afterwards."""
    body = await request.body()
    slack: Slack = app.state.slack
    slack.check_signature(request.headers, body)
    payload = json.loads(parse_qs(body.decode())["payload"][0])
    action, user = payload["actions"][0], payload["user"]["id"]
    if user not in slack.operators:
        text = "You may not decide this."
    else:
        try:
            # A second click, or the same one delivered again, changes nothing: the first decision stands.
            decide = executor.approvals.approve if action["action_id"] == "approve" else executor.approvals.deny
            decided = await decide(action["value"], by="operator", who=f"slack:{user}")
            text = f"{decided.tool}: {decided.state} by {decided.who}"
        except ApprovalError as error:  # Expired, used, or decided the other way.
            text = str(error)
    replaces = user in slack.operators
    tasks.add_task(slack.client.post, payload["response_url"], json={"text": text, "replace_original": replaces})
    return {}


async def run_with_approval(call: ToolCall, context: ToolContext) -> str:
    """Run a call; if an operator has to agree, ask in Slack, wait, and send the same call again."""
    result = await executor.run(call, context)
    if result.approval is not None:
        await app.state.slack.ask(result.approval)
        await executor.approvals.wait(result.approval.token, timeout=900)
        result = await executor.run(call, context)
    return result.for_model()


async def main() -> None:
    """Serve the URL that Slack calls, and run one call that needs an approval."""
    token = os.environ.get("SLACK_BOT_TOKEN")
    server = uvicorn.Server(uvicorn.Config(app, port=8000 if token else 0, log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    fake = None if token else FakeSlack(f"http://127.0.0.1:{port}/slack/actions").__enter__()
    if fake is not None:
        app.state.slack = Slack(
            url=fake.url, token=fake.token, secret=fake.secret, channel="C1", operators={fake.operator}
        )
    else:
        app.state.slack = Slack(
            url="https://slack.com",
            token=os.environ["SLACK_BOT_TOKEN"],
            secret=os.environ["SLACK_SIGNING_SECRET"],
            channel=os.environ["SLACK_CHANNEL"],
            operators=set(os.environ["SLACK_OPERATORS"].split(",")),
        )
    call = ToolCall(id="call_1", name="pay", arguments_json='{"invoice_id": "R-7", "amount": 900}')
    print(await run_with_approval(call, ToolContext(session_id="s-1", customer_id="c-1", turn=1)))
    if fake is not None:
        await asyncio.to_thread(fake.wait)
        print("\n".join(fake.log))
    server.should_exit = True
    await serving  # Messages that are being updated are waited for.
    if fake is not None:
        fake.__exit__()
    await app.state.slack.client.aclose()


if __name__ == "__main__":
    asyncio.run(main())
