"""A chat in a web page (FastAPI) where the customer approves a refund with a button, in any of several processes.

    uvicorn --app-dir examples web_approvals:app                      # a script stands for the model
    OPENAI_API_KEY=… uvicorn --app-dir examples web_approvals:app     # with OpenAI

Needs `pip install 'handrail[openai,sql]' fastapi uvicorn`. Open http://127.0.0.1:8000 and ask for a refund of A-1.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from handrail import ChatSession, Executor, ToolContext, tool
from handrail.chat import TurnResult
from handrail.errors import ApprovalError
from handrail.providers import OpenAIResponses
from handrail.store import open_store
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls


@tool(key="order_id", timeout=10)
async def refund(order_id: str, amount: int) -> str:
    """Refund an order, in whole euros."""
    return f"Refunded {amount} EUR."


SCRIPT = [tool_calls(("refund", {"order_id": "A-1", "amount": 20})), "Your money is on its way."]
provider = OpenAIResponses("gpt-5-mini") if os.environ.get("OPENAI_API_KEY") else ScriptedProvider(SCRIPT)
store = open_store(os.environ.get("DATABASE_URL", "sqlite:///web_approvals.db"))  # With several machines: Postgres.
executor = Executor([refund], store=store)  # Without a rule, the customer is asked about everything but reads.


@asynccontextmanager
async def open_and_close(_: FastAPI) -> AsyncGenerator[None]:
    async with store:
        yield
        await executor.aclose()


app = FastAPI(lifespan=open_and_close)


def get_customer() -> str:
    """Who is logged in. Replace it with your login: who is asked, and who may say yes, depends on it."""
    return "c-1"


Customer = Annotated[str, Depends(get_customer)]


class Message(BaseModel):
    text: str = Field(max_length=10_000)


class Answer(BaseModel):
    token: str
    is_approved: bool


async def load_session(session_id: str, customer: str) -> ChatSession:
    """The conversation as the database has it: the next request may reach another process."""
    context = ToolContext(session_id=session_id, customer_id=customer)
    return await ChatSession.load(provider, executor, context=context, sessions=store.sessions, create=True)


def to_json(result: TurnResult) -> dict[str, Any]:
    """What the page shows. The arguments of an approval are what will run: show these, not the model's words, and why
    it is asked: `question` says when the same was already done."""
    approvals = [
        {"token": approval.token, "tool": approval.tool, "arguments": approval.arguments, "question": approval.question}
        for approval in result.approvals
    ]
    return {"text": result.text, "stop_reason": result.stop_reason, "approvals": approvals}


@app.post("/sessions/{session_id}/messages")
async def post_message(session_id: str, message: Message, customer: Customer) -> dict[str, Any]:
    session = await load_session(session_id, customer)
    return to_json(await session.send(message.text))


@app.post("/sessions/{session_id}/decisions")
async def post_decision(session_id: str, answer: Answer, customer: Customer) -> dict[str, Any]:
    session = await load_session(session_id, customer)
    try:
        await (session.approve(answer.token) if answer.is_approved else session.deny(answer.token))
    except ApprovalError as error:  # Not theirs, not open any more, expired.
        raise HTTPException(409, str(error)) from error
    return to_json(await session.resume())


@app.get("/", response_class=HTMLResponse)
def get_page() -> str:
    return PAGE


PAGE = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Refunds</title>
<style>body{font:16px system-ui;max-width:40rem;margin:2rem auto;padding:0 1rem}button{margin:.2rem}</style>
<h1>Refunds</h1><div id="log" aria-live="polite"></div>
<form id="form"><input id="text" aria-label="Message" size="40" autocomplete="off"><button>Send</button></form>
<script>
const session = crypto.randomUUID(), log = document.getElementById("log")
const add = text => { const p = document.createElement("p"); p.textContent = text; log.append(p); return p }
const post = async (path, body) => {
  const response = await fetch(`/sessions/${session}/${path}`,
    {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)})
  const result = await response.json()
  if (!response.ok) return add("Not possible: " + result.detail)
  if (result.text) add("Agent: " + result.text)
  for (const approval of result.approvals) {
    const p = add(`${approval.tool} ${JSON.stringify(approval.arguments)}? ${approval.question} `)
    for (const [name, is_approved] of [["Yes", true], ["No", false]]) {
      const button = document.createElement("button")
      button.textContent = name
      button.onclick = () => { p.querySelectorAll("button").forEach(one => one.disabled = true)
                               post("decisions", {token: approval.token, is_approved}) }
      p.append(button)
    }
  }
}
form.onsubmit = event => { event.preventDefault(); add("You: " + text.value)
                           post("messages", {text: text.value}); text.value = "" }
</script>"""
