"""Builds the site: collects the pages, writes the reference, runs the generator, and checks the links."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from website.links import check_links
from website.pages import ROOT, SiteError, collect_pages
from website.reference import write_reference

SETTINGS = ROOT / "website/zensical.toml"
NAVIGATION = ROOT / "website/navigation.toml"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
WORKER = "https://unpkg.com/iframe-worker/shim"
"""What the generator loads from another host, so that the search works from files."""


def build_site(output: Path, *, work: Path) -> str:
    """Build the site into a folder, and return one line about it. `work` is a folder for what is in between."""
    for folder in (output, work):
        shutil.rmtree(folder, ignore_errors=True)
    work.mkdir(parents=True)
    pages = work / "pages"
    collect_pages(pages)
    write_reference(pages / "reference")
    shutil.copytree(ROOT / "website/assets", pages, dirs_exist_ok=True)
    navigation = render_navigation(pages)
    settings = SETTINGS.read_text("utf-8")
    own = f'docs_dir = "{pages.name}"\nsite_dir = "site"\n{navigation}\n'
    paths = f'paths = ["{ROOT / "src"}"]\n'
    settings = settings.replace("[project]\n", f"[project]\n{own}", 1)
    handler = "[project.plugins.mkdocstrings.handlers.python.options]"
    own = f'[project.plugins.mkdocstrings]\ncustom_templates = "{ROOT / "website/templates"}"\n'
    own += f"[project.plugins.mkdocstrings.handlers.python]\n{paths}\n"
    settings = settings.replace(handler, f"{own}{handler}", 1)
    (work / "zensical.toml").write_text(settings, "utf-8")
    run_generator(work / "zensical.toml")
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(work / "site", output)
    use_own_scripts(output)
    count, problems = check_links(output)
    if problems:
        raise SiteError("\n".join(problems))
    return f"{len(list(output.rglob('*.html')))} pages, {count} links"


def render_navigation(pages: Path) -> str:
    """The navigation as the generator reads it; every page stands in it once."""
    sections = tomllib.loads(NAVIGATION.read_text("utf-8"))["section"]
    there = {str(path.relative_to(pages)) for path in pages.rglob("*.md")}
    listed: list[str] = []
    lines: list[str] = []
    for section in sections:
        names = [name for entry in section["pages"] for name in expand_entry(entry, there)]
        listed += names
        items = ", ".join(render_entry(name) for name in names)
        lines.append(f'  {{ "{section["title"]}" = [{items}] }},')
    problems = [
        *(f"docs/{name} is in no section of website/navigation.toml" for name in sorted(there - set(listed))),
        *(f"website/navigation.toml names {name}, which does not exist" for name in sorted(set(listed) - there)),
        *(f"website/navigation.toml names {name} twice" for name in sorted({n for n in listed if listed.count(n) > 1})),
    ]
    if problems:
        raise SiteError("\n".join(problems))
    return "\n".join(["nav = [", *lines, "]"])


def render_entry(name: str) -> str:
    """A page in the navigation, by its own title; a module of the reference without the name of the package."""
    folder, _, file = name.removesuffix(".md").rpartition("/")
    if folder == "reference" and file not in ("index", "options", "handrail"):
        return f'{{ "{file.replace("-", ".")}" = "{name}" }}'
    return f'"{name}"'


def expand_entry(entry: str, there: set[str]) -> list[str]:
    """The pages that an entry of the navigation stands for: an index first, and what most readers need."""
    if not entry.endswith("/*"):
        return [entry]
    found = [name for name in there if name.startswith(entry.removesuffix("*"))]
    first = ["index.md", "options.md", "handrail.md"]
    return sorted(found, key=lambda name: (first.index(end) if (end := name.rpartition("/")[2]) in first else 9, name))


def use_own_scripts(output: Path) -> None:
    """Load from the site itself what the generator loads from another host."""
    for page in output.rglob("*.html"):
        text = page.read_text("utf-8")
        up = "../" * (len(page.relative_to(output).parts) - 1)
        page.write_text(text.replace(f'"{WORKER}"', f'"{up}iframe-worker.js"'), "utf-8")


def run_generator(settings: Path) -> None:
    """Run the generator; a warning is an error."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(settings)]
    ended = subprocess.run(command, cwd=settings.parent, capture_output=True, text=True, check=False, timeout=300)
    said = COLOUR.sub("", ended.stdout + ended.stderr)
    if ended.returncode or re.search(r"\b(warning|error)\b", said, re.IGNORECASE):
        raise SiteError(said.partition("Traceback")[0])
