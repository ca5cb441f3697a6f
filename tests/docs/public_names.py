"""The public names, which `__all__` of each package lists. `python -m tests.docs.public_names` writes STABILITY.md."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STABILITY = ROOT / "STABILITY.md"
BEGIN, END = "<!-- the public names: python -m tests.docs.public_names -->", "<!-- end of the public names -->"
BELOW_A_PACKAGE = ("handrail.adapters.", "handrail.openai.", "handrail.testing.")
"""Where the modules inside a package are public, too."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def find_public_names() -> dict[str, list[str]]:
    """The names in `__all__` by module, for every public module. Nothing is imported: some need an extra."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src/handrail").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        if module.count(".") > 1 and not module.startswith(BELOW_A_PACKAGE):
            continue
        for node in ast.parse(path.read_text("utf-8")).body:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id="__all__")], value=names)
                    | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as names)
                ):
                    found[module] = sorted(ast.literal_eval(names), key=str.lower)
                case _:
                    pass
    return found


def render_public_names() -> str:
    """A line for each module."""
    lines = [
        f"- `{module}`: {', '.join(f'`{name}`' for name in names)}"
        for module, names in find_public_names().items()
        if names
    ]
    return "\n".join([BEGIN, "", *lines, "", END])


def find_documented_names() -> set[str]:
    """The words that the README and the docs set as code, in a sentence or in a program."""
    found: set[str] = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        for code in re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL):
            found.update(re.findall(r"[A-Za-z_]\w*", code))
    return found


def update_page(text: str) -> str:
    """The page with the names of today."""
    before, _, rest = text.partition(BEGIN)
    return before + render_public_names() + rest.partition(END)[2]


if __name__ == "__main__":
    STABILITY.write_text(update_page(STABILITY.read_text("utf-8")), "utf-8")
