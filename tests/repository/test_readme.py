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
