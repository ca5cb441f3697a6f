"""The site is built without a warning, nothing in it is broken, and its reference has every public name and option."""

import re
from html import unescape
from pathlib import Path

import pytest

from handrail.errors import CODES
from tests.docs.public_names import ROOT, find_public_names
from website import links, pages
from website.build import build_site, render_navigation
from website.options import CONFIGURED, list_options
from website.pages import DOCS, SiteError, rewrite_link
from website.pictures import PICTURES

PUBLIC = {module: names for module, names in find_public_names().items() if names}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    build_site(root / "site", work=root / "work")
    return root / "site"


@pytest.mark.timeout(180)
@pytest.mark.xdist_group("site")
def test_the_site_is_built_and_its_reference_has_every_public_name(site: Path) -> None:
    """The build raises at a warning of the generator, a broken link, and what is loaded from another host."""
    for module, names in PUBLIC.items():
        page = site / "reference" / f"{module.removeprefix('handrail.').replace('.', '-')}.html"
        places = links.read_page(page).places
        assert [name for name in names if f"{module}.{name}" not in places] == [], module
    text = unescape((site / "reference/options.html").read_text("utf-8"))
    for option in (item for groups in CONFIGURED.values() for group in groups for item in list_options(group[0])):
        assert re.search(rf"<code>{option.name}</code>", text), option.name
    # A signature does not say what has to be awaited; other labels say nothing new.
    reference = (site / "reference/execute.html").read_text("utf-8")
    assert set(re.findall(r"doc-label-([\w-]+)", reference)) == {"async"}
    # Search, both colour schemes, and buttons that copy.
    start = (site / "index.html").read_text("utf-8")
    assert (site / "search.json").stat().st_size > 100_000
    assert "(prefers-color-scheme: dark)" in start
    assert "content.code.copy" in start


@pytest.mark.parametrize("group", [group for groups in CONFIGURED.values() for group in groups], ids=lambda g: g[0])
def test_every_option_is_described(group: tuple[str, ...]) -> None:
    options = list_options(group[0])

    assert options
    assert [option.name for option in options if not option.text] == [], f"describe them in the docstring of {group[0]}"
    for other in group[1:]:
        assert {option.name for option in list_options(other)} == {option.name for option in options}, other


def test_every_error_code_has_a_row_with_its_cause_what_the_model_reads_and_what_to_do() -> None:
    page = (ROOT / "docs/errors.md").read_text("utf-8")
    rows = {
        found[1]: re.sub(r"^\||\|$", "", found[0]).split(" | ")
        for found in re.finditer(r"^\| `(\w+)` \|.*\|$", page, re.M)
    }

    assert {code: row for code, row in rows.items() if code in CODES}.keys() == CODES
    assert [code for code in CODES if len(rows[code]) != 4 or not all(map(str.strip, rows[code]))] == []


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_script_draws_from_the_code_of_today(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PICTURES[name](), "run ./scripts/picture"


def test_a_page_that_is_in_no_section_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "forgotten.md").write_text("# Forgotten\n")

    with pytest.raises(SiteError, match=r"docs/forgotten\.md is in no section of website/navigation\.toml"):
        render_navigation(tmp_path)


@pytest.mark.parametrize(
    ("link", "source", "place", "expected"),
    [
        ("tools.md#names", "docs/executor.md", "executor.md", "tools.md#names"),
        ("../adapters.md", "docs/adapters/crewai.md", "adapters/crewai.md", "../adapters.md"),
        ("../STABILITY.md", "docs/index.md", "index.md", "stability.md"),
        ("docs/tools.md", "STABILITY.md", "stability.md", "tools.md"),
        ("../examples/bank_agent.py", "docs/chat.md", "chat.md", "examples/bank_agent.md"),
        ("../scripts/docs", "docs/index.md", "index.md", f"{pages.BLOB}/scripts/docs"),
        ("https://example.com/", "docs/index.md", "index.md", "https://example.com/"),
        ("#below", "docs/index.md", "index.md", "#below"),
    ],
)
def test_a_link_of_the_repository_leads_to_the_same_thing_on_the_site(
    link: str, source: str, place: str, expected: str
) -> None:
    assert rewrite_link(link, source=source, place=place) == expected


def test_a_link_to_nothing_is_an_error() -> None:
    with pytest.raises(SiteError, match=r"docs/index\.md: the link '\.\./gone\.py' leads to 'gone\.py'"):
        rewrite_link("../gone.py", source="docs/index.md", place="index.md")


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="other.html">', "page.html: other.html leads to no file"),
        ('<a href="#nowhere">', "page.html: #nowhere leads to no place of its page"),
        ('<script src="https://cdn.example/x.js">', "page.html: loads https://cdn.example/x.js from another host"),
        ('<a href="#here" id="here">', None),
        ('<a href="https://example.com/">', None),
    ],
)
def test_the_link_check_notices(html: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html)

    _, problems = links.check_links(tmp_path)

    assert problems == ([] if problem is None else [problem])
