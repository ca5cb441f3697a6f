"""Everything that the README and the docs import is public: in the `__all__` of the module that they import it from."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.public_names import PAGES, ROOT, STABILITY, find_documented_names, find_public_names, update_page
from tests.docs.test_snippets import find_snippets

PUBLIC = find_public_names()


def find_private_names(page: Path) -> list[str]:
    """The names that a page imports from Handrail and that no `__all__` lists."""
    private: list[str] = []
    for snippet in find_snippets(page):
        for node in ast.walk(ast.parse(snippet.source)):
            if isinstance(node, ast.Import):
                private += [alias.name for alias in node.names if alias.name.partition(".")[0] == "handrail"]
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "handrail":
                public = getattr(import_module(node.module or ""), "__all__", ())
                private += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public]
    return private


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_imports_only_public_names(page: Path) -> None:
    assert find_private_names(page) == []


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("from handrail import Executor, tool", []),
        ("from handrail.core.redact import Redactor", ["handrail.core.redact.Redactor"]),
        ("from handrail.chat.turn import TurnState", ["handrail.chat.turn.TurnState"]),
        ("import handrail.core.redact", ["handrail.core.redact"]),
    ],
)
def test_a_private_name_is_noticed(source: str, private: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```python\n{source}\n```\n")
    assert find_private_names(page) == private


def test_the_stability_page_lists_the_public_names() -> None:
    page = STABILITY.read_text("utf-8")

    assert update_page(page) == page, "STABILITY.md is not up to date: python -m tests.docs.public_names"


@pytest.mark.parametrize("module", [item for item in PUBLIC if not item.startswith("handrail.adapters.")])
def test_every_public_name_exists_and_has_a_docstring(module: str) -> None:
    loaded = import_module(module)
    for name in PUBLIC[module]:
        value = getattr(loaded, name)
        assert value is not None
        if inspect.isclass(value) or inspect.isroutine(value):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_a_page(module: str) -> None:
    missing = set(PUBLIC[module]) - find_documented_names()

    assert sorted(missing) == []


def test_every_package_lists_its_public_names() -> None:
    folders = [path for path in sorted((ROOT / "src/handrail").iterdir()) if path.is_dir() and path.name[0] != "_"]

    assert [
        path.name for path in folders if not any(module.startswith(f"handrail.{path.name}") for module in PUBLIC)
    ] == []
