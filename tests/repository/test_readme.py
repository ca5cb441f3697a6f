"""The README is also the page of the package index: its links and its picture work there."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^]]+\]: (\S+)$", re.MULTILINE)
REFERENCE = re.compile(r"\]\[([^]]+)\]")
OWN = re.compile(r"https://(?:github\.com|raw\.githubusercontent\.com)/handrail/handrail/(?:blob/main/|main/)?([^?#]*)")


def test_every_link_of_the_readme_is_absolute_and_leads_to_a_file_that_exists() -> None:
    text = (ROOT / "README.md").read_text()
    links = ["".join(found) for found in LINK.findall(text)]

    assert [name for name in REFERENCE.findall(text) if f"\n[{name}]: " not in text] == []
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    paths = [match[1] for link in links if (match := OWN.match(link))]
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_the_urls_of_the_project_lead_to_its_repository() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]

    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= urls.keys()
    assert all(url.startswith("https://github.com/handrail/handrail") for url in urls.values())


def test_every_promise_of_the_readme_has_a_link_to_a_test_or_a_figure() -> None:
    section = (ROOT / "README.md").read_text().partition("## What you can rely on\n")[2].partition("\n## ")[0]
    promises = re.split(r"^- ", section, flags=re.MULTILINE)[1:]

    assert len(promises) >= 6
    assert [promise.partition(".")[0] for promise in promises if not re.search(r"\]\[(tests|docs)/", promise)] == []


def test_the_readme_begins_with_what_it_is_a_picture_a_program_and_the_install_line() -> None:
    text = (ROOT / "README.md").read_text()
    first = text.partition("\n## ")[0]

    assert first.index("It is for you if") < first.index("overview.svg") < first.index("```python")
    assert first.index("```python") < first.index("pip install handrail") < first.index("docs/index.md")
    assert "approval_required" in first
    commands = re.findall(r"^\./scripts/\w+", text, re.MULTILINE)
    assert commands[:2] == ["./scripts/demo", "./scripts/test"]


def test_the_readme_lists_the_examples_of_the_page() -> None:
    listed = re.findall(r"^\| \[`(\w+)", (ROOT / "docs/examples.md").read_text(), re.MULTILINE)
    readme = (ROOT / "README.md").read_text()

    assert len(listed) >= 10
    assert [name for name in listed if f"[examples/{name}" not in readme] == []
