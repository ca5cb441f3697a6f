"""Writes the pages of the reference: every public name, from its docstring."""

import ast
from pathlib import Path

from tests.docs.public_names import ROOT, find_public_names
from website.options import render_options

SHOWN_AS_MODULES = {"handrail.formats"}
"""Packages whose public names are modules, with the functions of each."""
FORMAT_FUNCTIONS = ("tools", "calls", "results", "tool_choice", "assistant_messages")


def write_reference(folder: Path) -> None:
    """Write a page for each public module, an index, and the page of all options."""
    folder.mkdir()
    modules = {module: names for module, names in find_public_names().items() if names}
    described = dict.fromkeys(modules["handrail"], "handrail")
    for module, names in modules.items():
        (folder / get_page(module)).write_text(render_module(module, names, described), "utf-8")
    (folder / "index.md").write_text(render_index(modules), "utf-8")
    (folder / "options.md").write_text(render_options(), "utf-8")


def get_page(module: str) -> str:
    """The file of a module's page: `handrail.execute` is in `execute.md`."""
    return f"{module.removeprefix('handrail.').replace('.', '-')}.md"


def find_source(module: str) -> Path:
    """The file of a module."""
    path = ROOT / "src" / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def read_summary(module: str) -> str:
    """The docstring of a module."""
    return ast.get_docstring(ast.parse(find_source(module).read_text("utf-8"))) or ""


def render_index(modules: dict[str, list[str]]) -> str:
    """The list of the modules, with their names."""
    parts = [
        "# Reference",
        "Every public name, by the module that you import it from. What is not here is private and may change: see "
        "[stability](../stability.md).",
        "[All options](options.md) of what you configure, with their defaults, are on one page; so are the "
        "[error codes and exceptions](../errors.md).",
    ]
    for module, names in modules.items():
        links = ", ".join(f"[`{name}`]({get_page(module)}#{module}.{name})" for name in names)
        parts += [f"## [{module}]({get_page(module)})", read_summary(module).partition("\n\n")[0], links]
    return "\n\n".join(parts) + "\n"


def render_module(module: str, names: list[str], described: dict[str, str]) -> str:
    """The page of a module: what it is for, and each of its names."""
    summary = read_summary(module).partition("\n\n")[0]
    parts = [f"# {module}", summary]
    for name in names:
        if module in SHOWN_AS_MODULES and name.islower():
            members = [member for member in FORMAT_FUNCTIONS if has_function(f"{module}.{name}", member)]
            parts.append(f"::: {module}.{name}\n    options:\n      members: [{', '.join(members)}]\n")
        elif described.get(name, module) == module or not is_same(module, name):
            parts.append(f"::: {module}.{name}\n")
        else:
            home = described[name]
            link = f"[`{home}.{name}`]({get_page(home)}#{home}.{name})"
            parts.append(f"## `{name}` {{ #{module}.{name} }}\n\nThe same as {link}.\n")
    return "\n\n".join(parts) + "\n"


def has_function(module: str, name: str) -> bool:
    """Whether a module defines or imports a function."""
    for node in ast.parse(find_source(module).read_text("utf-8")).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                return True
            case ast.ImportFrom() if any((alias.asname or alias.name) == name for alias in node.names):
                return True
            case _:
                pass
    return False


def is_same(module: str, name: str) -> bool:
    """Whether a name of a module is the one that `handrail` exports, too."""
    return not module.startswith("handrail.openai")
