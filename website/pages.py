"""Collects the pages of the site in one folder: the docs, pages of the repository, and the examples as pages."""

import ast
import os
import re
import shutil
from functools import cache
from pathlib import Path

from tests.docs.public_names import find_public_names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOB = "https://github.com/handrail/handrail/blob/main"
ROOT_PAGES = {name: f"{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY", "STABILITY")}
"""Pages that stand in the folder of the repository itself, and their names on the site."""
CODE = re.compile(r"^(?P<fence>`{3,}).*?^(?P=fence)$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE_OPTIONS = re.compile(r"^(```\w+) \{(?:file=(\"[^\"]+\"))?.*\}$", re.MULTILINE)


class SiteError(Exception):
    """The site cannot be built, and what has to be changed."""


def find_examples() -> dict[str, list[Path]]:
    """The files of each example by the name of its page: an example is a Python file or a folder of `examples/`."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "examples").iterdir()):
        if path.is_dir() and not path.name.startswith(("_", ".")):
            files = [file for file in sorted(path.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
            found[path.name] = files
        elif path.suffix == ".py":
            found[path.stem] = [path, *sorted(path.parent.glob(f"{path.stem}.y*ml"))]
    return found


def collect_pages(folder: Path) -> None:
    """Fill an empty folder with every page of the site but the reference."""
    shutil.copytree(DOCS, folder)
    for name, page in ROOT_PAGES.items():
        shutil.copy(ROOT / f"{name}.md", folder / page)
    for page in sorted(folder.rglob("*.md")):
        place = page.relative_to(folder)
        source = next((f"{name}.md" for name, own in ROOT_PAGES.items() if own == str(place)), f"docs/{place}")
        page.write_text(rewrite_page(page.read_text("utf-8"), source=source, place=str(place)), "utf-8")
    (folder / "examples").mkdir()
    for name, files in find_examples().items():
        (folder / "examples" / f"{name}.md").write_text(render_example(name, files), "utf-8")


def rewrite_page(text: str, *, source: str, place: str) -> str:
    """A page of the repository as a page of the site: links that lead out of `docs/` lead where they should here, and
    the names of the reference lead to it."""

    def rewrite(match: re.Match[str]) -> str:
        return match[1] + rewrite_link(match[2], source=source, place=place) + match[3]

    pieces: list[str] = []
    linked: set[str] = set()
    end = 0
    for code in CODE.finditer(text):
        pieces.append(LINK.sub(rewrite, text[end : code.start()]))
        if code["fence"]:
            pieces.append(FENCE_OPTIONS.sub(render_fence, code[0]))
        else:
            pieces.append(link_name(code[0], text[: code.start()], linked))
        end = code.end()
    return "".join([*pieces, LINK.sub(rewrite, text[end:])])


@cache
def find_reference_places() -> dict[str, str]:
    """Where the reference describes a name: of names that cannot be mistaken for an ordinary word or for another's."""
    places: dict[str, list[str]] = {}
    for module, names in find_public_names().items():
        for name in names:
            if "_" in name or (name[0].isupper() and not name.isupper() and len(name) > 3):
                places.setdefault(name, []).append(f"{module}.{name}")
    own = {name: f"handrail.{name}" for name in places if f"handrail.{name}" in places[name]}
    return {name: found[0] for name, found in places.items() if len(found) == 1} | own


def link_name(code: str, before: str, linked: set[str]) -> str:
    """A name of the reference as a link to it, where a page first has it in a sentence or a table."""
    name = code.strip("`")
    line = before.rpartition("\n")[2]
    if name in linked or name not in find_reference_places() or line.startswith("#") or before.endswith("["):
        return code
    if "[" in line and "]" not in line.rpartition("[")[2]:  # In the text of a link.
        return code
    linked.add(name)
    return f"[{code}][{find_reference_places()[name]}]"


def render_fence(match: re.Match[str]) -> str:
    """The first line of a block of code: a file has its name as the title, and what is for the tests goes."""
    return f"{match[1]} title={match[2]}" if match[2] else match[1]


def rewrite_link(link: str, *, source: str, place: str) -> str:
    """Where a link of a file of the repository leads on the site."""
    path, mark, anchor = link.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link
    target = os.path.normpath(os.path.join(os.path.dirname(source), path))
    if target.startswith("docs/"):
        page = target.removeprefix("docs/")
    elif target.removesuffix(".md") in ROOT_PAGES:
        page = ROOT_PAGES[target.removesuffix(".md")]
    elif (example := find_example_page(target)) is not None:
        page = example
    elif (ROOT / target).exists():
        return f"{BLOB}/{target}{mark}{anchor}"
    else:
        raise SiteError(f"{source}: the link {link!r} leads to {target!r}, which does not exist")
    return os.path.relpath(page, os.path.dirname(place) or ".") + mark + anchor


def find_example_page(target: str) -> str | None:
    """The page of the example that a file belongs to."""
    for name, files in find_examples().items():
        if ROOT / target in files or ROOT / target == ROOT / "examples" / name:
            return f"examples/{name}.md"
    return None


def render_example(name: str, files: list[Path]) -> str:
    """An example as a page: what it shows, and its files."""
    programs = [path for path in files if path.suffix == ".py"]
    shown = [path for path in files if path.suffix in {".py", ".yaml", ".yml", ".toml", ".json", ".sh"}]
    parts = [f"# {name.replace('_', ' ').capitalize()}", f"`examples/{name}{'' if len(files) > 1 else '.py'}`"]
    for path in programs[:1]:
        parts.append(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
    languages = {".py": "python", ".yml": "yaml"}
    for path in shown:
        language = languages.get(path.suffix, path.suffix.removeprefix("."))
        parts += [f"## {path.relative_to(ROOT / 'examples')}", f"````{language}\n{path.read_text('utf-8')}````"]
    return "\n\n".join(parts) + "\n"
