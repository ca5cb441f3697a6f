"""Checks the built site: every link leads somewhere in it, and no page loads anything from another host."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("source", "srcset")}


class PageParser(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for name, value in attrs:
            if value is None:
                continue
            if name in {"id", "name"}:
                self.places.add(value)
            elif name == "href" and tag == "a":
                self.links.append(value)
            elif (tag, name) in LOADING or (tag == "link" and name == "href" and values.get("rel") != "canonical"):
                self.loads.append(value)


@cache
def read_page(path: Path) -> PageParser:
    """The links and places of a page."""
    parser = PageParser()
    parser.feed(path.read_text("utf-8"))
    return parser


def check_links(folder: Path) -> tuple[int, list[str]]:
    """The number of links that were followed, and what is wrong with those that are broken."""
    problems: list[str] = []
    count = 0
    for page in sorted(folder.rglob("*.html")):
        parser = read_page(page)
        shown = page.relative_to(folder)
        for link in parser.loads:
            if urlsplit(link).netloc:
                problems.append(f"{shown}: loads {link} from another host")
        for link in {*parser.links, *parser.loads}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            # The page of a missing address is served at any address, so its links are absolute.
            start = folder if parts.path.startswith("/") else page.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else page
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file():
                problems.append(f"{shown}: {link} leads to no file")
            elif parts.fragment and target.suffix == ".html":
                places = read_page(target).places
                if unquote(parts.fragment) not in places and not parts.fragment.startswith("__"):
                    problems.append(f"{shown}: {link} leads to no place of its page")
    read_page.cache_clear()
    return count, problems
