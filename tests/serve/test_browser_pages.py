"""The pages Tools, Policy and Sessions in a real browser, and the chat with the agent on the last of them."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.async_api import expect

from handrail.providers import ModelRequest, ModelResponse, StreamEvent, TextDelta
from handrail.serve import ChatAgent
from handrail.store import SqlStore
from handrail.testing import ScriptedProvider
from handrail.testing.servers import tool_calls
from tests.serve.desk import open_desk
from tests.serve.test_browser import browse, fill, make_executor

# Chromium is not on every machine that runs the tests: .ci/full installs it.
pytestmark = [pytest.mark.slow, pytest.mark.browser]

FIND = tool_calls(("find_order", {"order_id": 17}))
REFUND = tool_calls(("refund", {"order_id": 17, "amount": 120, "note": "<script>alert(1)</script>"}))


def make_agent(*lines: Any) -> ChatAgent:
    return ChatAgent(provider=ScriptedProvider(lines))


async def test_a_turn_is_written_as_it_comes_with_its_calls_beside_it(store: SqlStore) -> None:
    executor = make_executor(store)
    agent = make_agent(FIND, "It is <b>paid</b>.", REFUND, "Refunded.")
    async with open_desk(executor, store, agent=agent) as desk, browse(desk) as page:
        await page.get_by_role("link", name="Sessions").click()
        await page.get_by_role("link", name="Try the agent").click()
        message = page.get_by_label("Message")
        await message.fill("where is order 17?")
        await message.press("Enter")
        first = page.get_by_role("region", name="Turn 1")
        await expect(first.locator(".bubble.agent")).to_contain_text("It is <b>paid</b>.")
        await expect(first.get_by_role("article", name="find_order")).to_contain_text("allow")
        await expect(message).to_have_value("")
        await expect(message).to_be_focused()
        await message.fill("refund it")
        await page.get_by_role("button", name="Send").click()
        waiting = page.get_by_role("group", name="Waits for the operator")
        await expect(waiting).to_contain_text("<script>alert(1)</script>")
        (asked,) = await store.approvals.pending()
        await store.approvals.approve(asked.token, by="operator", who="bob", reason="seen")
        await page.get_by_role("button", name="Resume the turn").click()
        second = page.get_by_role("region", name="Turn 2")
        await expect(second.locator(".bubble.agent").last).to_contain_text("Refunded.")
        await expect(second.get_by_role("article", name="refund")).to_contain_text("by bob: seen")
        await page.reload()
        await expect(page.locator(".turn")).to_have_count(2)
        await expect(second.get_by_role("article", name="refund")).to_contain_text("by bob: seen")


async def test_a_turn_is_stopped_and_what_is_wrong_is_said(store: SqlStore) -> None:
    class Slow:
        name = "slow:model"
        said = asyncio.Event()

        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent]:
            yield TextDelta(text="Let me think")
            self.said.set()
            await asyncio.sleep(600)

        async def ask(self, request: ModelRequest) -> ModelResponse:
            raise NotImplementedError

    executor = make_executor(store)
    async with open_desk(executor, store, agent=ChatAgent(provider=Slow())) as desk, browse(desk) as page:
        await page.goto(f"{desk.url}/sessions/chat?id=try-0123456789ab")
        await page.get_by_label("Message").fill("hm?")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".turn.live .bubble.agent")).to_contain_text("Let me think")
        await expect(page.get_by_role("button", name="Send")).to_be_disabled()
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("button", name="Send")).to_be_enabled()
        await expect(page.locator(".turn:not(.live) .bubble.agent")).to_contain_text("Let me think")
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        await page.get_by_label("Message").fill("again")
        # As the server answers when the session is over; without the status, which Chromium logs as an error.
        await page.route("**/send", lambda route: route.fulfill(content_type="text/html", body=OVER))
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_role("alert").filter(has_text="Your session is over.")).to_be_visible()
        await expect(page.get_by_label("Message")).to_have_value("again")


OVER = '<p class="notice problem" role="alert">Your session is over. Sign in again.</p>'


async def test_rules_are_tried_on_recorded_calls_and_a_tool_shows_its_definitions(store: SqlStore) -> None:
    executor = make_executor(store)
    await fill(executor, store)
    async with open_desk(executor, store) as desk, browse(desk) as page:
        await page.get_by_role("link", name="Policy").click()
        await page.get_by_label("Rules, as in a policy file").fill("rules: [{deny: find_order, reason: not today}]")
        await page.get_by_role("button", name="Decide again").click()
        await expect(page.get_by_role("status").filter(has_text="would change")).to_be_visible()
        await expect(page.locator("article").filter(has_text="not today").first).to_be_visible()
        await page.get_by_label("Rules, as in a policy file").fill("rules: [{deny: nothing_there}]")
        await page.get_by_role("button", name="Decide again").click()
        await expect(page.get_by_role("alert").filter(has_text="nothing_there")).to_be_visible()
        await page.get_by_role("link", name="Tools", exact=True).click()
        await expect(page.locator("tbody tr")).to_have_count(3)
        await page.get_by_role("link", name="refund").click()
        await page.get_by_text("anthropic").click()
        await expect(page.locator("details[open] pre")).to_contain_text('"order_id"')


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 820, 1280])
async def test_each_of_these_pages_fits_its_screen_in_both_schemes(
    width: int, scheme: Literal["light", "dark"], store: SqlStore, tmp_path: Path
) -> None:
    shots = Path(os.environ.get("HANDRAIL_SCREENSHOTS") or tmp_path)
    executor = make_executor(store)
    await fill(executor, store)
    agent = make_agent(FIND, "It is paid, and was sent on Monday.", REFUND)
    async with open_desk(executor, store, agent=agent) as desk, browse(desk, width=width, scheme=scheme) as page:
        await page.goto(f"{desk.url}/sessions/chat")
        for text in ("where is order 17?", "then refund it, " + "please" * 40):
            await page.get_by_label("Message").fill(text)
            await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_role("button", name="Send")).to_be_enabled()
        await expect(page.get_by_role("group", name="Waits for the operator")).to_be_visible()
        await page.reload()
        for name, path in (
            ("chat", ""),
            ("sessions", "/sessions"),
            ("timeline", "/sessions/timeline?id=mcp-3f2a9c01b7de"),
            ("tools", "/tools"),
            ("tool", "/tools/refund"),
            ("policy", "/policy"),
        ):
            if path:
                await page.goto(f"{desk.url}{path}")
            overflow = await page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, name
            fields = page.locator("input:not([type=hidden]), textarea")
            assert all(await fields.evaluate_all("fields => fields.map(field => field.labels.length)")), name
            await page.screenshot(path=shots / f"pages-{name}-{width}-{scheme}.png", full_page=True)
