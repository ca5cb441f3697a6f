"""The console in a real browser: keyboard, live rows, both schemes, a phone's width, and nothing from elsewhere."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.async_api import Page, Route, async_playwright, expect

from handrail import Executor, Policy, Rule, ToolCall, ToolContext, ToolError, tool
from handrail.execute import Timeouts
from handrail.store import SqlStore
from tests.serve.desk import Desk, open_desk

# Chromium is not on every machine that runs the tests: .ci/full installs it.
pytestmark = [pytest.mark.slow, pytest.mark.browser]


@tool
async def refund(order_id: int, amount: int, note: str = "") -> str:
    """Give money back."""
    if amount > 1_000:
        raise ToolError("At most 1,000 can be refunded.")
    return f"refunded {amount}"


@tool(read_only=True)
async def find_order(order_id: int) -> dict[str, object]:
    """Find an order."""
    return {"order_id": order_id, "state": "paid"}


@tool(timeout=0.05)
async def ship(order_id: int) -> str:
    """Ship an order."""
    await asyncio.sleep(60)
    return "shipped"


def make_executor(store: SqlStore) -> Executor:
    policy = Policy(
        [
            Rule.deny("refund", where={"amount": {"above": 5_000}}, reason="over the limit of this desk"),
            Rule.ask("refund", by="operator", where={"amount": {"above": 50}}, reason="money leaves the account"),
            Rule.allow("ship"),
        ],
        asks="operator",
    )
    return Executor([refund, find_order, ship], policy=policy, store=store, timeouts=Timeouts(lease_grace=0))


async def send(executor: Executor, call_id: str, name: str, who: str = "bo", **arguments: Any) -> None:
    context = ToolContext(session_id="mcp-3f2a9c01b7de", customer_id=who, tenant_id="acme")
    await executor.run(ToolCall(id=call_id, name=name, arguments_json=json.dumps(arguments)), context)


async def fill(executor: Executor, store: SqlStore) -> None:
    """A day at the desk: calls of every kind."""
    await send(executor, "c-1", "find_order", order_id=17)
    await send(executor, "c-2", "refund", order_id=17, amount=120, note="broken on arrival")
    await send(executor, "c-3", "refund", order_id=18, amount=9_000)
    await send(executor, "c-4", "ship", order_id=17)
    await send(executor, "c-5", "refund", who="cy", order_id=21, amount=80, note="<script>alert(1)</script> \u202e0001")
    await send(executor, "c-6", "no_such_tool")
    await send(executor, "c-7", "refund", who="cy", order_id=22, amount="much")
    await store.audit.flush(timeout=60)


@asynccontextmanager
async def browse(
    desk: Desk, *, width: int = 1280, scheme: Literal["light", "dark"] = "light", who: str = "ann"
) -> AsyncGenerator[Page]:
    """A person who has signed in; whatever a page must not do fails the test."""
    problems: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = await context.new_page()
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on(
            "console",
            lambda message: (
                problems.append(f"console: {message.text}") if message.type in ("error", "warning") else None
            ),
        )
        page.on(
            "request",
            lambda request: problems.append(f"to {request.url}") if not request.url.startswith(desk.url) else None,
        )
        await page.goto(f"{desk.url}/decide")
        await page.get_by_label("Your key").fill(await desk.create_key("operator", who))
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="Decide", level=1)).to_be_visible()
        await page.wait_for_load_state("load")  # The script runs after the page is shown.
        yield page
        await browser.close()
    assert problems == []


async def test_questions_are_decided_with_the_keyboard(store: SqlStore) -> None:
    executor = make_executor(store)
    await fill(executor, store)
    async with open_desk(executor, store) as desk, browse(desk) as page:
        first, second = page.locator(".item").nth(0), page.locator(".item").nth(1)
        await expect(second).to_contain_text("\\u202e0001")
        await page.keyboard.press("j")
        await expect(first).to_be_focused()
        await page.keyboard.press("j")
        await expect(second).to_be_focused()
        await page.keyboard.press("k")
        await page.keyboard.press("a")
        await expect(first).to_contain_text("approved by ann")
        await expect(first).to_be_focused()
        await page.keyboard.press("j")
        await page.keyboard.press("d")
        await page.keyboard.type("not like this")
        await page.keyboard.press("Enter")  # It leads to the button, and approves nothing.
        await expect(second.get_by_role("button", name="Deny")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(second).to_contain_text("denied by ann")
        await expect(second).to_contain_text("not like this")
    decided = {approval.call_id: (approval.state, approval.who) for approval in await store.approvals.history()}
    assert decided == {"c-2": ("approved", "ann"), "c-5": ("denied", "ann")}


async def test_a_decision_that_takes_its_time_does_not_take_the_keys_away_from_the_next(store: SqlStore) -> None:
    executor = make_executor(store)
    await fill(executor, store)
    async with open_desk(executor, store) as desk, browse(desk) as page:
        typed = asyncio.Event()

        async def answer_late(route: Route) -> None:
            await typed.wait()
            await route.continue_()

        await page.route("**/approve", answer_late)
        first, second = page.locator(".item").nth(0), page.locator(".item").nth(1)
        for key in "jajd":
            await page.keyboard.press(key)
        await page.keyboard.type("no, ")
        typed.set()
        await expect(first).to_contain_text("approved by ann")
        await page.keyboard.type("jaja")

        await expect(second.get_by_label("Reason")).to_have_value("no, jaja")
    assert sorted(approval.state for approval in await store.approvals.history()) == ["approved", "pending"]


async def test_a_question_that_is_asked_while_the_page_is_open_appears(store: SqlStore) -> None:
    executor = make_executor(store)
    async with open_desk(executor, store) as desk, browse(desk) as page:
        await expect(page.get_by_text("Nothing waits for a decision.")).to_be_visible()
        await send(executor, "c-1", "refund", order_id=1, amount=60)
        await expect(page.locator(".item")).to_contain_text("refund", timeout=60_000)
        await page.get_by_text("Change the arguments").click()
        await page.get_by_label("Arguments that run instead").fill('{"order_id": 1, "amount": "much"}')
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_role("alert").filter(has_text="amount")).to_be_visible()
        await expect(page.get_by_label("Arguments that run instead")).to_have_value('{"order_id": 1, "amount": "much"}')
        await page.get_by_label("Arguments that run instead").fill('{"order_id": 1, "amount": 55}')
        await page.get_by_role("button", name="Approve").click()
        await expect(page.locator(".item")).to_contain_text("approved by ann")
    (decided,) = await store.approvals.history()
    assert decided.changed_arguments == {"order_id": 1, "amount": 55}


async def test_calls_appear_as_they_end_and_filters_survive_reload_and_back(store: SqlStore) -> None:
    executor = make_executor(store)
    await fill(executor, store)
    async with open_desk(executor, store) as desk, browse(desk) as page:
        await page.get_by_role("link", name="Calls").click()
        await expect(page.locator("#calls tbody tr")).to_have_count(7)
        await page.get_by_label("Tool").fill("find_order")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("#calls tbody tr")).to_have_count(1)
        await page.reload()
        await expect(page.get_by_label("Tool")).to_have_value("find_order")
        await send(executor, "c-8", "find_order", order_id=99)
        await send(executor, "c-9", "no_such_tool")
        await expect(page.locator("#calls tbody tr")).to_have_count(2, timeout=60_000)
        await page.locator("#calls tbody tr").first.get_by_role("link").click()
        await expect(page.get_by_role("heading", name="One call")).to_be_visible()
        await expect(page.locator(".report")).to_contain_text('{"order_id":99}')
        await page.go_back()
        await expect(page.get_by_label("Tool")).to_have_value("find_order")
        await expect(page.locator("#calls tbody tr")).to_have_count(2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 820, 1280])
async def test_every_page_fits_its_screen_in_both_schemes(
    width: int, scheme: Literal["light", "dark"], store: SqlStore, tmp_path: Path
) -> None:
    shots = Path(os.environ.get("HANDRAIL_SCREENSHOTS") or tmp_path)
    executor = make_executor(store)
    await fill(executor, store)
    async with open_desk(executor, store) as desk, browse(desk, width=width, scheme=scheme) as page:
        for name, path in (
            ("decide", "/decide"),
            ("doubts", "/doubts"),
            ("calls", "/calls"),
            ("call", "/call?session=mcp-3f2a9c01b7de&call=c-2"),
            ("history", "/decide/history"),
        ):
            await page.goto(f"{desk.url}{path}")
            overflow = await page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, name
            fields = page.locator("input:not([type=hidden]), textarea")
            assert all(await fields.evaluate_all("fields => fields.map(field => field.labels.length)")), name
            await page.screenshot(path=shots / f"console-{name}-{width}-{scheme}.png", full_page=width == 360)
