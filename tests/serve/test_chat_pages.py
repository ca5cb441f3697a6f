"""The chat with the agent on the console, over HTTP: who may use it, what it shows, and what it never does."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from handrail import Executor, Policy, Rule
from handrail.serve import ChatAgent
from handrail.store import SqlStore, open_store
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls
from tests.postgres import PostgresServer
from tests.postgres import postgres as postgres
from tests.serve.desk import Browser, Desk, open_desk, to_text
from tests.serve.service import get_balance, paid, pay

READ = tool_calls(("get_balance", {"account": "a-1"}))
PAY = tool_calls(("pay", {"invoice": "i-1", "amount": 3}))
NAME = "try-0123456789ab"


@asynccontextmanager
async def open_chat(store: SqlStore, *lines: Any, by: Any = "customer", **options: Any) -> AsyncGenerator[Desk]:
    paid.clear()
    executor = Executor([get_balance, pay], policy=Policy([Rule.ask("pay", by=by)]), store=store)
    agent = ChatAgent(provider=ScriptedProvider(lines)) if lines else None
    async with open_desk(executor, store, agent=agent, **options) as desk:
        yield desk


async def act(browser: Browser, action: str, *, stream: bool = False, id: str = NAME, **fields: str) -> Any:
    data = {"form_token": await browser.read_token(), "id": id, **fields}
    headers = {"Accept": "text/event-stream"} if stream else {}
    return await browser.http.post(f"/sessions/chat/{action}", data=data, headers=headers)


async def test_an_operator_talks_to_the_agent_and_sees_what_decided_about_its_calls(store: SqlStore) -> None:
    async with open_chat(store, READ, "You have <b>5</b>.") as desk, desk.sign_in() as ann:
        answer = await ann.get("/sessions/chat")
        assert re.search(r"\?id=try-[0-9a-f]{12}$", str(answer.url))
        assert "Nothing was said yet." in answer.text
        answer = await act(ann, "send", message="how much?")
        assert (answer.status_code, str(answer.url)) == (200, f"{desk.url}/sessions/chat?id={NAME}")
        assert "&lt;b&gt;5&lt;/b&gt;" in answer.text
        text = to_text(answer.text)
        assert "You are the customer console:ann" in text
        for part in ("how much?", "get_balance", "ok", '"account": "a-1"', "Decision allow", '"balance": 5'):
            assert part in text, part
        assert "console:ann" in await ann.read("/sessions")
        assert "Try the agent" in await ann.read("/sessions")


@pytest.mark.proves("SV-16")
async def test_the_customer_is_played_on_the_page_and_an_operator_decides_elsewhere(store: SqlStore) -> None:
    async with open_chat(store, PAY, "Paid.") as desk, desk.sign_in() as ann:
        text = to_text((await act(ann, "send", message="pay it")).text)
        assert "pay waits for the customer." in text
        (asked,) = await store.approvals.pending()
        answer = await ann.answer(asked.token, "approve")
        assert "customer" in answer.text
        assert paid == []
        text = to_text((await act(ann, "decide", token=asked.token, answer="yes")).text)
        assert "used by console:ann" in text
        assert "Paid." in text
        assert paid == [("i-1", 3)]


async def test_what_an_operator_is_asked_is_resumed_after_their_decision(store: SqlStore) -> None:
    async with open_chat(store, PAY, "Refused.", by="operator") as desk, desk.sign_in() as ann:
        assert "pay waits for the operator." in to_text((await act(ann, "send", message="pay it")).text)
        (asked,) = await store.approvals.pending()
        answer = await act(ann, "decide", token=asked.token, answer="yes")
        assert (answer.status_code, paid) == (409, [])
        await ann.answer(asked.token, "deny", reason="no money")
        text = to_text((await act(ann, "resume")).text)
        assert "denied by ann: no money" in text
        assert "Refused." in text
        assert paid == []


async def test_with_a_script_the_turn_is_streamed(store: SqlStore) -> None:
    async with open_chat(store, READ, "You have 5.") as desk, desk.sign_in() as ann:
        answer = await act(ann, "send", stream=True, message="how much?")
        assert answer.headers["content-type"].startswith("text/event-stream")
        names = re.findall(r"^event: (\w+)$", answer.text, re.MULTILINE)
        assert names[:2] == ["trace", "trace"]
        assert (names[-1], set(names[2:-1])) == ("turns", {"text"})
        assert "Decision" in answer.text


@pytest.mark.proves("SV-16")
@pytest.mark.parametrize("role", ["viewer", "admin"])
async def test_only_an_operator_tries_the_agent(role: Any, store: SqlStore) -> None:
    async with open_chat(store, "hello") as desk, desk.sign_in(role) as eve:
        assert (await eve.get("/sessions/chat")).status_code == 403
        assert (await act(eve, "send", message="hi")).status_code == 403
        assert "Try the agent" not in await eve.read("/sessions")


async def test_a_conversation_is_seen_and_continued_by_who_began_it(store: SqlStore) -> None:
    async with open_chat(store, "one", "two") as desk, desk.sign_in() as ann, desk.sign_in(who="bob") as bob:
        await act(ann, "send", message="a secret")
        assert "a secret" not in await bob.read(f"/sessions/chat?id={NAME}")
        assert (await act(bob, "send", message="hi")).status_code == 409
        async with desk.sign_in(who="ann", tenant_id="acme") as other:  # Another conversation of the same name.
            assert "a secret" not in await other.read(f"/sessions/chat?id={NAME}")
            assert "two" in to_text((await act(other, "send", message="hello")).text)


async def test_forms_that_are_wrong_change_nothing(store: SqlStore) -> None:
    async with open_chat(store, "one") as desk, desk.sign_in() as ann:
        assert (await act(ann, "send", id="api:acme/s-1", message="hi")).status_code == 404
        assert (await act(ann, "other", message="hi")).status_code == 404
        assert (await act(ann, "send", message="  ")).status_code == 422
        assert (await act(ann, "send", message="x" * 20_001)).status_code == 422
        assert (await act(ann, "resume")).status_code == 404
        assert (await act(ann, "decide", token="apr_none", answer="yes")).status_code == 409
        assert (await act(ann, "interrupt")).status_code == 200
        assert (await ann.get("/sessions/chat?id=../x")).status_code == 404
        form = {"id": NAME, "message": "hi"}
        assert (await ann.http.post("/sessions/chat/send", data=form)).status_code == 403
        assert await store.sessions.load(f"api:/{NAME}") is None


async def test_without_an_agent_the_page_says_how_to_get_one(store: SqlStore) -> None:
    async with open_chat(store) as desk, desk.sign_in() as ann:
        answer = await ann.get("/sessions/chat")
        assert answer.status_code == 404
        assert "No agent is served here" in answer.text


@pytest.mark.postgres
async def test_a_token_that_no_database_stores_is_no_approval(postgres: PostgresServer) -> None:
    async with open_store(postgres.new_database()) as store, open_chat(store, "one") as desk, desk.sign_in() as ann:
        assert (await act(ann, "decide", token="apr_\0", answer="yes")).status_code == 409
