"""The site in a browser: it asks no other host for anything, fits a phone, and its search finds what it should."""

import shutil
from pathlib import Path

import pytest

from website.build import build_site

pytestmark = [pytest.mark.slow, pytest.mark.browser]

PAGES = [
    "index.html",
    "errors.html",
    "policy.html",
    "executor.html",
    "reference/handrail.html",
    "reference/options.html",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    build_site(root / "site", work=root / "work")
    return root / "site"


@pytest.mark.timeout(240)
async def test_pages_fit_both_widths_in_both_schemes_and_load_nothing_from_elsewhere(site: Path) -> None:
    from playwright.async_api import async_playwright

    asked: list[str] = []
    wide: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--allow-file-access-from-files"]
        )
        for width in (360, 1280):
            for scheme in ("light", "dark"):
                page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page.on("request", lambda request: asked.append(request.url))
                for name in PAGES:
                    await page.goto((site / name).as_uri())
                    overflow = await page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                    if overflow > 0:
                        wide.append(f"{name} at {width} px: {overflow} px too wide")
                    shown = await page.evaluate("document.body.getAttribute('data-md-color-scheme')")
                    assert shown == {"light": "default", "dark": "slate"}[scheme]
                await page.close()
        page = await browser.new_page()
        await page.goto((site / "index.html").as_uri())
        await page.keyboard.press("Control+k")
        await page.keyboard.type("outcome_unknown")
        await page.get_by_text("Calls whose outcome is not known").first.wait_for()
        await browser.close()

    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert wide == []
